"""Designs based on `Design`: for images, for an encoder and a decoder, and for two towers."""

from collections.abc import Iterator
from dataclasses import dataclass

from qkv.arrays import Arrays, Shape
from qkv.models.network.decoder import EncoderDecoder
from qkv.models.network.design import Design, under
from qkv.models.network.embedding import PatchEmbedding
from qkv.models.network.head import Head
from qkv.models.network.transformer import Transformer
from qkv.trace.trace import SIDES

TOWERS = ("text", "vision")
SCALE = "logit_scale"


@dataclass(frozen=True, kw_only=True)
class VisionDesign(Design):
    """A transformer for images: one token for the whole image, then one token per patch.

    Attributes:
        channels: C.
        image: the height and width of an image.
        patch: the height and width of a patch; pixels at the bottom and right edges that do not
            fill a patch are ignored.
        any_size: whether images of other sizes are allowed; their positions are interpolated.
        patch_bias: whether the linear layer from a patch to its vector has a bias.
        batched: whether files store the first token as (1, 1, D) instead of (D,), and the positions
            as (1, N + 1, D) instead of (N + 1, D).
    """

    last_is_normed: bool = False
    channels: int
    image: tuple[int, int]
    patch: tuple[int, int]
    any_size: bool = False
    patch_bias: bool = True
    batched: bool = True

    @property
    def grid(self) -> tuple[int, int]:
        """The rows and columns of patches."""
        return self.image[0] // self.patch[0], self.image[1] // self.patch[1]

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield each parameter's name and shape, lazily, because a config may give huge sizes."""
        rows, columns = self.grid
        positions = rows * columns + 1, self.dim
        yield "embed.weight", (1, 1, self.dim) if self.batched else (self.dim,)
        yield "patch_embed.weight", (self.dim, self.channels, *self.patch)
        if self.patch_bias:
            yield "patch_embed.bias", (self.dim,)
        yield "pos_embed.weight", (1, *positions) if self.batched else positions
        yield from (part for part in super().shapes() if part[0] != "embed.weight")

    def build(self, parameters: Arrays) -> Transformer:
        """Return the model with these parameters, without copying them."""
        body = super().build(parameters)
        body.embedding = PatchEmbedding(
            table=parameters["embed.weight"],
            weight=parameters["patch_embed.weight"],
            bias=parameters.get("patch_embed.bias"),
            positions=parameters["pos_embed.weight"],
            norm=self.norm(parameters, "embed_norm"),
            grid=self.grid if self.any_size else None,
        )
        return body


@dataclass(frozen=True)
class Seq2SeqDesign:
    """An encoder, a decoder whose layers attend to the encoder, and a shared token table.

    Attributes:
        encoder: the encoder's design; its head is not used.
        decoder: the decoder's design, with `cross` set.
        start: the id of the decoder's first token.
        head: the head, which reads the decoder's last vectors.
    """

    encoder: Design
    decoder: Design
    start: int
    head: Head | None = None

    @property
    def last_is_normed(self) -> bool:
        """Whether the last hidden states of encoder and decoder are normalised."""
        return self.encoder.last_is_normed

    @property
    def max_seq_length(self) -> int | None:
        """The maximum number of tokens in the encoder's text."""
        return self.encoder.max_seq_length

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield each parameter's name and shape, lazily, because a config may give huge sizes."""
        for side, design in zip(SIDES, (self.encoder, self.decoder), strict=True):
            for name, shape in design.shapes():
                if name != "embed.weight":
                    yield f"{side}.{name}", shape
                elif side == "encoder":
                    yield name, shape
        if self.head is not None:
            yield from self.head.shapes(self.decoder.dim)

    def build(self, parameters: Arrays) -> EncoderDecoder:
        """Return the encoder and the decoder with these parameters, without copying them."""
        table = {"embed.weight": parameters["embed.weight"]}
        encoder, decoder = (
            design.build(under(parameters, f"{side}.") | table)
            for side, design in zip(SIDES, (self.encoder, self.decoder), strict=True)
        )
        if self.head is not None:
            decoder.head = self.head.build(parameters, norm=self.decoder.norm)
        return EncoderDecoder(encoder, decoder, self.start)


@dataclass(frozen=True)
class DualDesign:
    """A transformer for texts and a transformer for images, whose heads give comparable vectors.

    Attributes:
        text: the transformer for texts.
        vision: the transformer for images.
    """

    text: Design
    vision: VisionDesign

    @property
    def head(self) -> Head | None:
        """The head of the transformer for texts."""
        return self.text.head

    @property
    def max_seq_length(self) -> int | None:
        """The maximum number of tokens in a text."""
        return self.text.max_seq_length

    @property
    def last_is_normed(self) -> bool:
        """Whether the last hidden state of a text is normalised by the final norm."""
        return self.text.last_is_normed

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield each parameter's name and shape, lazily, because a config may give huge sizes."""
        for tower, design in zip(TOWERS, (self.text, self.vision), strict=True):
            for name, shape in design.shapes():
                yield f"{tower}.{name}", shape
        yield SCALE, ()

    def build(self, parameters: Arrays) -> Transformer:
        """Return the transformer for texts with these parameters, without copying them."""
        return self.text.build(under(parameters, "text."))


AnyDesign = Design | Seq2SeqDesign | DualDesign
