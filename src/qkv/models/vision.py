"""Models that look at images: patches are their tokens."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array, compute_type, is_float
from qkv.backend import linear
from qkv.backward import linear_grad
from qkv.extras import need
from qkv.files import named_folder, replacing
from qkv.layers.packed import keep
from qkv.models.files.config import Config
from qkv.models.files.find import PREPROCESSOR, ModelError, read_json
from qkv.models.model import Model, ModelOutput
from qkv.models.network.design import Design, Shape
from qkv.models.network.transformer import Embedding, EmbeddingSaved, Transformer, rows_back
from qkv.text import Tokenized
from qkv.trace import Recorder, Trace

FIRST = "[CLS]"  # the token before the patches
_MOST = 1e30  # of a mean or a deviation, which are float32
_PROCESSORS = (
    *("ViTImageProcessor", "ViTImageProcessorFast", "ViTImageProcessorPil", "ViTFeatureExtractor"),
)


@dataclass(frozen=True)
class VisionDesign:
    """Images, cut into patches, through blocks to vectors.

    Attributes:
        inner: the sizes and options of what follows the patches. Its vocabulary is one token, which
            stands before them.
        channels: C.
        image: the height and width of an image.
        patch: those of a patch; what is left of the image at the lower and right edge is not seen.
    """

    inner: Design
    channels: int
    image: tuple[int, int]
    patch: tuple[int, int]

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches there are below each other, and side by side."""
        return self.image[0] // self.patch[0], self.image[1] // self.patch[1]

    @property
    def max_length(self) -> None:
        """There is no limit but the size of the image."""
        return None

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Each parameter by our name and its shape; lazily, since a config can name any size."""
        rows, columns = self.grid
        yield "embed.weight", (1, 1, self.inner.dim)
        yield "patch_embed.weight", (self.inner.dim, self.channels, *self.patch)
        yield "patch_embed.bias", (self.inner.dim,)
        yield "pos_embed.weight", (1, rows * columns + 1, self.inner.dim)
        yield from (part for part in self.inner.shapes() if part[0] != "embed.weight")

    def build(self, parameters: Mapping[str, Array]) -> Transformer:
        """The model with these parameters, used where they stand."""
        first = parameters["embed.weight"][0]
        body = self.inner.build({**parameters, "embed.weight": first})
        body.embedding = PatchEmbedding(
            first,
            parameters["patch_embed.weight"],
            parameters["patch_embed.bias"],
            positions=parameters["pos_embed.weight"][0],
        )
        return body


class PatchEmbedding(Embedding):
    """Images to vectors: those of their patches behind that of a first token, each with its place.

    Args:
        first: (1, D), the first token.
        weight: (D, C, h, w), from a patch to its vector.
        bias: (D,)
        positions: (N + 1, D), for the first token and each patch, row by row.
    """

    def __init__(self, first: Array, weight: Array, bias: Array, *, positions: Array) -> None:
        super().__init__(first, positions=positions)
        self.patch = weight.shape[-2:]
        self.weight, self.bias = weight.reshape(len(weight), -1).T, bias

    def __call__(
        self,
        ids: Array,
        places: Array,
        cu_lengths: Array | None = None,
        record: Recorder | None = None,
    ) -> tuple[Array, EmbeddingSaved]:
        """Vectors (B * (N + 1), D) of images (B, C, H, W), and what `backward` needs."""
        patches = unfolded(ids, self.patch)  # (B, N, C * h * w)
        patches = patches.astype(compute_type(self.table.dtype))
        rows = linear(patches, self.weight, self.bias)
        first = np.broadcast_to(self.table, (len(rows), *self.table.shape))
        x = np.concatenate([first.astype(rows.dtype), rows], axis=1)  # (B, N + 1, D)
        x = x.reshape(-1, x.shape[-1])
        keep(record, "hook_embed", x, cu_lengths)
        assert self.positions is not None
        where = self.positions[places]
        keep(record, "hook_pos_embed", where, cu_lengths)
        x = x + where
        keep(record, "hook_full_embed", x, cu_lengths)
        return x, EmbeddingSaved(patches, places)

    def backward(self, grad: Array, saved: EmbeddingSaved) -> dict[str, Array]:
        """The backward pass, to the first token, the weight of the patches and the places."""
        assert self.positions is not None
        patches = saved.rows
        where = rows_back(grad, saved.places, self.positions.shape)
        rows = grad.reshape(len(patches), -1, grad.shape[-1])  # (B, N + 1, D)
        _, weight, bias = linear_grad(patches, self.weight, rows[:, 1:], bias=True)
        assert bias is not None
        channels = patches.shape[-1] // math.prod(self.patch)
        return {
            "embed.weight": rows[:, 0].sum(0)[None, None],
            "patch_embed.weight": weight.T.reshape(-1, channels, *self.patch),
            "patch_embed.bias": bias,
            "pos_embed.weight": where[None],
        }


def unfolded(images: Array, patch: tuple[int, ...]) -> Array:
    """Images (B, C, H, W) as their patches, (B, N, C * h * w), row by row.

    >>> unfolded(np.arange(16).reshape(1, 1, 4, 4), (2, 2)).tolist()
    [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]
    """
    high, wide = patch
    batch, channels, height, width = images.shape
    rows, columns = height // high, width // wide
    cut = images[..., : rows * high, : columns * wide]
    split = cut.reshape(batch, channels, rows, high, columns, wide)
    turned = np.moveaxis(split, (2, 4), (1, 2))  # (B, rows, columns, C, h, w)
    return turned.reshape(batch, rows * columns, channels * high * wide)


def patch_names(rows: int, columns: int) -> list[str]:
    """What the tokens of an image are called: the first one, then each patch by row and column.

    >>> patch_names(1, 2)
    ['[CLS]', '0,0', '0,1']
    """
    return [FIRST, *(f"{row},{column}" for row in range(rows) for column in range(columns))]


def grid_of(tokens: Sequence[str]) -> tuple[int, int] | None:
    """How many rows and columns of patches these tokens are; None if they are no image's.

    >>> grid_of(patch_names(14, 16)), grid_of(["[CLS]", "1,5", "dogs"])
    ((14, 16), None)
    """
    row, _, column = tokens[-1].partition(",") if tokens else ("", "", "")
    if not (row.isdecimal() and column.isdecimal()):
        return None
    grid = int(row) + 1, int(column) + 1
    return grid if list(tokens) == patch_names(*grid) else None


@dataclass(frozen=True)
class Pixels:
    """How an image becomes numbers, as preprocessor_config.json says.

    Attributes:
        size: the height and width that it is brought to; None leaves it as it is.
        resample: how, as Pillow numbers it: 2 is bilinear, 3 bicubic.
        factor: what pixels of 0 to 255 are multiplied by.
        mean: what is then taken from each channel.
        std: what it is then divided by.
        values: the file.
    """

    size: tuple[int, int] | None = (224, 224)
    resample: int = 2
    factor: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, design: VisionDesign) -> Pixels | None:
        """What the file in this folder says for a model of this design; None where there is none.

        Raises:
            ModelError: it is broken, or asks for something that qkv does not know.
        """
        path = folder / PREPROCESSOR
        if not path.is_file():
            return None
        values = read_json(path)
        config, channels = Config(values, str(path)), design.channels
        for key in ("image_processor_type", "feature_extractor_type"):
            config.only(key, *_PROCESSORS, None)
        for key in ("do_center_crop", "do_pad"):
            config.only(key, None, False)
        size = None
        if config.flag("do_resize", True):
            size = _size(values.get("size", 224), config)
            if size != design.image:
                raise ModelError(
                    f"{path}: size is {size[0]} x {size[1]} and the model takes images of "
                    f"{design.image[0]} x {design.image[1]}: both must be the same"
                )
        factor = 1.0
        if config.flag("do_rescale", True):
            factor = config.positive("rescale_factor", 1 / 255)
        mean, std = (0.0,) * channels, (1.0,) * channels
        if config.flag("do_normalize", True):
            mean = _numbers(values, "image_mean", channels, path)
            std = _numbers(values, "image_std", channels, path)
            if not np.array(std, np.float32).all():
                raise ModelError(f"{path}: image_std is {values['image_std']}: none may be 0")
        found = cls(size, config.whole("resample", 2), factor, mean, std, values)
        if found.resample > 5:
            raise ModelError(f"{path}: resample is {found.resample}: Pillow knows 0 to 5")
        return found

    def __call__(self, image: Any) -> Array:
        """An image (H, W, C) of uint8, or one of Pillow's, as numbers (C, H, W) of float32."""
        if hasattr(image, "convert"):
            image = np.asarray(image.convert("RGB" if len(self.mean) == 3 else "L"))
        pixels = as_array(image, call="pixels", name="image")
        channels = len(self.mean)
        if pixels.ndim == 2 and channels == 1:
            pixels = pixels[..., None]
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != channels:
            raise ValueError(
                f"pixels: the image is {pixels.dtype} {pixels.shape}: give uint8 (H, W, {channels})"
            )
        if self.size is not None and pixels.shape[:2] != self.size:
            pixels = _resized(pixels, self.size, self.resample)
        # in float64, then rounded, as transformers does it
        scaled = (pixels.astype(np.float64) * self.factor).astype(np.float32)
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        return np.moveaxis((scaled - mean) / std, -1, 0)


def _size(given: Any, config: Config) -> tuple[int, int]:
    sides = given if isinstance(given, dict) else {"height": given, "width": given}
    if set(sides) != {"height", "width"}:
        raise ModelError(
            f"{config.source}: size has {', '.join(map(str, sides))}, which qkv does not support: "
            "it knows height and width"
        )
    config.only("size", given)
    part = Config(sides, f"{config.source}: size")
    return part.size("height", 224), part.size("width", 224)


def _numbers(values: Mapping[str, Any], key: str, channels: int, path: Path) -> tuple[float, ...]:
    given = values.get(key, [0.5] * channels)
    numbers = given if isinstance(given, list) else [given] * channels
    fine = all(
        isinstance(one, int | float) and not isinstance(one, bool) and abs(one) <= _MOST
        for one in numbers
    )
    if len(numbers) != channels or not fine:
        raise ModelError(f"{path}: {key} is {given!r:.60}: it must be {channels} numbers")
    return tuple(float(one) for one in numbers)


def _resized(pixels: Array, size: tuple[int, int], resample: int) -> Array:
    """An image (H, W, C) of uint8 in another size, by Pillow."""
    try:
        pillow = need("PIL.Image", "plot")
    except ImportError as error:
        raise ImportError(
            f"pixels: the image is {pixels.shape[0]} x {pixels.shape[1]} and the model takes "
            f"{size[0]} x {size[1]}: give one of that size, or install Pillow: "
            "pip install 'qkv[plot]'"
        ) from error
    single = pixels.shape[-1] == 1
    image = pillow.fromarray(pixels[..., 0] if single else pixels)
    found: Array = np.asarray(image.resize(size[::-1], resample=resample))
    return found[..., None] if single else found


@dataclass(frozen=True, eq=False)
class Picture(Tokenized):
    """An image as tokens: `ids` number them.

    Attributes:
        pixels: (C, H, W)
    """

    pixels: Array


class VisionModel(Model):
    """A model that looks at images.

    `model(pixel_values)` takes what `transformers` takes; `model.trace(image)` takes an image as
    it is, and what it gives is a `Trace` like that of a text, whose tokens are "[CLS]" and then the
    patches by row and column: "0,0", "0,1", ... It cannot read or write text.
    """

    _last_is_normed: ClassVar[bool] = False

    def __init__(self, *, pixels: Pixels | None = None, **others: Any) -> None:
        super().__init__(**others)
        self._pixels = pixels

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches there are below each other, and side by side."""
        return self._plan.grid

    @property
    def _plan(self) -> VisionDesign:
        assert isinstance(self._design, VisionDesign)
        return self._design

    def pixels(self, images: Any) -> Array:
        """Images as numbers that the model takes, as its preprocessor_config.json says.

        They are brought to the model's size (which needs Pillow, unless they have it), scaled
        and shifted.

        Args:
            images: (H, W, C) of uint8, or one of Pillow's images; or several, as a list or
                (B, H, W, C).

        Returns:
            (B, C, H, W), float32; B is 1 for one image.

        Raises:
            TypeError: text, or the path of a file.
            ValueError: an image has another type or shape, or the model's folder has no
                preprocessor_config.json.
            ImportError: an image must be resized and Pillow is not installed.
        """
        several = isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4
        for image in images if several else [images]:
            if isinstance(image, str | bytes | os.PathLike):
                raise TypeError(
                    f"pixels: {self.name} looks at images, not at {str(image)[:40]!r}: in Python, "
                    f"give an array (H, W, {self._plan.channels}) of uint8 or one of Pillow's "
                    "images, as model.trace(PIL.Image.open(path))"
                )
        if self._pixels is None:
            raise ValueError(
                f"pixels: {self.name} has no {PREPROCESSOR}, so what it wants done to an image is "
                f"not known: give pixel values {self._wants}"
            )
        found = [self._pixels(image) for image in (images if several else [images])]
        for pixels in found:
            self._check(pixels, "pixels")
        if not found:
            raise ValueError("pixels: there is no image: give at least one")
        return np.stack(found)

    def __call__(self, pixel_values: ArrayLike) -> ModelOutput:  # type: ignore[override]
        """Run images.

        Args:
            pixel_values: (B, C, H, W), floats, as `pixels` makes them.

        Returns:
            `last_hidden_state` (B, N + 1, D), of the first token and of the patches row by row,
            and `logits` (B, classes) for a classifier.

        Raises:
            TypeError: numbers that are not floats.
            ValueError: another shape than the model takes.
        """
        images = as_array(pixel_values, call="model", name="pixel_values")
        if not is_float(images.dtype):
            raise TypeError(
                f"model: pixel_values are {images.dtype}: give floats, as model.pixels(images) "
                "makes them"
            )
        if images.ndim != 4:
            raise ValueError(f"model: pixel_values have shape {images.shape}: give {self._wants}")
        for image in images:
            self._check(image, "model")
        size = self.grid[0] * self.grid[1] + 1
        out = np.zeros((len(images), size, self.dim), self._body.dtype)
        head = self._body.head
        if not len(images):
            return ModelOutput(out)
        rows, cu_lengths = self._through(images)
        out[...] = rows.reshape(out.shape)
        return ModelOutput(out, None if head is None else head(rows, cu_lengths))

    def trace(
        self,
        texts: Any,
        *,
        layers: int | Iterable[int] | None = None,
        names: str | Iterable[str] | None = None,
        top_k: int | None = None,
        ablate: Iterable[tuple[int, int]] = (),
        hide: str | Iterable[str] = (),
    ) -> Trace:
        """Run images and keep every intermediate by its name.

        Args:
            texts: an image (H, W, C) of uint8 or one of Pillow's, or several, as `pixels` takes
                them; or floats (B, C, H, W) that are taken as they are.
            layers: as in `Model.trace`.
            names: as in `Model.trace`.
            top_k: as in `Model.trace`.
            ablate: heads to go without, as (layer, head).
            hide: patches that nobody may look at, by their names: "3,4" stands in row 3 and
                column 4, counted from 0.
        """
        return super().trace(
            texts, layers=layers, names=names, top_k=top_k, ablate=ablate, hide=hide
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model to a folder that `qkv.load` reads, and transformers too."""
        home = named_folder(folder, "save")
        if self._pixels is not None and not home.is_file():
            home.mkdir(parents=True, exist_ok=True)
            with replacing(home / PREPROCESSOR) as file:
                file.write(json.dumps(self._pixels.values, indent=2).encode())
        super().save(home)
        if self._pixels is None and (home / PREPROCESSOR).is_file():
            (home / PREPROCESSOR).unlink()  # that of another model

    @property
    def _wants(self) -> str:
        plan = self._plan
        return f"(B, {plan.channels}, {plan.image[0]}, {plan.image[1]})"

    def _check(self, image: Array, call: str) -> None:
        plan = self._plan
        if image.shape != (plan.channels, *plan.image):
            raise ValueError(
                f"{call}: an image has shape {image.shape} and the model takes "
                f"{(plan.channels, *plan.image)}"
            )

    def _texts(self, texts: Any) -> tuple[bool, list[Tokenized]]:
        given = isinstance(texts, np.ndarray) and is_float(texts.dtype) and texts.ndim == 4
        images = texts if given else self.pixels(texts)
        for image in images:
            self._check(image, "trace")
        if not len(images):
            raise ValueError("trace: there is no image: give at least one")
        names = patch_names(*self.grid)
        count = len(names)
        special = [True] + [False] * (count - 1)
        single = not isinstance(texts, list | tuple) and getattr(texts, "ndim", 0) != 4
        return single or len(images) == 1, [
            Picture(np.arange(count), names, [(0, 0)] * count, special, image) for image in images
        ]

    def _run(
        self,
        batch: Sequence[Tokenized],
        *,
        record: Recorder | None = None,
        top_k: int | None = None,
        masks: Mapping[int, Array] | None = None,
    ) -> tuple[Array, Array]:
        images = np.stack([one.pixels for one in batch if isinstance(one, Picture)])
        return self._through(images, record=record, top_k=top_k, masks=masks)

    def _through(self, images: Array, **others: Any) -> tuple[Array, Array]:
        """Vectors (B * (N + 1), D) of images, and where each image begins, (B + 1,)."""
        size = self.grid[0] * self.grid[1] + 1
        cu_lengths = np.arange(len(images) + 1) * size
        places = np.tile(np.arange(size), len(images))
        return self._body(images, places, cu_lengths, **others), cu_lengths

    def pieces(self, word: str) -> list[list[str]]:
        """A patch by its name."""
        return [[word]] if word in patch_names(*self.grid) else []

    def _need_tokenizer(self, call: str) -> Any:
        raise ValueError(
            f"{call}: {self.name} looks at images and knows no words: call model.trace(image) or "
            "model(pixel_values)"
        )
