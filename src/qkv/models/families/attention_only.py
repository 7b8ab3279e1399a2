"""A decoder of attention alone, small enough to find out what each of its heads does."""

from __future__ import annotations

from qkv.models.files.config import Config
from qkv.models.files.names import PROJECTIONS, Family, projections
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head


def design(config: Config) -> Design:
    """The sizes; what is left out is that of a model that learns to copy within minutes."""
    dim = config.size("hidden_size", 128)
    heads = config.heads(dim, 4)
    vocabulary = config.size("vocab_size", 1)
    positions = config.size("max_position_embeddings", 64)
    attention = Attention(heads, heads, dim // heads, options={"is_causal": True})
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=0,
        activation="relu",  # there is no MLP that has one
        eps=1e-5,
        layers=(attention,) * config.layers("num_hidden_layers", 2),
        max_seq_length=positions,
        positions=positions,
        qkv_bias=False,
        out_bias=False,
        head=Head(vocabulary, tied=False),
    )


ATTENTION_ONLY = Family(
    model_type="qkv-attention-only",
    design=design,
    names={
        "embed": "embed",
        "pos_embed": "pos_embed",
        "blocks.*.norm1": "blocks.*.norm1",
        **projections("blocks.*.attn.", *PROJECTIONS),
        "final_norm": "final_norm",
        "head.out_proj": "head.out_proj",
    },
    body=("embed.", "pos_embed.", "blocks.", "final_norm."),
)
