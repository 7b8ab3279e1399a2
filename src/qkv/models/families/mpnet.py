"""MPNet: a RoBERTa without segments, whose scores have a bias by the distance of two tokens."""

from __future__ import annotations

from qkv.models.families import bert
from qkv.models.families.roberta import behind_padding, top
from qkv.models.files.config import Config
from qkv.models.files.names import Family
from qkv.models.network.design import Design
from qkv.models.network.relative_bias import Buckets

PADDING = 1  # whatever the config says
BUCKETS = Buckets(32, 128)


def design(config: Config) -> Design:
    """The sizes of an MPNet; keys that are left out have the values of mpnet-base."""
    config.only("relative_attention_num_buckets", BUCKETS.count)  # transformers has no others
    shared = bert.encoder(
        config, 30527, buckets=BUCKETS, head=bert.head(config, "gelu", vocabulary=30527)
    )
    return behind_padding(shared, PADDING, config)


def names(config: Config) -> dict[str, str]:
    """What the files call the parts."""
    return {
        "embed": "embeddings.word_embeddings",
        "pos_embed": "embeddings.position_embeddings",
        "embed_norm": "embeddings.LayerNorm",
        "relative_bias": "encoder.relative_attention_bias",
        "blocks.*.attn.q_proj": "encoder.layer.*.attention.attn.q",
        "blocks.*.attn.k_proj": "encoder.layer.*.attention.attn.k",
        "blocks.*.attn.v_proj": "encoder.layer.*.attention.attn.v",
        "blocks.*.attn.out_proj": "encoder.layer.*.attention.attn.o",
        "blocks.*.norm1": "encoder.layer.*.attention.LayerNorm",
        "blocks.*.mlp.up_proj": "encoder.layer.*.intermediate.dense",
        "blocks.*.mlp.down_proj": "encoder.layer.*.output.dense",
        "blocks.*.norm2": "encoder.layer.*.output.LayerNorm",
        **top(config),
    }


MPNET = Family(
    model_type="mpnet",
    design=design,
    names=names,
    prefix="mpnet.",
    instead={"lm_head.decoder.bias": "lm_head.bias"},
    body=("embeddings.", "encoder."),
    unused=(r"embeddings\.position_ids",),
)
