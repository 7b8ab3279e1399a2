"""Two towers, for texts and for images, before they have parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qkv.arrays import Array, Shape
from qkv.models.network.design import Design, under
from qkv.models.network.head import Head
from qkv.models.network.transformer import Transformer
from qkv.models.network.vision_design import VisionDesign

TOWERS = ("text", "vision")
SCALE = "logit_scale"


@dataclass(frozen=True)
class DualDesign:
    """A transformer for texts and one for images, whose heads give vectors that can be compared.

    Attributes:
        text: the sizes and options of the one.
        vision: those of the other.
    """

    text: Design
    vision: VisionDesign

    @property
    def head(self) -> Head | None:
        """That of the transformer for texts."""
        return self.text.head

    @property
    def max_seq_length(self) -> int | None:
        """The most tokens of a text."""
        return self.text.max_seq_length

    @property
    def last_is_normed(self) -> bool:
        """Whether the last hidden state of a text is behind the final norm."""
        return self.text.last_is_normed

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Each parameter by our name and its shape; lazily, since a config can name any size."""
        for tower, design in zip(TOWERS, (self.text, self.vision), strict=True):
            for name, shape in design.shapes():
                yield f"{tower}.{name}", shape
        yield SCALE, ()

    def build(self, parameters: Mapping[str, Array]) -> Transformer:
        """The transformer for texts with these parameters, used where they stand."""
        return self.text.build(under(parameters, "text."))
