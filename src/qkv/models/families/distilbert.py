"""DistilBERT: a BERT with names of its own, no segments, and classes read without a tanh."""

from __future__ import annotations

from qkv.models.families import bert
from qkv.models.files.config import Config
from qkv.models.files.names import Family, projections
from qkv.models.network.design import Attention, Design


def design(config: Config) -> Design:
    """The sizes of a DistilBERT; keys that are left out have the values of the base one."""
    width = config.spelling("dim", "hidden_size")
    dim = config.size(width, 768)
    heads = config.heads(dim, 12, key=config.spelling("n_heads", "num_attention_heads"), of=width)
    layers = config.layers(config.spelling("n_layers", "num_hidden_layers"), 6)
    vocabulary = config.size("vocab_size", 30522)
    positions = config.size("max_position_embeddings", 512)
    activation = config.activation("activation", "gelu")
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=config.size("hidden_dim", 3072),
        activation=activation,
        eps=1e-12,
        layers=(Attention(heads, heads, dim // heads),) * layers,
        max_seq_length=positions,
        positions=positions,
        embed_norm=True,
        norms="after",
        final_norm=False,
        head=bert.head(config, activation, pooled="relu"),
    )


def names(config: Config) -> dict[str, str]:
    """What the files call the parts."""
    masked = {
        "head.dense_proj": "vocab_transform",
        "head.norm": "vocab_layer_norm",
        "head.out_proj": "vocab_projector",
    }
    classes = {"head.dense_proj": "pre_classifier", "head.out_proj": "classifier"}
    return {
        "embed": "embeddings.word_embeddings",
        "pos_embed": "embeddings.position_embeddings",
        "embed_norm": "embeddings.LayerNorm",
        **projections("transformer.layer.*.attention.", "q_lin", "k_lin", "v_lin", "out_lin"),
        "blocks.*.norm1": "transformer.layer.*.sa_layer_norm",
        "blocks.*.mlp.up_proj": "transformer.layer.*.ffn.lin1",
        "blocks.*.mlp.down_proj": "transformer.layer.*.ffn.lin2",
        "blocks.*.norm2": "transformer.layer.*.output_layer_norm",
        **(classes if config.head().endswith("Classification") else masked),
    }


DISTILBERT = Family(
    model_type="distilbert",
    design=design,
    names=names,
    prefix="distilbert.",
    body=("embeddings.", "transformer."),
    unused=(r"embeddings\.position_ids",),
    harmless=(
        *("dropout", "qa_dropout", "seq_classif_dropout", "tie_weights_"),
        "sinusoidal_pos_embds",  # how the table of positions was first made
    ),
)
