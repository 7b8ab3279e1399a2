"""BERT: learned positions, segment embeddings, and a norm after each part instead of before."""

from __future__ import annotations

from qkv.models.config import Config
from qkv.models.design import Attention, Design
from qkv.models.family import Family
from qkv.models.head import Head


def design(config: Config) -> Design:
    """The sizes of a BERT; keys that are left out have the values of bert-base-uncased."""
    dim = config.size("hidden_size", 768)
    heads = config.heads(dim, 12)
    vocabulary = config.size("vocab_size", 30522)
    positions = config.size("max_position_embeddings", 512)
    config.only("position_embedding_type", "absolute")
    activation = config.activation("hidden_act", "gelu")
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=config.size("intermediate_size", 3072),
        activation=activation,
        eps=config.positive("layer_norm_eps", 1e-12),
        layers=(Attention(heads, heads, dim // heads),) * config.layers("num_hidden_layers", 12),
        max_length=positions,
        positions=positions,
        token_types=config.size("type_vocab_size", 2),
        embed_norm=True,
        norms="after",
        final_norm=False,
        head=head(config, vocabulary, activation),
    )


def head(config: Config, vocabulary: int, activation: str) -> Head | None:
    """Words in the place of masked ones, or a class of the text."""
    if config.head() in ("MaskedLM", "PreTraining"):
        return Head(
            outputs=vocabulary,
            tied=config.flag("tie_word_embeddings", True),
            bias=True,
            dense=True,
            activation=activation,
            norm=True,
        )
    if config.head() == "SequenceClassification":
        return Head(config.labels(), bias=True, pool="first", dense=True, activation="tanh")
    return None


def names(config: Config) -> dict[str, str]:
    """What the files call the parts."""
    masked = {
        "head.dense_proj": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head.out_proj": "cls.predictions.decoder",
        "head.out_proj.bias": "cls.predictions.bias",
    }
    classes = {"head.dense_proj": "pooler.dense", "head.out_proj": "classifier"}
    return {
        "embed": "embeddings.word_embeddings",
        "pos_embed": "embeddings.position_embeddings",
        "token_type_embed": "embeddings.token_type_embeddings",
        "embed_norm": "embeddings.LayerNorm",
        "blocks.*.attn.q_proj": "encoder.layer.*.attention.self.query",
        "blocks.*.attn.k_proj": "encoder.layer.*.attention.self.key",
        "blocks.*.attn.v_proj": "encoder.layer.*.attention.self.value",
        "blocks.*.attn.out_proj": "encoder.layer.*.attention.output.dense",
        "blocks.*.norm1": "encoder.layer.*.attention.output.LayerNorm",
        "blocks.*.mlp.up_proj": "encoder.layer.*.intermediate.dense",
        "blocks.*.mlp.down_proj": "encoder.layer.*.output.dense",
        "blocks.*.norm2": "encoder.layer.*.output.LayerNorm",
        **(classes if config.head() == "SequenceClassification" else masked),
    }


BERT = Family(
    model_type="bert",
    design=design,
    names=names,
    prefix="bert.",
    old={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    body=("embeddings.", "encoder."),
    unused=(
        r"embeddings\.(position_ids|token_type_ids)",
        r"cls\.predictions\.decoder\.(bias|weight)",  # again what it is tied to
    ),
    harmless=(
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads"),
        *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
    ),
)
