"""A small model with random weights for lessons: each step there is, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array
from qkv.embed import sinusoidal_positions
from qkv.layers import Block, MultiHeadAttention
from qkv.layers.block import BlockSaved
from qkv.layers.gradient import Gradient
from qkv.layers.packed import of_rows
from qkv.models.files.config import Config
from qkv.models.files.names import PROJECTIONS, Family, projections
from qkv.models.network.design import Attention, Design
from qkv.models.network.transformer import Transformer
from qkv.trace import Recorder
from qkv.trace.recorder import unkept

MAX_LENGTH = 512


class AttentionOnly(Block):
    """A layer that is attention and nothing else: no residual connection, no norm, no MLP."""

    def __init__(self, attn: MultiHeadAttention) -> None:
        super().__init__(attn, None, None, None, post_norm=False)

    @property
    def hooks(self) -> list[str]:
        """The names that it may give a `Recorder`, those of `top_k` included."""
        attn = (f"attn.{hook}" for hook in self.attn.hooks)
        return ["hook_resid_pre", *attn, "hook_attn_out", "hook_resid_post"]

    def run(
        self, x: Array, *, cu: Array | None = None, record: Recorder | None = None, **options: Any
    ) -> tuple[Array, BlockSaved]:
        """From rows (total, D), or with a cache from (B, T, D), to the same."""
        keep, inner = of_rows(record, cu) or unkept, record and record.under("attn.")
        x = keep("hook_resid_pre", x)
        out, saved = self.attn.run(x, cu=cu, record=inner, **options)
        out = keep("hook_attn_out", out)
        out = keep("hook_resid_post", out)
        return out, BlockSaved({"attn": saved}, x.shape, x.dtype)

    def backward(
        self, grad: ArrayLike, saved: BlockSaved, *, record: Recorder | None = None
    ) -> Gradient:
        """The backward pass of its attention."""
        attn = saved.parts["attn"]
        keep = of_rows(record, attn.inputs.cu) or unkept
        inner = record and record.under("attn.")
        grad = keep("hook_attn_out", keep("hook_resid_post", np.asarray(grad)))
        back = self.attn.backward(grad, attn, record=inner)
        named = {f"attn.{name}": array for name, array in back.parameters.items()}
        return replace(back, x=keep("hook_resid_pre", back.x), parameters=named)


@dataclass(frozen=True, kw_only=True)
class Lesson(Design):
    """The design of such a model: one of attention alone, whose layers add nothing to their input.

    Attributes:
        sinusoidal: whether there are sinusoidal positions.
    """

    sinusoidal: bool

    def build(self, parameters: Mapping[str, Array]) -> Transformer:
        """The model with these parameters."""
        body = super().build(parameters)
        body.layers = [AttentionOnly(layer.attn) for layer in body.layers]
        if self.sinusoidal:
            table = parameters["embed.weight"]
            places = sinusoidal_positions(MAX_LENGTH, self.dim).astype(table.dtype)
            body.embedding.positions = places
        return body


def design(config: Config) -> Lesson:
    """The sizes of a lesson's model."""
    dim = config.size("hidden_size", 8)
    heads = config.heads(dim, 2)
    options = {"is_causal": True} if config.flag("causal", False) else {}
    return Lesson(
        vocabulary=config.size("vocab_size", 1),
        dim=dim,
        hidden=0,
        activation="relu",  # there is no MLP that has one
        eps=1e-5,
        layers=(Attention(heads, heads, dim // heads, options=options),),
        max_seq_length=MAX_LENGTH,
        first_norm=False,
        final_norm=False,
        qkv_bias=False,
        out_bias=False,
        sinusoidal=config.flag("positions", True),
    )


LESSON = Family(
    model_type="qkv-lesson",
    design=design,
    names={
        "embed": "embed",
        **projections("blocks.*.attn.", *PROJECTIONS),
    },
    body=("embed.", "blocks."),
    harmless=("seed",),
)
