"""A transformer that looks at images, before it has parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qkv.arrays import Array, Shape
from qkv.models.network.design import Design
from qkv.models.network.embedding import PatchEmbedding
from qkv.models.network.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class VisionDesign(Design):
    """Images, cut into patches, through blocks to vectors; the one token stands before the patches.

    Attributes:
        channels: C.
        image: the height and width of an image.
        patch: those of a patch; what is left of the image at the lower and right edge is not seen.
        any_size: whether images of other sizes are taken too, with positions that are interpolated.
        patch_bias: whether the linear layer from a patch to its vector has a bias.
        batched: whether files hold the first token and the positions as those of a batch of one
            image, (1, 1, D) and (1, N + 1, D), and not as (D,) and (N + 1, D).
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
        """How many patches there are below each other, and side by side."""
        return self.image[0] // self.patch[0], self.image[1] // self.patch[1]

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Each parameter by our name and its shape; lazily, since a config can name any size."""
        rows, columns = self.grid
        places = rows * columns + 1, self.dim
        yield "embed.weight", (1, 1, self.dim) if self.batched else (self.dim,)
        yield "patch_embed.weight", (self.dim, self.channels, *self.patch)
        if self.patch_bias:
            yield "patch_embed.bias", (self.dim,)
        yield "pos_embed.weight", (1, *places) if self.batched else places
        yield from (part for part in super().shapes() if part[0] != "embed.weight")

    def build(self, parameters: Mapping[str, Array]) -> Transformer:
        """The model with these parameters, used where they stand."""
        body = super().build(parameters)
        body.embedding = PatchEmbedding(
            parameters["embed.weight"],
            parameters["patch_embed.weight"],
            parameters.get("patch_embed.bias"),
            positions=parameters["pos_embed.weight"],
            norm=self.norm(parameters, "embed_norm"),
            grid=self.grid if self.any_size else None,
        )
        return body
