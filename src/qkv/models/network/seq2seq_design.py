"""An encoder and a decoder before they have parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qkv.arrays import Array, Shape
from qkv.models.network.decoder import EncoderDecoder
from qkv.models.network.design import Design, under
from qkv.models.network.head import Head
from qkv.trace.seq2seq import SIDES


@dataclass(frozen=True)
class Seq2SeqDesign:
    """An encoder, a decoder that looks at it in each layer, and one token table for both.

    Attributes:
        encoder: the sizes and options of the one; its head is not used.
        decoder: those of the other, which has `cross`.
        start: the id of the token that the decoder begins with.
        head: from the decoder's last vectors to logits.
    """

    encoder: Design
    decoder: Design
    start: int
    head: Head | None = None

    @property
    def last_is_normed(self) -> bool:
        """Whether the last hidden states of both are behind their final norms."""
        return self.encoder.last_is_normed

    @property
    def max_seq_length(self) -> int | None:
        """The most tokens of a text that is read."""
        return self.encoder.max_seq_length

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Each parameter by our name and its shape; lazily, since a config can name any size."""
        for side, design in zip(SIDES, (self.encoder, self.decoder), strict=True):
            for name, shape in design.shapes():
                if name != "embed.weight":
                    yield f"{side}.{name}", shape
                elif side == "encoder":
                    yield name, shape
        if self.head is not None:
            yield from self.head.shapes(self.decoder.dim)

    def build(self, parameters: Mapping[str, Array]) -> EncoderDecoder:
        """Both with these parameters, used where they stand."""
        table = {"embed.weight": parameters["embed.weight"]}
        encoder, decoder = (
            design.build(under(parameters, f"{side}.") | table)
            for side, design in zip(SIDES, (self.encoder, self.decoder), strict=True)
        )
        if self.head is not None:
            decoder.head = self.head.build(parameters, norm=self.decoder.norm)
        return EncoderDecoder(encoder, decoder, self.start)
