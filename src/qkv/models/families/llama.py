"""Llama: rotary positions, grouped heads, a gated MLP, and norms that leave the mean alone."""

from __future__ import annotations

from typing import Any

from qkv.layers import Rotary
from qkv.models.config import Config
from qkv.models.design import Attention, Design
from qkv.models.family import Family, Fused
from qkv.models.head import Head


def design(config: Config) -> Design:
    """The sizes of a Llama; keys that are left out have the values of Llama 2 7B."""
    return decoder(config)


def decoder(config: Config, **others: Any) -> Design:
    """What Llama and the families after it share; `others` are what is different in one."""
    dim = config.size("hidden_size", 4096)
    heads = config.size("num_attention_heads", 32)
    size = config.size_or_none("head_dim") or dim // heads
    positions = config.size("max_position_embeddings", 2048)
    bias = config.flag("attention_bias", False)
    attention = Attention(
        heads,
        config.size_or_none("num_key_value_heads") or heads,
        size,
        rotary=Rotary(base=config.positive("rope_theta", 10000.0)),
        options={"is_causal": True},
    )
    vocabulary = config.size("vocab_size", 32000)
    settings: dict[str, Any] = {
        "vocabulary": vocabulary,
        "dim": dim,
        "hidden": config.size("intermediate_size", 11008),
        "activation": config.activation("hidden_act", "silu"),
        "eps": config.positive("rms_norm_eps", 1e-6),
        "layers": (attention,) * config.layers("num_hidden_layers", 32),
        "max_length": positions,
        "rms": True,
        "gated": True,
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": config.flag("mlp_bias", False),
        "head": head(config, vocabulary),
    }
    return Design(**{**settings, **others})


def head(config: Config, vocabulary: int, *, tied: bool = False) -> Head | None:
    """The next word, or a class of the text; `tied` is what holds where the config is silent."""
    if config.head() == "CausalLM":
        return Head(vocabulary, tied=config.flag("tie_word_embeddings", tied))
    if config.head() == "SequenceClassification":
        return Head(config.labels(), pool="last")
    return None


NAMES: dict[str, str | Fused] = {
    "embed": "embed_tokens",
    "blocks.*.norm1": "layers.*.input_layernorm",
    "blocks.*.attn.q_proj": "layers.*.self_attn.q_proj",
    "blocks.*.attn.k_proj": "layers.*.self_attn.k_proj",
    "blocks.*.attn.v_proj": "layers.*.self_attn.v_proj",
    "blocks.*.attn.out_proj": "layers.*.self_attn.o_proj",
    "blocks.*.norm2": "layers.*.post_attention_layernorm",
    "blocks.*.mlp.gate_proj": "layers.*.mlp.gate_proj",
    "blocks.*.mlp.up_proj": "layers.*.mlp.up_proj",
    "blocks.*.mlp.down_proj": "layers.*.mlp.down_proj",
    "final_norm": "norm",
}
BODY = ("embed_tokens.", "layers.", "norm.")


def names(config: Config, **others: str | Fused) -> dict[str, str | Fused]:
    """What the files of Llama and its followers call the parts; `others` differ in one."""
    top = "score" if config.head() == "SequenceClassification" else "lm_head"
    return {**NAMES, "head.out_proj": top, **others}


LLAMA = Family(
    model_type="llama",
    design=design,
    names=names,
    prefix="model.",
    body=BODY,
    unused=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"lm_head\.weight"),
    harmless=("pretraining_tp",),
)
