"""Attention over an image: the weights of one patch, drawn over the image."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, public_call, type_error, value_error
from qkv.arrays import Array, as_array
from qkv.models.vision import grid_of
from qkv.see.analysis import one_text
from qkv.see.analysis.head_weights import summable
from qkv.see.draw.colours import AFTER, THEMES, scale_end
from qkv.see.draw.panels import PICTURE, Cells, Image, Later, Panel, Prose
from qkv.see.page.payload import check_theme
from qkv.see.views.view import Heading, View
from qkv.trace import Trace

# The colour that shows weights on top of the image. It is light because the image is darkened.
LIGHT = tuple(bytes.fromhex(THEMES["dark"].more[-1][1:]))
MOST_PIXELS = 448  # The number of pixels on the longer side of the large picture.
_LOOKING = "#ffffff"  # The colour of the frame around the patch that attends.
_ACROSS = 4  # The number of heads side by side.


@dataclass(frozen=True, eq=False, repr=False)
class ImageView(View):
    """The attention of one patch of an image, in each head of one layer.

    Attributes:
        trace: the trace of the image.
        image: the image, (H, W, 3) of uint8.
        layer: the shown layer, counted from 0.
        head: the head in the large picture, counted from 0.
        query: the position of the token that attends. Position 0 is the first token, such as [CLS],
            and position 1 is the first patch.
    """

    trace: Trace
    image: Array
    layer: int
    head: int
    query: int

    @property
    def grid(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches."""
        grid = grid_of(self.trace.tokens)
        assert grid is not None
        return grid

    @property
    def weights(self) -> Array:
        """Return the weights of each head on the patches, `(heads, rows, columns)`."""
        rows = self.trace["pattern", self.layer][0, :, self.query, 1:]
        return np.asarray(rows.reshape(-1, *self.grid))

    @property
    def first(self) -> Array:
        """Return the weight of each head on the first token, `(heads,)`."""
        return np.asarray(self.trace["pattern", self.layer][0, :, self.query, 0])

    @property
    def strongest(self) -> tuple[int, int]:
        """Return `(row, column)` of the patch on which the shown head's weight is largest."""
        row, column = divmod(int(self.weights[self.head].argmax()), self.grid[1])
        return row, column

    @property
    def looking(self) -> tuple[int, int] | None:
        """Return `(row, column)` of the patch that attends; None for the first token."""
        return None if self.query == 0 else divmod(self.query - 1, self.grid[1])

    @property
    def sentence(self) -> str:
        """Name the patch with the largest weight; state how many patches get half of the weight."""
        (row, column), patch = self.strongest, self.looking
        weights, query = self.weights[self.head], self._name
        if patch is not None:
            query = f"The patch in row {patch[0]}, column {patch[1]} (white frame)"
        return (
            f"{query} attends most to the patch in row {row}, column {column} (red frame), with a "
            f"weight of {weights[row, column]:.2f}, in layer {self.layer}, head {self.head}. "
            f"Half of the weight on the image lies on {self.half} of {weights.size} patches."
        )

    @property
    def half(self) -> int:
        """The smallest number of patches that together receive half of the weight on the image."""
        falling = np.cumsum(np.sort(self.weights[self.head], axis=None)[::-1], dtype=np.float64)
        return int(np.searchsorted(falling, falling[-1] / 2)) + 1

    @property
    def _name(self) -> str:
        return str(self.trace.tokens[self.query])

    def draw(self, head: int, size: int = MOST_PIXELS) -> Array:
        """Draw the image in grey; lighten each patch by the weight that the head gives it.

        The result has the shape `(h, w, 3)` and the dtype uint8.
        """
        image = smaller(self.image, size)
        times = max(1, size // max(image.shape[:2]))  # patches must not share pixels
        return laid_over(image.repeat(times, 0).repeat(times, 1), self._shares(head))

    def _shares(self, head: int) -> Array:
        """Divide a head's weights by the upper end of the head's scale."""
        weights = self.weights[head]
        return np.asarray(weights / scale_end([weights], self.stretch))

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers of the view."""
        return {
            "model": self.trace.model,
            "layer": self.layer,
            "head": self.head,
            "query": self._name,
            "sentence": self.sentence,
            "grid": list(self.grid),
            "strongest": list(self.strongest),
            "weights": self.weights,
            "first": self.first,
        }

    def panels(self) -> list[list[Panel]]:
        """Show the image, the head's weights over the image, and each head of the layer."""
        frames = [(*self.strongest, AFTER)]
        if self.looking is not None:
            frames.append((*self.looking, _LOOKING))
        large: list[Panel] = [
            Later(make=lambda: Image(title="the image", pixels=smaller(self.image))),
            Later(
                make=lambda: Image(
                    title=self.caption, pixels=self.draw(self.head), grid=self.grid, frames=frames
                )
            ),
        ]
        count = len(self.weights)
        heads: list[Panel] = [
            Later(make=partial(self._small, head)) for head in range(count if count > 1 else 0)
        ]
        rows = [heads[start : start + _ACROSS] for start in range(0, len(heads), _ACROSS)]
        cells = Cells(
            title=f"Layer {self.layer}, head {self.head}",
            explained=f"each cell is a patch; 9 is {'the largest weight' if self.stretch else '1'}",
            shares=self._shares(self.head),
            marked=self.looking,
        )
        return [[Prose(text=self.note, shown_in=PICTURE)], large, *rows, [cells]]

    def _small(self, head: int) -> Image:
        """Draw the small picture of one head."""
        pixels = self.draw(head, MOST_PIXELS // 4)
        return Image(title=f"head {head}", pixels=pixels, chosen=head == self.head)

    def _headings(self) -> list[Heading]:
        return []  # there are no words to explain: the tokens are patches

    @property
    def caption(self) -> str:
        """Name the token that attends, and the head."""
        query = self._name if self.query == 0 else f"patch {self._name}"
        return f"what {query} attends to: layer {self.layer}, head {self.head}"

    @property
    def note(self) -> str:
        """Explain the colours, and state the weight on the first token, which is not a patch."""
        largest = f"the head's largest weight, here {self.weights[self.head].max():.3f}"
        end, scaling = (
            (largest, ", each scaled to its own largest weight")
            if self.stretch
            else ("weight 1", "")
        )
        return (
            f"Grey: weight 0. Light blue: {end}. "
            f"Weight on {self.trace.tokens[0]}, which is not a patch: {self.first[self.head]:.2f}."
            + f" The small pictures below show all heads of the layer{scaling}."
            * (len(self.weights) > 1)
        )


@public_call("image_view")
def image_view(
    trace: Trace,
    image: Any,
    *,
    layer: int | None = None,
    head: int | None = None,
    query: str | int = 0,
    theme: str = "auto",
    stretch: bool = False,
) -> ImageView:
    """Show the attention of one token over an image, for each head of a layer.

    If `layer` and `head` are None, the view chooses the head in which the token has the largest
    weight on a patch. The weight of a patch on itself does not count. Ties go to the lowest layer,
    then the lowest head.

    Args:
        trace: the trace of one image, from `model.trace(image)`.
        image: the image in any size, as an array (H, W, 3) or (H, W) of uint8, or as a Pillow
            image.
        layer: the layer to show, counted from 0; -1 is the last layer.
        head: the head to show in the large picture, counted from 0; -1 is the last head.
        query: the token that attends; 0 or "[CLS]" stands for the first token, "3,4" for the patch
            in row 3 and column 4.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        stretch: whether the scale of each head ends at the head's largest weight instead of 1. Use
            this option if weights are spread over hundreds of patches.

    Raises:
        TypeError: the dtype of the image is not uint8.
        ValueError: the trace is not from an image; the trace holds no weights; or the image or the
            query does not match the trace.
        IndexError: `layer`, `head` or `query` is out of range.

    >>> weights = np.full((1, 2, 5, 5), 0.2)  # two heads over [CLS] and 2 x 2 patches
    >>> weights[0, 1, 0] = [0, 0.1, 0.1, 0.7, 0.1]
    >>> trace = Trace({"blocks.0.attn.hook_pattern": weights},
    ...               tokens=[["[CLS]", "0,0", "0,1", "1,0", "1,1"]])
    >>> view = image_view(trace, np.zeros((8, 8, 3), np.uint8))
    >>> view.head, view.strongest, view.weights[1].tolist()
    (1, (1, 0), [[0.1, 0.1], [0.7, 0.1]])
    """
    check_theme(theme)
    trace = one_text(trace)
    grid = grid_of(trace.tokens)
    if grid is None:
        raise value_error(
            "the trace is not a trace of an image, because its tokens are not patches; "
            "pass model.trace(image) of a vision model"
        )
    layers = [n for n in range(trace.num_layers) if ("pattern", n) in trace]
    if not layers:
        raise value_error("the trace holds no weights: trace without top_k or names")
    position = _position(trace, query)
    numbers = layers if layer is None else [_check_index(layer, trace.num_layers, "layer")]
    if numbers[0] not in layers:
        raise value_error(f"layer {numbers[0]} is not in the trace, which has the layers {layers}")
    rows = {n: trace["pattern", n][0, :, position] for n in numbers}  # (Hq, N + 1), keyed by layer
    for number, weights in rows.items():
        if not np.isfinite(summable(weights)).all():
            raise value_error(
                f"weights of layer {number} are NaN, infinite or over 1e30: choose "
                "another layer, or see which arrays of the trace are not finite"
            )
    patches = np.array([*rows.values()])[..., 1:]  # (layers, Hq, N)
    others = np.arange(patches.shape[2]) != position - 1
    best = np.where(others, patches, -1.0).max(axis=-1)
    if head is not None:
        index = _check_index(head, best.shape[1], "head")
        best[:, np.arange(best.shape[1]) != index] = -2.0
    chosen, column = np.unravel_index(int(best.argmax()), best.shape)
    return ImageView(
        trace,
        _image(image),
        numbers[int(chosen)],
        int(column),
        position,
        theme=theme,
        stretch=stretch,
    )


def _check_index(number: int, count: int, what: str) -> int:
    if not -count <= number < count:
        raise invalid(IndexError, f"there is no {what} {number}: the {what}s are 0 to {count - 1}")
    return number % count


def _position(trace: Trace, query: str | int) -> int:
    tokens = trace.tokens
    if isinstance(query, str):
        if query not in tokens:
            raise value_error(
                f"query is {query!r:.40}; pass {tokens[0]!r}, or a patch as "
                f'"row,column", up to {tokens[-1]!r}'
            )
        return int(tokens.index(query))
    return _check_index(int(query), len(tokens), "token")


def _image(image: Any) -> Array:
    """Convert the image to (H, W, 3) of uint8."""
    if hasattr(image, "convert"):
        image = np.asarray(image.convert("RGB"))
    pixels = as_array(image, name="image")
    if pixels.dtype != np.uint8:
        raise type_error(f"the image is {pixels.dtype}; pass uint8, 0 to 255")
    if pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] == 1):
        pixels = np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=-1)
    if pixels.ndim != 3 or pixels.shape[-1] != 3 or not pixels.size:
        raise value_error(f"the image has shape {pixels.shape}; pass (H, W, 3)")
    return pixels


def smaller(image: Array, most: int = MOST_PIXELS) -> Array:
    """Reduce the image to `most` pixels or fewer on its longer side."""
    step = max(image.shape[:2]) / most
    if step <= 1:
        return image
    down, across = (
        np.minimum((np.arange(int(n / step) or 1) * step).astype(int), n - 1)
        for n in image.shape[:2]
    )
    return image[np.ix_(down, across)]


def laid_over(image: Array, shares: Array) -> Array:
    """Draw an image (H, W, 3) in grey, and lighten it where `shares` (rows, columns) are large."""
    high, wide = image.shape[:2]
    rows, columns = shares.shape
    share = np.clip(np.nan_to_num(shares), 0, 1).astype(np.float32)
    share = share[np.ix_(np.arange(high) * rows // high, np.arange(wide) * columns // wide)]
    # No pixel of the grey image is lighter than medium grey, so the colour of a weight is always
    # lighter than the image.
    grey = 20 + 0.5 * (image @ np.array([0.299, 0.587, 0.114], np.float32))
    share = 0.85 * share[..., None]
    mixed = (1 - share) * grey[..., None] + share * np.array(LIGHT, np.float32)
    return np.asarray(mixed.round().astype(np.uint8))
