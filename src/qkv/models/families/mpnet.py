"""MPNet: a RoBERTa without segments, whose scores have a bias by the distance of two tokens."""

from __future__ import annotations

from dataclasses import replace

from qkv.models.families import bert
from qkv.models.families.roberta import ROBERTA, behind_padding, top
from qkv.models.files.config import Config
from qkv.models.files.names import projections
from qkv.models.network.design import Design
from qkv.models.network.relative_bias import Buckets

PADDING = 1  # whatever the config says
BUCKETS = Buckets(32, 128)


def design(config: Config) -> Design:
    """The sizes of an MPNet; keys that are left out have the values of mpnet-base."""
    config.only("relative_attention_num_buckets", BUCKETS.count)  # transformers has no others
    shared = bert.encoder(
        config,
        {**bert.BASE, "vocab_size": 30527},
        buckets=BUCKETS,
        head=bert.head(config, "gelu", vocabulary=30527),
    )
    return behind_padding(shared, PADDING, config)


def names(config: Config) -> dict[str, str]:
    """What the files call the parts: as BERT does, but for the attention."""
    return {
        **bert.BODY,
        "relative_bias": "encoder.relative_attention_bias",
        **projections("encoder.layer.*.attention.attn.", "q", "k", "v", "o"),
        "blocks.*.norm1": "encoder.layer.*.attention.LayerNorm",
        **top(config),
    }


MPNET = replace(
    ROBERTA,
    model_type="mpnet",
    design=design,
    names=names,
    prefix="mpnet.",
    unused=(r"embeddings\.position_ids",),
)
