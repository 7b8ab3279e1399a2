"""Models that read images, or compare images with texts; the tokens of an image are its patches."""

import math
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, ArrayLike, as_array, is_float
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.models._kinds import cannot
from qkv.models.files import Pixels
from qkv.models.files.names import Names, Storage
from qkv.models.files.read import PREPROCESSOR, PROCESSOR
from qkv.models.files.sentence import Sentence
from qkv.models.model import Model
from qkv.models.network.batch import Images, ImageTokens
from qkv.models.network.design import SCALE, DualDesign, VisionDesign
from qkv.models.network.pooling import to_length_one
from qkv.models.network.transformer import Transformer
from qkv.models.run.text_reader import TextReader
from qkv.models.sentence.vectors import similarity
from qkv.models.tasks.call import ModelOutput, output_of
from qkv.text import Tokenized, Tokenizer

Towers = Mapping[str, tuple[dict[str, Any], Names]]  # Each tower's config and parameter names.
FIRST = "[CLS]"  # The name of the token before the patches.


def patch_names(rows: int, columns: int) -> list[str]:
    """Return the names of an image's tokens: "[CLS]", then "row,column" for each patch.

    >>> patch_names(1, 2)
    ['[CLS]', '0,0', '0,1']
    """
    return [FIRST, *(f"{row},{column}" for row in range(rows) for column in range(columns))]


def grid_of(tokens: Sequence[str]) -> tuple[int, int] | None:
    """Return the numbers of rows and columns of patches, from the names of an image's tokens.

    Return None if the tokens are not patches of one image.

    >>> grid_of(patch_names(14, 16)), grid_of(["[CLS]", "1,5", "dogs"])
    ((14, 16), None)
    """
    row, _, column = tokens[-1].partition(",") if tokens else ("", "", "")
    if not (row.isdecimal() and column.isdecimal()):
        return None
    grid = int(row) + 1, int(column) + 1
    return grid if list(tokens) == patch_names(*grid) else None


def are_several(images: Any) -> bool:
    """Return whether the input consists of several images rather than a single image."""
    return isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4


@dataclass(frozen=True)
class ImageReader(TextReader):
    """Converts images to batches of patches.

    Attributes:
        pixels: resizes and scales images for the model; None if preprocessor_config.json is
            missing.
        design: the sizes of the model.
    """

    pixels: Pixels | None = None
    design: VisionDesign = field(kw_only=True)

    @property
    def knows_words(self) -> bool:
        """True: a word is the name of a patch, such as "0,1"."""
        return True

    def is_single(self, inputs: Any) -> bool:
        """Return whether the input is one image rather than several."""
        return not are_several(inputs)

    def need_tokenizer(self) -> Tokenizer:
        """Raise a ValueError: images have no tokenizer."""
        raise value_error(f"{self.name} {cannot(self.design, 'text')}")

    def prepare(self, images: Any) -> Array:
        """Convert images to pixel values, as `VisionModel.pixels` does."""
        images = images if are_several(images) else [images]
        for image in images:
            if isinstance(image, str | bytes | os.PathLike):
                raise type_error(
                    f"{self.name} reads images, and {str(image)[:40]!r} is not an image; pass "
                    f"a uint8 array (H, W, {self.design.channels}) or a Pillow image, for example "
                    "model.trace(PIL.Image.open(path))"
                )
        if self.pixels is None:
            raise value_error(
                f"{self.name} has no {PREPROCESSOR}, which describes how to prepare "
                f"images; pass pixel values {self.wants}"
            )
        prepared = [self.pixels(image) for image in images]
        self.check(prepared)
        if not prepared:
            raise value_error("no image is given; pass at least one")
        return np.stack(prepared)

    @property
    def wants(self) -> str:
        """The shape of pixel values that the model takes, for error messages."""
        design = self.design
        if design.any_size:
            return f"(B, {design.channels}, H, W), all of one size"
        return f"(B, {design.channels}, {design.image[0]}, {design.image[1]})"

    def grid_of(self, images: Array) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches in images (..., H, W)."""
        high, wide = self.design.patch
        return images.shape[-2] // high, images.shape[-1] // wide

    def check(self, images: Sequence[Array] | Array) -> None:
        """Raise a ValueError if an image does not have the shape that the model expects."""
        design = self.design
        shape = (design.channels, *design.image)
        if design.any_size and len(images):
            least = np.maximum(images[0].shape[-2:], design.patch).tolist()
            shape = (design.channels, least[0], least[1])
        for image in images:
            if image.shape != shape:
                takes = f"the model takes {shape}"
                if design.any_size:
                    takes = (
                        "all images of a call must have the same shape, with at least one "
                        f"patch: {shape}"
                    )
                raise value_error(f"an image has shape {image.shape}, but {takes}")

    def read(self, texts: Any, first: int = 0) -> Images:
        """Convert one image or several to a batch."""
        is_ready = isinstance(texts, np.ndarray) and is_float(texts.dtype) and texts.ndim == 4
        images = texts if is_ready else self.prepare(texts)
        self.check(images)
        if not len(images):
            raise value_error("no image is given; pass at least one")
        return self.patches(images)

    def patches(self, images: Sequence[Array] | Array) -> Images:
        """Convert the pixel values of images, (C, H, W) each, to a batch."""
        batch: list[Tokenized] = []
        for image in images:
            names = patch_names(*self.grid_of(image))
            count = len(names)
            special = [True] + [False] * (count - 1)
            batch.append(ImageTokens(np.arange(count), names, [(0, 0)] * count, special, image))
        return Images(batch, single=len(images) == 1)

    def subwords(self, word: str) -> list[list[str]]:
        """Return `[[word]]` if the word is the name of a patch; otherwise an empty list."""
        if self.design.any_size:
            row, _, column = word.partition(",")
            is_patch = row.isdecimal() and column.isdecimal()
            return [[word]] if is_patch or word == FIRST else []
        return [[word]] if word in patch_names(*self.design.grid) else []


class VisionModel(Model):
    """A model that reads images.

    `model(pixel_values)` takes the same pixel values as `transformers` models. `model.trace(image)`
    takes one image or several: uint8 arrays (H, W, C), Pillow images, or floats (B, C, H, W). The
    result is a `Trace`, as for a text. The tokens are "[CLS]" and then the patches by row and
    column, counted from 0: "0,0", "0,1", ... `hide=["0,1"]` masks the second patch. The model
    cannot read or write text.
    """

    design: VisionDesign
    reader: ImageReader

    def __init__(self, *, pixels: Pixels | None = None, **others: Any) -> None:
        self._pixels = pixels
        super().__init__(**others)
        self._json_files[PREPROCESSOR] = None if pixels is None else pixels.values
        self._json_files[PROCESSOR] = None  # the settings are all in preprocessor_config.json

    def _new_reader(self, name: str, tokenizer: Any, sentence: Sentence) -> ImageReader:
        return ImageReader(name, None, sentence, pixels=self._pixels, design=self.design)

    @property
    def grid(self) -> tuple[int, int]:
        """The number of rows and columns of patches in an image.

        If the model takes images of any size, this is the grid for the image size in config.json.
        """
        return self.design.grid

    @public_call("pixels")
    def pixels(self, images: Any) -> Array:
        """Convert images to pixel values for the model, as preprocessor_config.json describes.

        Images are resized to the model's size; then the pixel values are scaled and shifted.
        Resizing needs Pillow.

        Args:
            images: a uint8 array (H, W, C) or a Pillow image; or several images, as a list or as an
                array (B, H, W, C).

        Returns:
            (B, C, H, W), float32; B is 1 for one image.

        Raises:
            TypeError: a string or a path is given instead of an image.
            ValueError: an image has the wrong type or shape, or the model's folder has no
                preprocessor_config.json.
            ImportError: an image must be resized, but Pillow is not installed.
        """
        return self.reader.prepare(images)

    @public_call("model")
    def __call__(
        self,
        pixel_values: ArrayLike,
        attention_mask: ArrayLike | None = None,
        *,
        position_ids: ArrayLike | None = None,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> ModelOutput:
        """Run images.

        Args:
            pixel_values: floats (B, C, H, W), as `pixels` returns them.
            attention_mask: not supported, because images have no padding.
            position_ids: not supported, because the positions of patches are fixed.
            ablate: heads to ablate, as in `trace`.
            hide: the patches to mask, by name or position, as in `trace`.
            edit: activations to change, as in `trace`.

        Returns:
            `last_hidden_state` (B, N + 1, D): the vector of "[CLS]", then of N patches, row by row.
            For a classifier, the result also has `logits` (B, classes).

        Raises:
            TypeError: `pixel_values` are not floats.
            ValueError: `pixel_values` have the wrong shape, or an argument is not supported.
        """
        self.refuse(attention_mask=attention_mask, position_ids=position_ids)
        images, reader = as_array(pixel_values, name="pixel_values"), self.reader
        if not is_float(images.dtype):
            raise type_error(
                f"pixel_values are {images.dtype}; pass floats, as model.pixels(images) makes them"
            )
        if images.ndim != 4:
            raise value_error(f"pixel_values have shape {images.shape}; pass {reader.wants}")
        reader.check(images)
        edits = edits_of(edit, ablate, hide)
        batch, edited = self.check_edits(edits, reader.patches(images))
        network, rows = self.network, np.zeros((0, self.network.out_dim), self.network.dtype)
        if len(batch):
            rows, _ = network.run(batch, self.with_means(edited, batch))
        seen = np.ones((len(batch), 1 + math.prod(reader.grid_of(images))), bool)
        return output_of(network, rows, seen)


@dataclass(frozen=True, kw_only=True)
class DualOutput(ModelOutput):
    """The result of calling a `DualEncoder`; the inherited fields describe the texts.

    Attributes:
        text_embeds: (n, E), the vector of each text, of size E, scaled to length 1.
        image_embeds: (m, E), the vector of each image, scaled to length 1.
        logits_per_image: (m, n), how well each text describes each image: the cosine of the two
            vectors, multiplied by `exp(logit_scale)`.
    """

    text_embeds: Array
    image_embeds: Array
    logits_per_image: Array = field(repr=False)

    @property
    def logits_per_text(self) -> Array:
        """The transpose of `logits_per_image`: (n, m), one row per text."""
        return self.logits_per_image.T


class _Own(MutableMapping[str, Array]):
    """A view of the arrays whose names begin with `prefix`; its keys omit the prefix."""

    def __init__(self, arrays: MutableMapping[str, Array], prefix: str) -> None:
        self.arrays, self.prefix = arrays, prefix

    def __getitem__(self, name: str) -> Array:
        return self.arrays[self.prefix + name]

    def __setitem__(self, name: str, array: Array) -> None:
        self.arrays[self.prefix + name] = array

    def __delitem__(self, name: str) -> None:
        del self.arrays[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        all_names = (name for name in self.arrays if name.startswith(self.prefix))
        return (name.removeprefix(self.prefix) for name in all_names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class DualEncoder(Model):
    """A model that compares texts with images, such as CLIP.

    A dual encoder has two towers, `text` and `vision`: one model for texts and one for images. The
    towers share the arrays of the dual encoder. Each tower can be traced, edited, shown and saved
    like any model. The methods of `Model`, such as `encode` and `trace`, use the text tower.
    `encode_image` computes the vectors of images.
    """

    design: DualDesign

    def __init__(self, *, towers: Towers, pixels: Pixels | None = None, **others: Any) -> None:
        self._towers, self._pixels = towers, pixels
        self._made: tuple[Any, Model, VisionModel] | None = None
        super().__init__(**others)
        self.reader = replace(self.reader, has_images=True)
        self._json_files |= {PREPROCESSOR: pixels and pixels.values, PROCESSOR: None}

    def _build(self) -> None:
        arrays, made = self._weights.parameters, self._made
        if made is not None and made[0] is arrays:
            for tower in made[1:]:
                tower._build()
            return
        design = self.design
        beside: dict[str, Any] = {"tokenizer": self.tokenizer, "sentence": self.sentence}
        self._made = (
            arrays,
            Model(design=design.text, **beside, **self._tower("text")),
            VisionModel(design=design.vision, pixels=self._pixels, **self._tower("vision")),
        )

    def prepare(self) -> None:
        """Prepare both towers."""
        self.text.prepare()
        self.vision.prepare()
        super().prepare()

    def _tower(self, side: str) -> dict[str, Any]:
        """Return the arguments of a tower's model, except the argument `design`."""
        (config, names), prefix = self._towers[side], f"{side}."
        tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in self._weights.tensor_names.items()
            if name.startswith(prefix)
        }
        weights = Storage(names, _Own(self._weights.parameters, prefix), tensor_names=tensors)
        about = {"name": f"{self.name}.{side}", "notices": self.notices}
        return about | {"config": config, "weights": weights}

    @property
    def network(self) -> Transformer:
        """The text tower's network."""
        return self.text.network

    @property
    def text(self) -> Model:
        """The text tower; it holds the parameters whose names begin with "text."."""
        assert self._made is not None
        return self._made[1]

    @property
    def vision(self) -> VisionModel:
        """The image tower; it holds the parameters whose names begin with "vision."."""
        assert self._made is not None
        return self._made[2]

    @property
    def logit_scale(self) -> float:
        """The natural logarithm of the factor that turns cosines into logits."""
        return float(self._weights.parameters[SCALE])

    @public_call("encode")
    def encode_image(self, images: Any, **options: Any) -> Array:
        """Return a vector for each image, for cosine similarity with the vectors of texts.

        Args:
            images: images that `VisionModel.pixels` accepts, or the floats (B, C, H, W) that it
                returns.
            options: the options of `VisionModel.encode`, except options for texts.

        Returns:
            (n, E), or (E,) for a single image.

        Raises:
            TypeError: as in `VisionModel.encode`.
            ValueError: as in `VisionModel.encode`.
        """
        vectors: Array = self.vision.encode(images, **options)
        return vectors

    @public_call("logits")
    def logits_per_image(self, images: Any, texts: Any, *, batch_size: int = 32) -> Array:
        """Return logits that measure how well each text describes each image.

        Args:
            images: as in `encode_image`.
            texts: one text or several, as in `encode`.
            batch_size: the number of texts or images in a batch.

        Returns:
            (m, n) for m images and n texts: each pair's cosine, multiplied by `exp(logit_scale)`.
            `qkv.softmax` turns each image's logits into probabilities.

        Raises:
            TypeError: as in `encode` and `encode_image`.
            ValueError: as in `encode` and `encode_image`.

        Source:
            Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
            Supervision".
        """
        of_texts = self.encode(texts, batch_size=batch_size)
        return self._logits(self.encode_image(images, batch_size=batch_size), of_texts)

    def _logits(self, images: Array, texts: Array) -> Array:
        """Return the logits (m, n) for the vectors of images (m, E) and of texts (n, E)."""
        cosines = similarity(images, texts, "cosine")
        logits: Array = cosines * cosines.dtype.type(math.exp(self.logit_scale))
        return logits

    @public_call("model")
    def __call__(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        pixel_values: ArrayLike | None = None,
        *,
        position_ids: ArrayLike | None = None,
        ablate: Ablate = (),
        hide: Hide = (),
        edit: Edit = None,
    ) -> DualOutput:
        """Run the text model on token ids and the image model on pixel values.

        Args:
            input_ids: (n, T) integers, or (T,) for one text.
            attention_mask: an array of the same shape, with True or 1 at tokens, and False or 0
                at padding. By default, there is no padding.
            pixel_values: floats (m, C, H, W), as `model.vision.pixels` returns them.
            position_ids: (n, T) integers, the position of each token, as in `Model`.
            ablate: the heads of the text tower to ablate, as in `trace`.
            hide: the words or positions of the texts to mask, as in `trace`.
            edit: the activations of the text tower to change, as in `trace`.

        Raises:
            TypeError: as in `Model` and `VisionModel`.
            ValueError: `pixel_values` is missing, or `Model` or `VisionModel` rejects an argument.
        """
        if pixel_values is None:
            raise value_error(
                "pixel_values are missing: for texts alone, call model.text(input_ids, "
                "attention_mask) or encode(texts)"
            )
        options: dict[str, Any] = {"ablate": ablate, "hide": hide, "edit": edit}
        texts = super().__call__(input_ids, attention_mask, position_ids=position_ids, **options)
        images = self.vision(pixel_values).embeds
        assert texts.embeds is not None
        assert images is not None
        return DualOutput(
            texts.last_hidden_state,
            embeds=texts.embeds,
            text_embeds=to_length_one(texts.embeds),
            image_embeds=to_length_one(images),
            logits_per_image=self._logits(images, texts.embeds),
        )
