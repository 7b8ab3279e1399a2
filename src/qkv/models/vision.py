"""Models that look at images: patches are their tokens."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array, is_float, whole_number
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.models.files.preprocessor import Pixels
from qkv.models.files.read import PREPROCESSOR, PROCESSOR
from qkv.models.model import Model, ModelOutput, output_of
from qkv.models.network.finishing import to_length_one
from qkv.models.network.vision_design import VisionDesign
from qkv.models.run.streams import parts
from qkv.progress import progress
from qkv.text import Tokenized

FIRST = "[CLS]"  # the token before the patches


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


@dataclass(frozen=True, eq=False)
class Picture(Tokenized):
    """An image as tokens: `ids` number them.

    Attributes:
        pixels: (C, H, W)
    """

    pixels: Array


class VisionModel(Model):
    """A model that looks at images.

    `model(pixel_values)` takes what `transformers` takes; `model.trace(image)` takes an image
    (H, W, C) of uint8 or one of Pillow's, or several, as `pixels` takes them, or floats
    (B, C, H, W) as they are. What it gives is a `Trace` like that of a text, whose tokens are
    "[CLS]" and then the patches by row and column, counted from 0: "0,0", "0,1", ...; so are those
    that `hide` names. It cannot read or write text.
    """

    design: VisionDesign

    def __init__(self, *, pixels: Pixels | None = None, **others: Any) -> None:
        super().__init__(**others)
        self._pixels = pixels
        self._json_files[PREPROCESSOR] = None if pixels is None else pixels.values
        self._json_files[PROCESSOR] = None  # the first says it all

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches there are below each other, and side by side.

        It is that of images of the size in the model's config, where others are taken too.
        """
        return self.design.grid

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
        images = images if several else [images]
        for image in images:
            if isinstance(image, str | bytes | os.PathLike):
                raise TypeError(
                    f"pixels: {self.name} looks at images, not at {str(image)[:40]!r}: in Python, "
                    f"give an array (H, W, {self.design.channels}) of uint8 or one of Pillow's "
                    "images, as model.trace(PIL.Image.open(path))"
                )
        if self._pixels is None:
            raise ValueError(
                f"pixels: {self.name} has no {PREPROCESSOR}, so what it wants done to an image is "
                f"not known: give pixel values {self._wants}"
            )
        found = [self._pixels(image) for image in images]
        self._check(found, "pixels")
        if not found:
            raise ValueError("pixels: there is no image: give at least one")
        return np.stack(found)

    def __call__(  # type: ignore[override]  # it is given images, not ids
        self,
        pixel_values: ArrayLike,
        *,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> ModelOutput:
        """Run images.

        Args:
            pixel_values: (B, C, H, W), floats, as `pixels` makes them.
            ablate: heads to go without, as in `trace`.
            hide: patches by their names, and places, that no token may look at, as in `trace`.
            edit: activations to change, as in `trace`.

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
        self._check(images, "model")
        batch = self._patches(images)
        edits = edits_of(edit, ablate, hide, call="model")
        edited = self._fit_with_means(edits, self._swapped(edits, batch))
        shown = np.ones((len(images), math.prod(self._grid_of(images)) + 1), bool)
        options = edited.packed(range(len(images)), batch)
        return output_of(self._body, self._through(images, **options)[0], shown)

    def encode(  # type: ignore[override]  # it is given images, not texts
        self,
        images: Any,
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> Array:
        """A vector for each image, by a model whose head gives such, as CLIP's does.

        Args:
            images: as for `pixels`, or floats (B, C, H, W) as it gives them.
            batch_size: how many are run at once.
            show_progress_bar: None for one on a terminal if it takes long.
            normalize_embeddings: whether vectors are scaled to length 1.
            ablate: heads to go without, as in `trace`.
            hide: patches by their names, and places, that no token may look at, as in `trace`.
            edit: activations to change, as in `trace`; a function gets the images that are run
                together, `at.texts` says which; arrays are indexed by image.

        Returns:
            (n, E) in the order of the images, (E,) for one that stands alone; float32, or float64
            for a model of that.

        Raises:
            TypeError: text, or the path of a file; as for `trace`.
            ValueError: the model's head gives no vectors, an image has another type or shape, or
                there is none; as for `trace`.
        """
        head = self._embedder
        if head is None:
            has = "no head" if self._head is None else "a head for classes"
            raise ValueError(
                f"encode: {self.name} looks at images and has {has}, not one that makes a vector "
                "of an image: take a token's, as model(pixel_values).last_hidden_state[:, 0]"
            )
        batch_size = whole_number(batch_size, call="encode", name="batch_size", least=1)
        several = isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4
        _, batch = self._texts(images, "encode")
        edits = edits_of(edit, ablate, hide, call="encode")
        edited = self._fit_with_means(edits, self._swapped(edits, batch), batch_size)
        found = []
        with progress("encode", len(batch), show_progress_bar) as advance:
            for part in parts(batch, batch_size):
                own = batch[part.start : part.stop]
                rows, cu_lengths = self._run(own, **edited.packed(part, own))
                found.append(head(rows, cu_lengths))
                advance(len(own))
        vectors = np.concatenate(found)
        vectors = to_length_one(vectors) if normalize_embeddings else vectors
        return vectors if several else vectors[0]

    @property
    def _wants(self) -> str:
        """The shape of pixel values, as errors say it."""
        design = self.design
        if design.any_size:
            return f"(B, {design.channels}, H, W), one size for all"
        return f"(B, {design.channels}, {design.image[0]}, {design.image[1]})"

    def _grid_of(self, images: Array) -> tuple[int, int]:
        """How many patches there are below each other, and side by side, in images (..., H, W)."""
        high, wide = self.design.patch
        return images.shape[-2] // high, images.shape[-1] // wide

    def _check(self, images: Sequence[Array] | Array, call: str) -> None:
        """An error unless each image has the shape that the model takes."""
        design = self.design
        shape = (design.channels, *design.image)
        if design.any_size and len(images):
            least = np.maximum(images[0].shape[-2:], design.patch).tolist()
            shape = (design.channels, least[0], least[1])
        for image in images:
            if image.shape != shape:
                takes = f"the model takes {shape}"
                if design.any_size:
                    takes = f"those of one call are of one size, of at least a patch: {shape}"
                raise ValueError(f"{call}: an image has shape {image.shape} and {takes}")

    def _texts(
        self, texts: Any, call: str = "trace", first: int = 0
    ) -> tuple[bool, list[Tokenized]]:
        given = isinstance(texts, np.ndarray) and is_float(texts.dtype) and texts.ndim == 4
        images = texts if given else self.pixels(texts)
        self._check(images, call)
        if not len(images):
            raise ValueError(f"{call}: there is no image: give at least one")
        return len(images) == 1, self._patches(images)

    def _patches(self, images: Iterable[Array]) -> list[Tokenized]:
        """Each image as tokens."""
        found: list[Tokenized] = []
        for image in images:
            names = patch_names(*self._grid_of(image))
            count = len(names)
            special = [True] + [False] * (count - 1)
            found.append(Picture(np.arange(count), names, [(0, 0)] * count, special, image))
        return found

    def gradient(self, *given: Any, **options: Any) -> dict[Any, Array]:
        """Not supported: the backward pass of a model begins at the tokens of a text."""
        found: dict[Any, Array] = self._need_tokenizer("gradient")
        return found

    @property
    def _knows_words(self) -> bool:
        return True  # the names of patches

    def _run(self, batch: Sequence[Tokenized], **options: Any) -> tuple[Array, Array]:
        images = np.stack([one.pixels for one in batch if isinstance(one, Picture)])
        return self._through(images, **options)

    def _through(self, images: Array, **options: Any) -> tuple[Array, Array]:
        """Vectors (B * (N + 1), D) of images, and where each image begins, (B + 1,)."""
        size = math.prod(self._grid_of(images)) + 1
        cu_lengths = np.arange(len(images) + 1) * size
        places = np.tile(np.arange(size), len(images))
        return self._body(images, places, cu_lengths, **options), cu_lengths

    def pieces(self, word: str) -> list[list[str]]:
        """A patch by its name."""
        if self.design.any_size:
            row, _, column = word.partition(",")
            is_patch = row.isdecimal() and column.isdecimal()
            return [[word]] if is_patch or word == FIRST else []
        return [[word]] if word in patch_names(*self.grid) else []

    def _need_tokenizer(self, call: str) -> Any:
        raise ValueError(
            f"{call}: {self.name} looks at images and knows no words: call model.trace(image) or "
            "model(pixel_values)"
        )
