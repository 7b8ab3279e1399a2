"""BERT: learned positions, segment embeddings, and a norm after each part instead of before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.models.files.config import Config
from qkv.models.files.names import Family, projections
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head


def design(config: Config) -> Design:
    """The sizes of a BERT; keys that are left out have the values of bert-base-uncased."""
    activation = config.activation("hidden_act", "gelu")
    return encoder(
        config, token_types=config.size("type_vocab_size", 2), head=head(config, activation)
    )


BASE: Mapping[str, Any] = {
    **{"vocab_size": 30522, "hidden_size": 768, "num_attention_heads": 12},
    **{"num_hidden_layers": 12, "intermediate_size": 3072, "hidden_act": "gelu"},
}


def encoder(config: Config, base: Mapping[str, Any] = BASE, **others: Any) -> Design:
    """What BERT and the encoders after it share; `others` are what is different in one.

    `base` has the values of the keys that a config leaves out.
    """
    dim = config.size("hidden_size", base["hidden_size"])
    heads = config.heads(dim, base["num_attention_heads"])
    count = config.layers("num_hidden_layers", base["num_hidden_layers"])
    positions = config.size("max_position_embeddings", 512)
    config.only("position_embedding_type", "absolute")
    return Design(
        vocabulary=config.size("vocab_size", base["vocab_size"]),
        dim=dim,
        hidden=config.size("intermediate_size", base["intermediate_size"]),
        activation=config.activation("hidden_act", base["hidden_act"]),
        eps=config.positive("layer_norm_eps", 1e-12),
        layers=(Attention(heads, heads, dim // heads),) * count,
        max_seq_length=positions,
        positions=positions,
        embed_norm=True,
        norms="after",
        final_norm=False,
        **others,
    )


def head(
    config: Config, activation: str, *, vocabulary: int = 30522, pooled: str = "tanh"
) -> Head | None:
    """Words in the place of masked ones, or classes of the text or of each token.

    `activation` is that of the head over words, `pooled` that before a text's classes;
    `vocabulary` holds where the config is silent.
    """
    match config.head():
        case "MaskedLM" | "PreTraining":
            return Head(
                config.size("vocab_size", vocabulary),
                tied=config.flag("tie_word_embeddings", True),
                bias=True,
                dense=True,
                activation=activation,
                norm=True,
            )
        case "SequenceClassification":
            return Head(config.labels(), bias=True, pool="cls", dense=True, activation=pooled)
        case "TokenClassification":
            return Head(config.labels(), bias=True, classes=True)
    return None


BODY = {
    "embed": "embeddings.word_embeddings",
    "pos_embed": "embeddings.position_embeddings",
    "token_type_embed": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    **projections(
        "encoder.layer.*.attention.", "self.query", "self.key", "self.value", "output.dense"
    ),
    "blocks.*.norm1": "encoder.layer.*.attention.output.LayerNorm",
    "blocks.*.mlp.up_proj": "encoder.layer.*.intermediate.dense",
    "blocks.*.mlp.down_proj": "encoder.layer.*.output.dense",
    "blocks.*.norm2": "encoder.layer.*.output.LayerNorm",
}


def names(config: Config) -> dict[str, str]:
    """What the files call the parts."""
    match config.head():
        case "SequenceClassification":
            return {**BODY, "head.dense_proj": "pooler.dense", "head.out_proj": "classifier"}
        case "TokenClassification":
            return {**BODY, "head.out_proj": "classifier"}
    return {
        **BODY,
        "head.dense_proj": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head.out_proj": "cls.predictions.decoder",
    }


BERT = Family(
    model_type="bert",
    design=design,
    names=names,
    prefix="bert.",
    old={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    instead={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    body=("embeddings.", "encoder."),
    unused=(r"embeddings\.(position_ids|token_type_ids)",),
    harmless=(
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads"),
        *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
    ),
)
