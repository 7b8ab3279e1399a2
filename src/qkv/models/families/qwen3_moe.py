"""Qwen3-MoE: a Qwen3 with experts in the place of some or all MLPs."""

from __future__ import annotations

from qkv.models.families import llama
from qkv.models.families.mixtral import counts
from qkv.models.files.config import Config
from qkv.models.network.design import Design
from qkv.models.network.mixture import GatedMixture

SIZES = {  # of `Qwen3MoeConfig` in transformers
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
}


def design(config: Config) -> Design:
    """The sizes of a Qwen3-MoE; keys that are left out have the values that transformers has."""
    count = config.layers("num_hidden_layers", SIZES["num_hidden_layers"])
    window = config.size_or_none("sliding_window", 4096)
    window = window if config.flag("use_sliding_window", False) else None
    layer = llama.attention(config, SIZES, qk_norm="head").within(window)
    bias = config.flag("attention_bias", False)
    experts = GatedMixture(
        *counts(config, 128, 8),
        config.size("moe_intermediate_size", 768),
        normalized=config.flag("norm_topk_prob", False),
        without=without(config, count),
    )
    return llama.decoder(
        config, SIZES, [layer] * count, qkv_bias=bias, out_bias=bias, experts=experts
    )


def without(config: Config, count: int) -> frozenset[int]:
    """The layers that have one MLP: those that are named, and all but one of so many."""
    key = "mlp_only_layers"
    named, step = config.values.get(key), config.size("decoder_sparse_step", 1)
    config.used.add(key)
    fine = named is None or (isinstance(named, list) and all(type(one) is int for one in named))
    config.need(fine, key, named, "a list of the numbers of layers")
    return frozenset(n for n in range(count) if n in (named or ()) or (n + 1) % step)


QWEN3_MOE = llama.family(
    "qwen3_moe",
    design,
    lambda config: {
        **llama.names(config, **llama.QK_NORMS),
        "blocks.*.mlp.router_proj": "layers.*.mlp.gate",
        **{
            f"blocks.*.mlp.experts.*.{name}": f"layers.*.mlp.experts.*.{name}"
            for name in ("gate_proj", "up_proj", "down_proj")
        },
    },
    harmless=("output_router_logits", "router_aux_loss_coef"),
)
