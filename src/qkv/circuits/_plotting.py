"""Draw the results of `qkv.circuits`: `plot`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array
from qkv.circuits._plot_view import PlotView, graph_view, in_rows, is_graph
from qkv.circuits._scanning import HeadScan, Scan
from qkv.circuits.results import Result
from qkv.see.analysis.measures import strongest
from qkv.see.draw import panels
from qkv.see.draw.colours import scale_end, signed_end
from qkv.see.page.payload import check_theme
from qkv.text.tokenized import marks_blanks, plain_tokens

MOST_BARS, MOST_MAPS = 48, 48
Scale = tuple[float, float]  # The numbers at both ends of a color scale.
_SHARES = ("weight", "mean weight", "probability")  # Numbers with a color scale from 0 to 1.


@public_call("plot")
def plot(result: Any, *, theme: str = "auto", stretch: bool = False) -> PlotView:
    """Draw a result of `qkv.circuits`.

    The axes of the result determine the picture:

    - One axis: a bar for each number.
    - Two axes: a heat map of the numbers.
    - Three axes: a small heat map for each index of the first axis, and a large heat map for the
      index with the largest effect (for `rollout`, the last layer).
    - Four axes: the axes of layers and heads are joined; the result is drawn as for three axes.
    - Logits (`logit_lens`): the most probable token of each position, with its probability.
    - Vectors (`integrated_gradients`): a number for each token, the sum of its vector.
    - A dict (`head_scores`, `attribute_logits`) or a `HeadScan`: all of its results.
    - A `Scan`: its page of cards (`Scan.cards`).
    - A graph (`edges`, `discover`): nodes in layers from bottom to top, and edges whose widths show
      their scores. Only the 150 strongest edges are drawn; the view says how many edges the graph
      has.

    The color scale of weights and probabilities runs from 0 to 1. The scales of all other numbers
    run from 0 to the largest number, with one exception: for `patch` and `attribution_patch` with
    `normalize=False`, the scale starts at the metric of the corrupted text. Values below the start
    of a scale are red.

    Args:
        result: a result of `qkv.circuits`, or an `xarray.DataArray`, for example a slice of
            `result.to_xarray()` or the difference of two DataArrays.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        stretch: whether the color scale of weights ends at the largest weight instead of at 1.

    Returns:
        A view for notebooks and terminals, with export methods such as `to_html` and `to_png`.

    Raises:
        TypeError: `result` has another type, or is an array without named axes.
        ValueError: `result` is empty, `theme` is unknown, or an edge joins a node that is missing
            from the graph.

    >>> import qkv
    >>> from qkv import circuits
    >>> view = circuits.plot(circuits.copying_scores(qkv.load("books-decoder")))
    >>> view.to_dict()["results"][0]["axes"]
    ['layer', 'head']
    """
    check_theme(theme)
    if is_graph(result):
        return replace(graph_view(result), theme=theme)
    if isinstance(result, Scan):
        return result.cards(theme=theme)
    if isinstance(result, HeadScan):
        result = result.scores
    parts = _of_mapping(result) if isinstance(result, Mapping) else [_read(result)]
    facts = [part.sentence for part in parts if part.values.ndim and len(parts) > 1]
    facts += [part.note for part in parts if part.note]
    said = parts[0].sentence if len(parts) == 1 else _together(parts)
    rows, numbers = _rows(parts, stretch), {"results": [part.to_dict() for part in parts]}
    return PlotView(said, facts, rows, numbers, theme=theme, stretch=stretch)


class _Axis(NamedTuple):
    """An axis of a drawing, with a number and an optional word for each index."""

    name: str
    numbers: list[Any]
    words: Sequence[str] | None = None

    @property
    def kind(self) -> str:
        """The kind of the indices, for example "kv head"."""
        return self.name.replace("_", " ")

    @property
    def names(self) -> Sequence[str]:
        """The labels of the indices in a picture."""
        if self.words is not None:
            return self.words
        counted = self.name.endswith(("layer", "head"))
        return [
            f"{self.kind} {number}" if counted and isinstance(number, int) else str(number)
            for number in self.numbers
        ]

    def label(self, index: int) -> str:
        """Describe an index in words, for example "layer 3" or "token 4 (the)"."""
        counted = f"{self.kind} {self.numbers[index]}"
        if self.words is None:
            return counted
        return self.words[index] if self.name == "layer" else f"{counted} ({self.words[index]})"


@dataclass(frozen=True, eq=False)
class _Drawing:
    """Numbers to draw, and their axes."""

    values: Array
    axes: tuple[_Axis, ...]
    of: str
    title: str
    ground: float = 0.0
    tokens: Array | None = None  # a token for each number, or None
    note: str = ""

    @property
    def kind(self) -> tuple[str, float]:
        """The meaning of the numbers, and the number for "no effect".

        Drawings of the same kind share a color scale.
        """
        return self.of, self.ground

    @property
    def sizes(self) -> Array:
        """The distance of each number from `ground`; 0 for infinite numbers and NaN."""
        far = np.abs(self.values - self.ground)
        return np.where(np.isfinite(far), far, 0.0)

    @property
    def strongest(self) -> tuple[int, ...]:
        """The index of the number with the largest distance from `ground` (usually 0)."""
        return tuple(map(int, np.unravel_index(int(self.sizes.argmax()), self.values.shape)))

    @property
    def sentence(self) -> str:
        """A sentence that tells the user the number furthest from `ground`, and its index.

        If the numbers have tokens, the returned sentence tells the user the last number and its
        token, not the number furthest from `ground`.
        """
        if not np.isfinite(self.values).any():
            return f"{self.title}: no number is finite."
        form = panels.number_format(self.values)
        if self.tokens is not None:
            last = tuple(size - 1 for size in self.values.shape)
            value = form(float(self.values[last]))
            token = f"{self.tokens[last]} with {self.of} {value}"
            return f"{self.title}: {token}, {self.label(last)}."
        index, meaning = self.strongest, self.of
        meaning += f", no effect: {form(self.ground)}" if self.ground else ""
        at = f"strongest at {self.label(index)}, " if index else ""
        return f"{self.title}: {at}{form(float(self.values[index]))} ({meaning})."

    def label(self, index: Sequence[int]) -> str:
        """Describe an index along all axes: layer 3, head 2, token 4 (the)."""
        return ", ".join(axis.label(number) for axis, number in zip(self.axes, index, strict=True))

    def at(self, index: int) -> "_Drawing":
        """Return the numbers at an index of the first axis."""
        tokens, title = self.tokens, self.axes[0].label(index)
        tokens = None if tokens is None else tokens[index]
        values, axes = self.values[index], self.axes[1:]
        return replace(self, values=values, axes=axes, title=title, tokens=tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and words of the drawing."""
        about: dict[str, Any] = {"title": self.title, "of": self.of, "values": self.values}
        about |= {"axes": [x.name for x in self.axes], "places": [x.names for x in self.axes]}
        return about if self.tokens is None else about | {"tokens": self.tokens.tolist()}


def _of_mapping(results: Mapping[Any, Any]) -> list[_Drawing]:
    """Read each entry of a dict. Plain numbers get the label of the first `Result` in the dict."""
    meaning = next((one.of for one in results.values() if isinstance(one, Result)), "number")
    numbers = (float, int, np.number)
    parts = [
        _Drawing(np.asarray(float(value)), (), meaning, str(name))
        if isinstance(value, numbers)
        else replace(_read(value), title=str(name))
        for name, value in results.items()
    ]
    if not parts:
        raise value_error("`result` is an empty dict: give a dict with results")
    return parts


def _read(result: Any) -> _Drawing:
    """Read one result."""
    if hasattr(result, "dims") and hasattr(result, "dtype"):
        part = _from_xarray(result)
    elif isinstance(result, Result) and result.axes:
        sizes = zip(result.axes, result.shape, strict=True)
        axes = tuple(_Axis(name, [*range(n)], result.words.get(name)) for name, n in sizes)
        part = _Drawing(np.asarray(result), axes, result.of, result.title, result.ground)
    else:
        kind = type(result).__name__
        if isinstance(result, np.ndarray):
            kind += f" {result.shape}, without named axes"
        raise type_error(
            f"`result` is {kind}: give a result of qkv.circuits, or an "
            "xarray.DataArray, such as a slice of result.to_xarray()"
        )
    if part.values.size == 0:
        raise value_error(f"`result` is empty, {part.values.shape}: give a result with numbers")
    last = part.axes[-1].name if part.axes else ""
    # The softmax needs the logits of all tokens, but a DataArray may lack some of them.
    if last == "V" and part.of == "logit" and isinstance(result, Result):
        return _likeliest(part)
    values = part.values.astype(np.float64)
    if last == "D":
        note = f"Each number is the sum over the {values.shape[-1]} numbers of a vector."
        return replace(part, values=values.sum(-1), axes=part.axes[:-1], note=note)
    return _with_heads_of_all_layers(replace(part, values=values))


def _from_xarray(array: Any) -> _Drawing:
    """Read a DataArray, its axis names and its index numbers."""
    if array.dtype.kind not in "fiub":
        raise type_error(f"`result` is a DataArray of {array.dtype}: give a DataArray of numbers")
    axes = []
    for name in map(str, array.dims):
        words = array.coords.get(f"{name}_text")
        labels = None if words is None or words.dims != (name,) else list(map(str, words.values))
        axes.append(_Axis(name, array[name].values.tolist(), labels))
    meaning, title = array.attrs.get("of", "number"), str(array.name or "Result")
    return _Drawing(array.values, tuple(axes), meaning, title, array.attrs.get("ground", 0.0))


def _likeliest(part: _Drawing) -> _Drawing:
    """Return the most probable token of each position from logits (..., T, V)."""
    best = part.values.argmax(-1)
    probabilities = np.empty(best.shape)
    for index in np.ndindex(best.shape[:-1]):
        logits = part.values[index].astype(np.float64)  # (T, V), for one layer
        with np.errstate(invalid="ignore"):
            exponentials = np.exp(logits - logits.max(-1, keepdims=True))
            probabilities[index] = 1 / exponentials.sum(-1)
    words = np.array(part.axes[-1].names, object)
    # a token that continues a word begins with "##", as in `Model.predict`
    before = ["Ġ", "a"] if marks_blanks(part.axes[-1].names) else []
    plain = {
        word: plain_tokens([*before, word], [False] * (len(before) + 1))[-1]
        for word in {*words[best].flat}
    }
    tokens = np.vectorize(plain.get, otypes=[object])(words[best])
    note = "Each cell: the most probable token, and its probability."
    values, axes = probabilities, part.axes[:-1]
    return replace(part, values=values, axes=axes, of="probability", tokens=tokens, note=note)


def _with_heads_of_all_layers(part: _Drawing) -> _Drawing:
    """Merge axes until at most three remain.

    First, an axis of layers is merged with the following axis of heads: the label "3.2" means head
    2 of layer 3. If more than three axes still remain, the first two axes are merged.
    """
    axes, index = list(part.axes), 0
    while len(part.axes) > 3 and index + 1 < len(axes):
        one, other = axes[index : index + 2]
        if one.name.endswith("layer") and other.name.endswith("head"):
            numbers = [f"{layer}.{head}" for layer in one.numbers for head in other.numbers]
            axes[index : index + 2] = [_Axis(other.name, numbers)]
        index += 1
    while len(axes) > 3:
        one, other = axes[:2]
        both = [f"{first}, {second}" for first in one.names for second in other.names]
        axes[:2] = [_Axis(f"{one.name}, {other.name}", both)]
    shape = [len(axis.numbers) for axis in axes]
    return replace(part, values=part.values.reshape(shape), axes=tuple(axes))


def _together(parts: Sequence[_Drawing]) -> str:
    """Return a sentence about several results: their sum, or their names and axes."""
    if parts[0].of.startswith("share of"):
        numbers = np.array([part.values.sum() for part in parts])
        return f"The parts sum to {panels.number_format(numbers)(numbers.sum())} ({parts[0].of})."
    axes = " and ".join(axis.kind for axis in parts[0].axes)
    return ", ".join(part.title for part in parts) + (f", by {axes}." if axes else ".")


def _rows(parts: Sequence[_Drawing], stretch: bool) -> list[list[panels.Panel]]:
    """Return rows of panels.

    Results with at most one axis become bars, and one chart contains the bars of all such results
    of the same `kind`.
    """
    scales = {}
    for kind in dict.fromkeys(part.kind for part in parts):
        values = np.concatenate([part.values.ravel() for part in parts if part.kind == kind])
        meaning, ground = kind
        share = meaning in _SHARES and not (values < 0).any()
        scales[kind] = (0.0, scale_end([values], stretch)) if share else signed_end(values, ground)
    maps: list[panels.Panel] = []
    rows: list[list[panels.Panel]] = []
    for part in parts:
        if part.values.ndim == 2:
            maps.append(_heat_map(part, scales[part.kind]))
        elif part.values.ndim > 2:
            rows += _small_maps(part, scales[part.kind])
    rows = [*in_rows(maps, 3), *rows]
    for kind, scale in scales.items():
        flat = [part for part in parts if part.values.ndim < 2 and part.kind == kind]
        if flat:
            rows.append(_bars(flat, scale, alone=len(parts) == 1))
    return rows


def _heat_map(part: _Drawing, scale: Scale, **options: Any) -> panels.HeatMap:
    rows, columns = part.axes
    return panels.HeatMap(
        title=part.title,
        explained=f"rows: {rows.kind}, columns: {columns.kind}",
        values=part.values,
        rows=rows.names,
        columns=columns.names,
        top=scale[1] if part.of in _SHARES and scale[0] == 0 else None,
        ground=part.ground,
        scale=scale,
        of=part.of,
        missing="no number",
        words=None if part.tokens is None else part.tokens.tolist(),
        **options,
    )


def _small_maps(part: _Drawing, scale: Scale) -> list[list[panels.Panel]]:
    """Return a small heat map for each index of the first axis, and a large map for one index."""
    count = len(part.values)
    maps = [part.at(number) for number in range(count)]
    # the last layer's matrix covers the whole model
    is_rollout = [axis.name for axis in part.axes[:2]] == ["layer", "query"]
    chosen = maps[count - 1 if is_rollout else part.strongest[0]]
    large = replace(chosen, title=f"{part.title}: {chosen.title}")
    best = strongest(np.array([sizes.max() for sizes in part.sizes]), MOST_MAPS)
    tiles: list[panels.Panel] = [
        _heat_map(replace(maps[number], tokens=None), scale, compact=True, shown_in=panels.PICTURE)
        for number in best
    ]
    form = panels.number_format(part.values)
    table = panels.Table(
        title=f"Strongest in each {part.axes[0].kind}",
        names=[maps[number].title for number in best],
        columns=[
            panels.Column(part.of, [form(float(maps[n].values[maps[n].strongest])) for n in best]),
            panels.Column("at", [maps[n].label(maps[n].strongest) for n in best], left=True),
        ],
    )
    said = "The small maps have the same rows, columns and colours as the large map."
    if len(best) < count:
        said += f" Shown: the {len(best)} of {count} maps with the largest numbers."
    return [
        [_heat_map(large, scale)],
        *in_rows(tiles, 6),
        [table, panels.Prose(text=said, shown_in=panels.PICTURE)],
    ]


def _bars(parts: Sequence[_Drawing], scale: Scale, *, alone: bool) -> list[panels.Panel]:
    """Return a bar chart of all numbers in `parts`; each part's array has at most one axis."""
    values = np.concatenate([part.values.ravel() for part in parts])
    names = [
        name if alone else f"{part.title} {name}".strip()
        for part in parts
        for name in (part.axes[0].names if part.axes else [""])
    ]
    sizes = np.concatenate([part.sizes.ravel() for part in parts])
    best = strongest(sizes, MOST_BARS)
    first = parts[0]
    bars = panels.Bars(
        title=first.title if alone else first.of,
        explained=first.of if alone else "",
        names=[names[number] for number in best],
        values=[float(values[number]) for number in best],
        form=panels.number_spec(values),
        top=scale[1] - first.ground,
        ground=first.ground,
    )
    if len(best) == len(values):
        return [bars]
    return [bars, panels.Prose(text=f"Shown: the {len(best)} largest of {len(values)} numbers.")]
