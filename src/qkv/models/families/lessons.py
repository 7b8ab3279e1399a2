"""A small model with random weights for lessons: each step there is, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qkv.arrays import Array
from qkv.embed import sinusoidal_positions
from qkv.layers import SelfAttention
from qkv.layers.attention.forward import AttentionSaved
from qkv.layers.gradient import Gradient
from qkv.layers.packed import keep
from qkv.models.files.config import Config
from qkv.models.files.names import Family
from qkv.models.network.embedding import Embedding
from qkv.models.network.transformer import Transformer
from qkv.trace import Recorder

MAX_LENGTH = 512

_HOOKS = (
    "hook_resid_pre",
    *(f"attn.hook_{name}" for name in ("q", "k", "v", "attn_scores", "pattern", "z")),
    *("hook_attn_out", "hook_resid_post"),
)
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


class AttentionOnly:
    """A layer that is attention and nothing else: no residual connection, no norm, no MLP."""

    def __init__(self, attn: SelfAttention) -> None:
        self.attn = attn

    def run(
        self, x: Array, *, cu: Array | None = None, record: Recorder | None = None, **options: Any
    ) -> tuple[Array, AttentionSaved | None]:
        """From rows (total, D), or with a cache from (B, T, D), to the same."""
        inside = None if record is None else record.under("attn.")
        keep(record, "hook_resid_pre", x, cu)
        out, saved = self.attn.run(x, cu=cu, record=inside, **options)
        keep(record, "hook_attn_out", out, cu)
        keep(record, "hook_resid_post", out, cu)
        return out, saved

    def backward(self, grad: Array, saved: AttentionSaved) -> Gradient:
        """The backward pass of its attention."""
        back = self.attn.backward(grad, saved)
        named = {f"attn.{name}": array for name, array in back.parameters.items()}
        return replace(back, parameters=named)


@dataclass(frozen=True)
class Lesson:
    """The design of such a model."""

    vocabulary: int
    dim: int
    num_heads: int
    causal: bool
    positions: bool
    max_length: int = MAX_LENGTH

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each parameter and its shape."""
        yield "embed.weight", (self.vocabulary, self.dim)
        for name in _PROJECTIONS:
            yield f"blocks.0.attn.{name}.weight", (self.dim, self.dim)

    def build(self, parameters: Mapping[str, Array]) -> Transformer:
        """The model with these parameters."""
        table = parameters["embed.weight"]
        places = None
        if self.positions:
            places = sinusoidal_positions(MAX_LENGTH, self.dim).astype(table.dtype)
        attn = SelfAttention.from_parameters(
            {f"{name}.weight": parameters[f"blocks.0.attn.{name}.weight"] for name in _PROJECTIONS},
            num_heads=self.num_heads,
        )
        return Transformer(
            Embedding(table, positions=places),
            [AttentionOnly(attn)],
            options=[{"is_causal": True} if self.causal else {}],
            hooks=_HOOKS,
        )


def design(config: Config) -> Lesson:
    """The sizes of a lesson's model."""
    dim = config.size("hidden_size", 8)
    config.only("causal", False, True)
    config.only("positions", True, False)
    return Lesson(
        vocabulary=config.size("vocab_size", 1),
        dim=dim,
        num_heads=config.heads(dim, 2),
        causal=config.values.get("causal", False),
        positions=config.values.get("positions", True),
    )


LESSON = Family(
    model_type="qkv-lesson",
    design=design,
    names={
        "embed": "embed",
        **{f"blocks.*.attn.{name}": f"blocks.*.attn.{name}" for name in _PROJECTIONS},
    },
    body=("embed.", "blocks."),
    harmless=("seed",),
)
