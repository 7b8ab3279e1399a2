"""Llamas whose MLPs are mixtures of experts: Mixtral, Qwen3-MoE and GPT-OSS."""

from __future__ import annotations

from qkv.models.families import llama
from qkv.models.files.config import Config
from qkv.models.files.read import ModelError
from qkv.models.network.design import Design, GatedMixture, Mixture

# The values of keys that a config leaves out.
QWEN3_MOE_SIZES = {  # `Qwen3MoeConfig` in transformers
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
}
GPT_OSS_SIZES = {  # gpt-oss-120b
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
}
GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def counts(config: Config, experts: int, chosen: int) -> tuple[int, int]:
    """Return the number of experts, and of those that each token goes through.

    `experts` and `chosen` are the values of keys that the config leaves out.
    """
    key = config.spelling("num_local_experts", "num_experts")
    count, top_k = config.size(key, experts), config.size("num_experts_per_tok", chosen)
    if top_k > count:
        raise ModelError(
            f"{config.source}: num_experts_per_tok is {top_k} and {key} is {count}: a token goes "
            "through no more than there are"
        )
    return count, top_k


def mixtral(config: Config) -> Design:
    """Return the design of a Mixtral: a Mistral with experts in place of each MLP."""
    sizes = llama.MISTRAL_SIZES
    layer = llama.attention(config, sizes, base=1e6).within(config.size_or_none("sliding_window"))
    hidden = config.size("intermediate_size", sizes["intermediate_size"])
    eps = config.positive("rms_norm_eps", 1e-5)
    experts = GatedMixture(*counts(config, 8, 2), hidden)
    return llama.decoder(config, sizes, layer, eps=eps, experts=experts)


def qwen3_moe(config: Config) -> Design:
    """Return the design of a Qwen3-MoE: a Qwen3 with experts in place of some or all MLPs."""
    count = config.layers("num_hidden_layers", QWEN3_MOE_SIZES["num_hidden_layers"])
    window = config.size_or_none("sliding_window", 4096)
    window = window if config.flag("use_sliding_window", False) else None
    layer = llama.attention(config, QWEN3_MOE_SIZES, qk_norm="head").within(window)
    experts = GatedMixture(
        *counts(config, 128, 8),
        config.size("moe_intermediate_size", 768),
        normalized=config.flag("norm_topk_prob", False),
        without=_without_experts(config, count),
    )
    biases = llama.biases(config)
    return llama.decoder(config, QWEN3_MOE_SIZES, layer, experts=experts, **biases)


def _without_experts(config: Config, count: int) -> frozenset[int]:
    """Return the layers that have one MLP: those listed, and those between the steps."""
    key = "mlp_only_layers"
    listed, step = config.given(key, []), config.size("decoder_sparse_step", 1)
    fine = isinstance(listed, list) and all(type(number) is int for number in listed)
    config.need(fine, key, listed, "a list of the numbers of layers")
    return frozenset(n for n in range(count) if n in listed or (n + 1) % step)


def gpt_oss(config: Config) -> Design:
    """Return the design of a GPT-OSS: a sink in each head, which takes weight and gives nothing."""
    sizes = GPT_OSS_SIZES
    config.only("hidden_act", "silu")
    config.size("head_dim", sizes["head_dim"])  # null is not allowed
    full = llama.attention(config, sizes, base=150000.0, rope=GPT_OSS_ROPE, sinks=True)
    windows = llama.windows(config, sizes["num_hidden_layers"], every=2, width=128)
    count, top_k = counts(config, 128, 4)
    config.only("experts_per_token", top_k, None)  # older files repeat it under this key
    return llama.decoder(
        config,
        sizes,
        [full.within(width) for width in windows],
        eps=config.positive("rms_norm_eps", 1e-5),
        gated=False,
        mlp_bias=True,
        experts=Mixture(
            count,
            top_k,
            alpha=config.positive("swiglu_alpha", 1.702),
            limit=config.positive("swiglu_limit", 7.0),
        ),
        **llama.biases(config, True),
    )


_ROUTER = ("output_router_logits", "router_aux_loss_coef")
FAMILIES = (
    llama.family(
        "mixtral",
        mixtral,
        lambda config: {
            **llama.names(config),
            "blocks.*.mlp.router_proj": "layers.*.block_sparse_moe.gate",
            "blocks.*.mlp.experts.*.gate_proj": "layers.*.block_sparse_moe.experts.*.w1",
            "blocks.*.mlp.experts.*.up_proj": "layers.*.block_sparse_moe.experts.*.w3",
            "blocks.*.mlp.experts.*.down_proj": "layers.*.block_sparse_moe.experts.*.w2",
        },
        harmless=(*_ROUTER, "router_jitter_noise"),
    ),
    llama.family(
        "qwen3_moe",
        qwen3_moe,
        lambda config: {
            **llama.names(config, **llama.QK_NORMS),
            "blocks.*.mlp.router_proj": "layers.*.mlp.gate",
            **{
                f"blocks.*.mlp.experts.*.{name}": f"layers.*.mlp.experts.*.{name}"
                for name in ("gate_proj", "up_proj", "down_proj")
            },
        },
        harmless=_ROUTER,
    ),
    llama.family(
        "gpt_oss",
        gpt_oss,
        lambda config: {
            **llama.names(config),
            "blocks.*.attn.sinks": "layers.*.self_attn.sinks",
            "blocks.*.mlp.router_proj": "layers.*.mlp.router",
            "blocks.*.mlp.experts.gate_up": "layers.*.mlp.experts.gate_up_proj",
            "blocks.*.mlp.experts.gate_up_bias": "layers.*.mlp.experts.gate_up_proj_bias",
            "blocks.*.mlp.experts.down": "layers.*.mlp.experts.down_proj",
            "blocks.*.mlp.experts.down_bias": "layers.*.mlp.experts.down_proj_bias",
        },
        harmless=("initial_context_length", *_ROUTER),
    ),
)
