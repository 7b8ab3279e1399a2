"""Small models for lessons and studies: one layer, attention only, and a plain transformer."""

from dataclasses import dataclass
from typing import Any

from qkv.arrays import Arrays
from qkv.embed import sinusoidal_positions
from qkv.layers import Block, MultiHeadAttention
from qkv.layers.block import Run, Value
from qkv.models.families._gpt import attention
from qkv.models.families._shared import read_families, stack
from qkv.models.files.config import Config
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head
from qkv.models.network.transformer import Transformer

MAX_LENGTH = 512


def nothing_but_attention(x: Value, run: Run[Value]) -> Value:
    """Apply attention, without a residual connection, norm or MLP."""
    return run.keep("hook_resid_post", run.add(None, "attn", x))


class AttentionOnly(Block):
    """A layer that consists only of attention, without a residual connection, norm or MLP."""

    def __init__(self, attn: MultiHeadAttention) -> None:
        super().__init__(attn, None, None, None, post_norm=False)
        self.placement = nothing_but_attention


@dataclass(frozen=True, kw_only=True)
class Lesson(Design):
    """The design of a model for lessons: one attention layer without a residual connection.

    Attributes:
        sinusoidal: whether the model adds sinusoidal positions.
    """

    sinusoidal: bool

    def build(self, parameters: Arrays) -> Transformer:
        """Return the model with these parameters."""
        network = super().build(parameters)
        network.layers = [AttentionOnly(layer.attn) for layer in network.layers]
        if self.sinusoidal:
            table = parameters["embed.weight"]
            positions = sinusoidal_positions(MAX_LENGTH, self.dim).astype(table.dtype)
            network.embedding.positions = positions
        return network


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


def plain(config: Config) -> Design:
    """Return the design of a small pre-norm transformer, for studies of whole mechanisms.

    Each part can be switched off: with `"norms": false`, the model can hold a compiled program, and
    with one layer and fewer words in the output than in the input, it can learn arithmetic.

    Source:
        Lindner et al. 2023, "Tracr: Compiled Transformers as a Laboratory for Interpretability";
        Nanda et al. 2023, "Progress measures for grokking via mechanistic interpretability".
    """
    dim, heads, size = config.sized_heads()
    normed, biases = config.flag("norms"), config.flag("biases")
    outputs = config.size_or_none("output_vocab_size") or config.size("vocab_size")
    hidden = config.size_or_none("intermediate_size") or 4 * dim
    return Design(
        **stack(
            config,
            layers=Attention(heads, heads, size, options={"is_causal": config.flag("causal")}),
            hidden=hidden if config.flag("mlp") else 0,
            norms="before" if normed else "none",
            final_norm=normed,
            qkv_bias=biases,
            out_bias=biases,
            mlp_bias=biases,
            head=Head(outputs, bias=biases),
        )
    )


FAMILIES = read_families(
    "lessons.toml", {"qkv-lesson": lesson, "qkv-attention-only": attention_only, "qkv-plain": plain}
)
LESSON = FAMILIES[0]
