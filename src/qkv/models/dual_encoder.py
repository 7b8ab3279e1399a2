"""Models that compare texts with images: one tower for texts and one tower for images."""

import math
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from qkv.arrays import Array, ArrayLike
from qkv.edits import Ablate, Edit, Hide
from qkv.models.files.names import Names, Weights
from qkv.models.files.preprocessor import Pixels
from qkv.models.files.read import PREPROCESSOR, PROCESSOR
from qkv.models.files.sentence import Sentence
from qkv.models.model import Model
from qkv.models.network.designs import SCALE, DualDesign
from qkv.models.network.pooling import to_length_one
from qkv.models.network.transformer import Transformer
from qkv.models.sentence.vectors import similarity
from qkv.models.tasks.call import ModelOutput
from qkv.models.vision import VisionModel


@dataclass(frozen=True, kw_only=True)
class DualOutput(ModelOutput):
    """The result of calling a `DualEncoder`; the inherited fields describe the texts.

    Attributes:
        text_embeds: (n, E), the vector of each text, scaled to length 1.
        image_embeds: (m, E), the vector of each image, scaled to length 1.
        logits_per_image: (m, n), how well each text describes each image: the cosines of their
            vectors times `exp(logit_scale)`.
    """

    text_embeds: Array
    image_embeds: Array
    logits_per_image: Array = field(repr=False)

    @property
    def logits_per_text(self) -> Array:
        """The transposed logits: (n, m), one row per text."""
        return self.logits_per_image.T


class _Own(MutableMapping[str, Array]):
    """A view of the arrays whose names begin with `prefix`; its keys omit the prefix."""

    def __init__(self, arrays: MutableMapping[str, Array], prefix: str) -> None:
        self.arrays, self.prefix = arrays, prefix

    def __getitem__(self, name: str) -> Array:
        return self.arrays[self.prefix + name]

    def __setitem__(self, name: str, array: Array) -> None:
        self.arrays[self.prefix + name] = array

    def __delitem__(self, name: str) -> NoReturn:
        raise TypeError(f"parameters: a model needs {name}")

    def __iter__(self) -> Iterator[str]:
        all_names = (name for name in self.arrays if name.startswith(self.prefix))
        return (name.removeprefix(self.prefix) for name in all_names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class DualEncoder(Model):
    """A model that compares texts with images, such as CLIP.

    Its two towers, `text` and `vision`, are models that share its arrays; each tower can be traced,
    edited, shown and saved like any model. The methods of `Model`, such as `encode` and `trace`,
    use the tower for texts. `encode_image` computes the vectors of images.
    """

    design: DualDesign

    def __init__(
        self,
        *,
        towers: Mapping[str, tuple[dict[str, Any], Names]],
        pixels: Pixels | None = None,
        sentence: Sentence | None = None,
        **others: Any,
    ) -> None:
        self._towers, self._pixels, self._read_by = towers, pixels, sentence
        self._made: tuple[Any, Model, VisionModel] | None = None
        super().__init__(sentence=sentence, **others)
        self.reader = replace(self.reader, has_images=True)
        self._json_files |= {PREPROCESSOR: pixels and pixels.values, PROCESSOR: None}

    def _build(self) -> None:
        arrays, made = self._weights.parameters, self._made
        if made is not None and made[0] is arrays:
            for tower in made[1:]:
                tower._build()
            return
        design = self.design
        beside: dict[str, Any] = {"tokenizer": self.tokenizer, "sentence": self._read_by}
        self._made = (
            arrays,
            Model(design=design.text, **beside, **self._tower("text")),
            VisionModel(design=design.vision, pixels=self._pixels, **self._tower("vision")),
        )

    def _tower(self, side: str) -> dict[str, Any]:
        """Return all arguments for a tower's model except the design."""
        (config, names), prefix = self._towers[side], f"{side}."
        own = {
            name.removeprefix(prefix): tensor
            for name, tensor in self._weights.tensor_names.items()
            if name.startswith(prefix)
        }
        weights = Weights(names, _Own(self._weights.parameters, prefix), tensor_names=own)
        about = {"name": f"{self.name}.{side}", "notices": self._notices}
        return about | {"config": config, "weights": weights}

    @property
    def network(self) -> Transformer:
        """The network of the tower for texts."""
        return self.text.network

    @property
    def text(self) -> Model:
        """The tower for texts; it holds the parameters whose names begin with "text."."""
        assert self._made is not None
        return self._made[1]

    @property
    def vision(self) -> VisionModel:
        """The tower for images; it holds the parameters whose names begin with "vision."."""
        assert self._made is not None
        return self._made[2]

    @property
    def logit_scale(self) -> float:
        """The natural logarithm of the factor that turns cosines into logits."""
        return float(self._weights.parameters[SCALE])

    def encode_image(self, images: Any, **options: Any) -> Array:
        """Return a vector for each image, for cosine similarity with the vectors of texts.

        Args:
            images: images that `VisionModel.pixels` accepts, or the floats (B, C, H, W) that it
                returns.
            options: the options of `VisionModel.encode`.

        Returns:
            (n, E), or (E,) for a single image.

        Raises:
            TypeError: as in `VisionModel.encode`.
            ValueError: as in `VisionModel.encode`.
        """
        vectors: Array = self.vision.encode(images, **options)
        return vectors

    def logits_per_image(self, images: Any, texts: Any, *, batch_size: int = 32) -> Array:
        """Return logits that measure how well each text describes each image.

        Args:
            images: as in `encode_image`.
            texts: one text or several, as in `encode`.
            batch_size: the number of texts or images in a batch.

        Returns:
            (m, n) for m images and n texts: the cosines of their vectors times `exp(logit_scale)`.
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
        """Run token ids and images.

        Args:
            input_ids: (n, T) integers, or (T,) for one text.
            attention_mask: of the same shape: True or 1 at tokens, False or 0 at padding. By
                default, there is no padding.
            pixel_values: floats (m, C, H, W), as `model.vision.pixels` returns them.
            position_ids: (n, T) integers, the position of each token, as in `Model`.
            ablate: the heads of the text tower to ablate, as in `trace`.
            hide: the words or positions of the texts to mask, as in `trace`.
            edit: the activations of the text tower to change, as in `trace`.

        Raises:
            TypeError: as in `Model` and `VisionModel`.
            ValueError: `pixel_values` is missing; also as in `Model` and `VisionModel`.
        """
        if pixel_values is None:
            raise ValueError(
                "model: pixel_values are missing: for texts alone call model.text(input_ids, "
                "attention_mask) or encode(texts)"
            )
        options: dict[str, Any] = {"ablate": ablate, "hide": hide, "edit": edit}
        texts = super().__call__(input_ids, attention_mask, position_ids=position_ids, **options)
        images = self.vision(pixel_values).embeds
        assert texts.embeds is not None
        return DualOutput(
            texts.last_hidden_state,
            embeds=texts.embeds,
            text_embeds=to_length_one(texts.embeds),
            image_embeds=to_length_one(images),
            logits_per_image=self._logits(images, texts.embeds),
        )
