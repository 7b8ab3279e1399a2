"""BLOOM: no positions, but scores that fall with the distance (ALiBi), at another rate per head."""

from __future__ import annotations

from qkv.models.families import llama
from qkv.models.files.config import Config
from qkv.models.files.names import QKV, Family, Fused, fused
from qkv.models.network.design import Attention, Design


def design(config: Config) -> Design:
    """The sizes of a BLOOM; keys that are left out have the values of transformers' own."""
    width = config.spelling("n_embed", "hidden_size")
    dim = config.size(width, 64)
    heads = config.heads(dim, 8, key=config.spelling("n_head", "num_attention_heads"), of=width)
    vocabulary = config.size("vocab_size", 250880)
    config.only("n_inner", 4 * dim, None)
    config.only("apply_residual_connection_post_layernorm", False)
    if config.size("pretraining_tp", 1) > 1:  # the exact way leaves biases out
        config.only("slow_but_exact", False)
    else:
        config.flag("slow_but_exact", False)
    attention = Attention(heads, heads, dim // heads, options={"is_causal": True}, alibi=True)
    layers = config.layers(config.spelling("n_layer", "num_hidden_layers"), 2)
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=4 * dim,
        activation="gelu_bloom",
        eps=config.positive("layer_norm_epsilon", 1e-5),
        layers=(attention,) * layers,
        embed_norm=True,
        head=llama.head(config, vocabulary, tied=True),
    )


def names(config: Config) -> dict[str, str | Fused]:
    """What the files call the parts."""
    heads = config.size(config.spelling("n_head", "num_attention_heads"), 8)
    tops = {"SequenceClassification": "score", "TokenClassification": "classifier"}
    return {
        "embed": "word_embeddings",
        "embed_norm": "word_embeddings_layernorm",
        "blocks.*.norm1": "h.*.input_layernorm",
        **fused("h.*.self_attention.query_key_value", *QKV, groups=heads),
        "blocks.*.attn.out_proj": "h.*.self_attention.dense",
        "blocks.*.norm2": "h.*.post_attention_layernorm",
        "blocks.*.mlp.up_proj": "h.*.mlp.dense_h_to_4h",
        "blocks.*.mlp.down_proj": "h.*.mlp.dense_4h_to_h",
        "final_norm": "ln_f",
        "head.out_proj": tops.get(config.head(), "lm_head"),
    }


BLOOM = Family(
    model_type="bloom",
    design=design,
    names=names,
    prefix="transformer.",
    body=("word_embeddings.", "word_embeddings_layernorm.", "h.", "ln_f."),
    harmless=(
        *("attention_softmax_in_fp32", "bias_dropout_fusion", "hidden_dropout"),
        *("masked_softmax_fusion", "offset_alibi", "seq_length", "skip_bias_add"),
        *("skip_bias_add_qkv", "unk_token_id"),
    ),
)
