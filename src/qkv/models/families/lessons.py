"""Small attention-only models: a single layer for lessons, and a decoder."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array, ArrayLike, Arrays
from qkv.embed import sinusoidal_positions
from qkv.layers import Block, MultiHeadAttention
from qkv.layers.base import Gradient
from qkv.layers.block import BlockSaved
from qkv.models.families.gpt import attention
from qkv.models.families.shared import read_families, stack
from qkv.models.files.config import Config
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head
from qkv.models.network.transformer import Transformer
from qkv.trace import Recorder
from qkv.trace.recorder import of_rows, unkept

MAX_LENGTH = 512


class AttentionOnly(Block):
    """A layer that consists only of attention, without residual connection, norm and MLP."""

    def __init__(self, attn: MultiHeadAttention) -> None:
        super().__init__(attn, None, None, None, post_norm=False)

    @property
    def hooks(self) -> list[str]:
        """The names of all activations that the layer records, with or without `top_k`."""
        attn = (f"attn.{hook}" for hook in self.attn.hooks)
        return ["hook_resid_pre", *attn, "hook_attn_out", "hook_resid_post"]

    def run(
        self, x: Array, *, cu: Array | None = None, record: Recorder | None = None, **options: Any
    ) -> tuple[Array, BlockSaved]:
        """Run the layer on packed rows (total, D), or on vectors (B, T, D) if a cache is given."""
        keep, inner = of_rows(record, cu) or unkept, record and record.under("attn.")
        x = keep("hook_resid_pre", x)
        out, saved = self.attn.run(x, cu=cu, record=inner, **options)
        out = keep("hook_attn_out", out)
        out = keep("hook_resid_post", out)
        return out, BlockSaved({"attn": saved}, x.shape, x.dtype)

    def backward(
        self, grad: ArrayLike, saved: BlockSaved, *, record: Recorder | None = None
    ) -> Gradient:
        """Run the attention's backward pass."""
        attn = saved.parts["attn"]
        keep = of_rows(record, attn.inputs.cu) or unkept
        inner = record and record.under("attn.")
        grad = keep("hook_attn_out", keep("hook_resid_post", np.asarray(grad)))
        back = self.attn.backward(grad, attn, record=inner)
        named = {f"attn.{name}": array for name, array in back.parameters.items()}
        return replace(back, x=keep("hook_resid_pre", back.x), parameters=named)


@dataclass(frozen=True, kw_only=True)
class Lesson(Design):
    """The design of a model for lessons: one attention layer without residual connection.

    Attributes:
        sinusoidal: whether the model adds sinusoidal positions.
    """

    sinusoidal: bool

    def build(self, parameters: Arrays) -> Transformer:
        """Return the model with these parameters."""
        body = super().build(parameters)
        body.layers = [AttentionOnly(layer.attn) for layer in body.layers]
        if self.sinusoidal:
            table = parameters["embed.weight"]
            positions = sinusoidal_positions(MAX_LENGTH, self.dim).astype(table.dtype)
            body.embedding.positions = positions
        return body


def lesson(config: Config) -> Lesson:
    """Return the design of a lesson's model."""
    _, heads, size = config.heads()
    options = {"is_causal": True} if config.flag("causal") else {}
    return Lesson(
        **stack(
            config,
            layers=(Attention(heads, heads, size, options=options),),
            **_ATTENTION_ALONE,
            max_seq_length=MAX_LENGTH,
            positions=0,
            first_norm=False,
            final_norm=False,
            sinusoidal=config.flag("positions"),
        )
    )


# Without an MLP, the activation has no effect.
_ATTENTION_ALONE: dict[str, Any] = {"hidden": 0, "activation": "relu", "eps": 1e-5}
_ATTENTION_ALONE |= {"qkv_bias": False, "out_bias": False}


def attention_only(config: Config) -> Design:
    """Return the design of a small attention-only decoder for the study of single heads.

    With the default sizes, the model learns to copy text within minutes.
    """
    top = Head(config.size("vocab_size"), tied=False)
    return Design(**stack(config, layers=attention(config), **_ATTENTION_ALONE, head=top))


FAMILIES = read_families(
    "lessons.toml", {"qkv-lesson": lesson, "qkv-attention-only": attention_only}
)
LESSON = FAMILIES[0]
