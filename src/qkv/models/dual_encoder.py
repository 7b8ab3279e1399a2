"""Models that make vectors of texts and of images that can be compared: a tower for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from numpy.typing import ArrayLike

from qkv.arrays import Array
from qkv.edits import Ablate, Edit, Hide
from qkv.models.files.names import Names, Weights
from qkv.models.files.preprocessor import Pixels
from qkv.models.files.read import PREPROCESSOR, PROCESSOR
from qkv.models.files.sentence import Sentence
from qkv.models.model import Model, ModelOutput
from qkv.models.network.dual_design import SCALE, DualDesign
from qkv.models.network.finishing import to_length_one
from qkv.models.network.transformer import Transformer
from qkv.models.sentence.vectors import similarity
from qkv.models.vision import VisionModel
from qkv.text import Tokenized


@dataclass(frozen=True, kw_only=True)
class DualOutput(ModelOutput):
    """What calling a `DualEncoder` gives; the last vectors and `embeds` are those of the texts.

    Attributes:
        text_embeds: (n, E), a vector of each text, scaled to length 1.
        image_embeds: (m, E), one of each image.
        logits_per_image: (m, n), how well each text says what is on each image: the cosines of
            their vectors times `exp(logit_scale)`.
    """

    text_embeds: Array
    image_embeds: Array
    logits_per_image: Array = field(repr=False)

    @property
    def logits_per_text(self) -> Array:
        """The same by text, (n, m)."""
        return self.logits_per_image.T


class _Own(MutableMapping[str, Array]):
    """The arrays whose names begin with `prefix`, by the rest of their names."""

    def __init__(self, arrays: MutableMapping[str, Array], prefix: str) -> None:
        self.arrays, self.prefix = arrays, prefix

    def __getitem__(self, name: str) -> Array:
        return self.arrays[self.prefix + name]

    def __setitem__(self, name: str, array: Array) -> None:
        self.arrays[self.prefix + name] = array

    def __delitem__(self, name: str) -> NoReturn:
        raise TypeError(f"parameters: a model cannot be without {name}")

    def __iter__(self) -> Iterator[str]:
        all_names = (name for name in self.arrays if name.startswith(self.prefix))
        return (name.removeprefix(self.prefix) for name in all_names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class DualEncoder(Model):
    """A model that makes vectors of texts and of images that can be compared, as CLIP does.

    What `Model` does with texts is done by its tower for texts, `encode` and `trace` among them;
    `encode_image` makes the vectors of images. Each tower is a model of its own, on the same
    arrays, that is traced, edited, shown and saved as any other: `text` and `vision`.
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
        self._towers, self._pixels, self._said = towers, pixels, sentence
        self._made: tuple[Any, Model, VisionModel] | None = None
        super().__init__(sentence=sentence, **others)
        self._json_files |= {PREPROCESSOR: pixels and pixels.values, PROCESSOR: None}

    def _build(self) -> None:
        arrays, made = self._weights.parameters, self._made
        if made is not None and made[0] is arrays:
            for tower in made[1:]:
                tower._build()
            return
        design = self.design
        beside: dict[str, Any] = {"tokenizer": self.tokenizer, "sentence": self._said}
        self._made = (
            arrays,
            Model(design=design.text, **beside, **self._tower("text")),
            VisionModel(design=design.vision, pixels=self._pixels, **self._tower("vision")),
        )

    def _tower(self, side: str) -> dict[str, Any]:
        """What a tower is made of, beside its design."""
        (config, names), prefix = self._towers[side], f"{side}."
        own = {
            name.removeprefix(prefix): place
            for name, place in self._weights.places.items()
            if name.startswith(prefix)
        }
        weights = Weights(names, _Own(self._weights.parameters, prefix), places=own)
        about = {"name": f"{self.name}.{side}", "notices": self._notices}
        return about | {"config": config, "weights": weights}

    @property
    def _body(self) -> Transformer:  # type: ignore[override]  # it is the tower's, as it is now
        return self.text._body

    @property
    def text(self) -> Model:
        """The tower for texts, whose `parameters` are those of this model that begin so."""
        assert self._made is not None
        return self._made[1]

    @property
    def vision(self) -> VisionModel:
        """The tower for images, whose `parameters` are those of this model that begin so."""
        assert self._made is not None
        return self._made[2]

    @property
    def logit_scale(self) -> float:
        """The natural logarithm of what cosines are multiplied by to be logits."""
        return float(self._weights.parameters[SCALE])

    def encode(self, inputs: Any, **options: Any) -> Any:
        """A vector for each text, as `Model.encode`; those of images are `encode_image`'s."""
        _need_texts(inputs, "encode", self.name)
        return super().encode(inputs, **options)

    def encode_image(self, images: Any, **options: Any) -> Array:
        """A vector for each image, comparable with those of texts by their cosine.

        Args:
            images: as for `VisionModel.pixels`, or floats (B, C, H, W) as it gives them.
            options: those of `VisionModel.encode`.

        Returns:
            (n, E), or (E,) for an image that stands alone.

        Raises:
            TypeError: as for `VisionModel.encode`.
            ValueError: as for `VisionModel.encode`.
        """
        return self.vision.encode(images, **options)

    def logits_per_image(self, images: Any, texts: Any, *, batch_size: int = 32) -> Array:
        """How well each text says what is on each image; `qkv.softmax` of it gives probabilities.

        Args:
            images: as for `encode_image`.
            texts: one text or several, as for `encode`.
            batch_size: how many are run at once.

        Returns:
            (m, n) for m images and n texts: the cosines of their vectors times
            `exp(logit_scale)`.

        Raises:
            TypeError: as for `encode` and `encode_image`.
            ValueError: as for `encode` and `encode_image`.

        Source:
            Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
            Supervision".
        """
        words = self.encode(texts, batch_size=batch_size)
        return self._logits(self.encode_image(images, batch_size=batch_size), words)

    def _logits(self, images: Array, texts: Array) -> Array:
        """From vectors (m, E) and (n, E) to (m, n)."""
        cosines = similarity(images, texts, "cosine")
        found: Array = cosines * cosines.dtype.type(math.exp(self.logit_scale))
        return found

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
            attention_mask: of the same shape, True or 1 where there is a token; elsewhere is
                padding. Without it all are tokens.
            pixel_values: (m, C, H, W), floats, as `model.vision.pixels` makes them.
            position_ids: (n, T) integers, where each token stands, as for `Model`.
            ablate: heads of the tower for texts to go without, as in `trace`.
            hide: words of the texts, and places, as in `trace`.
            edit: activations of the tower for texts to change, as in `trace`.

        Raises:
            TypeError: as for `Model` and `VisionModel`.
            ValueError: there are no `pixel_values`; as for `Model` and `VisionModel`.
        """
        if pixel_values is None:
            raise ValueError(
                "model: pixel_values are missing: for texts alone call model.text(input_ids, "
                "attention_mask) or encode(texts)"
            )
        options: dict[str, Any] = {"ablate": ablate, "hide": hide, "edit": edit}
        found = super().__call__(input_ids, attention_mask, position_ids=position_ids, **options)
        looked_at = self.vision(pixel_values).embeds
        assert found.embeds is not None
        assert looked_at is not None
        return DualOutput(
            found.last_hidden_state,
            embeds=found.embeds,
            text_embeds=to_length_one(found.embeds),
            image_embeds=to_length_one(looked_at),
            logits_per_image=self._logits(looked_at, found.embeds),
        )

    def _given(
        self, texts: Any, call: str, first: int = 0
    ) -> tuple[bool, list[str], list[Tokenized]]:
        _need_texts(texts, call, self.name)
        return super()._given(texts, call, first)


def _need_texts(given: Any, call: str, name: str) -> None:
    """An error where images stand in the place of texts."""
    one = given[0] if isinstance(given, list | tuple) and given else given
    if hasattr(one, "convert") or getattr(one, "ndim", 0) > 2:
        raise TypeError(
            f"{call}: {name} reads texts here, not images: call encode_image(images), or "
            "model.vision, as model.vision.trace(image)"
        )
