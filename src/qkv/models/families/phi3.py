"""Phi-3: a Llama with one tensor for Q, K and V, one for gate and up, and heads rotated in part."""

from __future__ import annotations

from collections.abc import Mapping

from qkv.models.families import llama
from qkv.models.families.rope import read_rotary
from qkv.models.files.config import Config
from qkv.models.files.names import QKV, Fused, fused
from qkv.models.network.design import Design

SIZES = {  # of Phi-3 mini
    **llama.SIZES,
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
}
# Early files call long RoPE by other names.
ROPE = {"default": "default", **dict.fromkeys(("longrope", "su", "yarn"), "longrope")}


def design(config: Config) -> Design:
    """The sizes of a Phi-3; keys that are left out have the values of Phi-3 mini."""
    config.only("attention_bias", False, None)
    plain = llama.attention(config, SIZES, rotary=None)
    rotary = read_rotary(
        config,
        plain.head_size,
        config.size("max_position_embeddings", SIZES["max_position_embeddings"]),
        partial=1.0,
        original=4096,
        spellings=ROPE,
    )
    layer = llama.attention(config, SIZES, rotary=rotary)
    layer = layer.within(config.size_or_none("sliding_window"))
    count = config.layers("num_hidden_layers", SIZES["num_hidden_layers"])
    return llama.decoder(config, SIZES, [layer] * count, eps=config.positive("rms_norm_eps", 1e-5))


def names(config: Config) -> Mapping[str, str | Fused]:
    """What the files call the parts: those of Llama, but for those that are one tensor."""
    heads = config.size("num_attention_heads", SIZES["num_attention_heads"])
    kv_heads = config.size_or_none("num_key_value_heads") or heads
    gated = ("blocks.*.mlp.gate_proj", "blocks.*.mlp.up_proj")
    return {
        **llama.names(config),
        **fused("layers.*.self_attn.qkv_proj", *QKV, shares=(heads, kv_heads, kv_heads)),
        **fused("layers.*.mlp.gate_up_proj", *gated),
    }


PHI3 = llama.family("phi3", design, names, harmless=("auto_map", "embd_pdrop", "resid_pdrop"))
