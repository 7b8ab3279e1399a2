"""GPT-OSS: a sink in each head that takes weight and gives nothing, and experts for the MLP."""

from __future__ import annotations

from qkv.models.families import llama
from qkv.models.files.config import Config
from qkv.models.files.read import ModelError
from qkv.models.network.design import Design
from qkv.models.network.mixture import Mixture

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


SIZES = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
}


def design(config: Config) -> Design:
    """The sizes of a GPT-OSS; keys that are left out have the values of gpt-oss-120b."""
    config.only("hidden_act", "silu")
    config.size("head_dim", SIZES["head_dim"])  # there is no other for null
    full = llama.attention(config, SIZES, base=150000.0, rope=YARN, sinks=True)
    windows = llama.windows(config, SIZES["num_hidden_layers"], every=2, width=128)
    bias = config.flag("attention_bias", True)
    return llama.decoder(
        config,
        SIZES,
        [full.within(width) for width in windows],
        eps=config.positive("rms_norm_eps", 1e-5),
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        experts=experts(config),
    )


def experts(config: Config) -> Mixture:
    """How many experts there are, and what each is held within."""
    count = config.size(config.spelling("num_local_experts", "num_experts"), 128)
    top_k = config.size("num_experts_per_tok", 4)
    config.only("experts_per_token", top_k, None)  # the same again, in older files
    if top_k > count:
        raise ModelError(
            f"{config.source}: num_experts_per_tok is {top_k} and num_local_experts is {count}: "
            "a token goes through no more than there are"
        )
    return Mixture(
        count,
        top_k,
        alpha=config.positive("swiglu_alpha", 1.702),
        limit=config.positive("swiglu_limit", 7.0),
    )


GPT_OSS = llama.family(
    "gpt_oss",
    design,
    lambda config: {
        **llama.names(config),
        "blocks.*.attn.sinks": "layers.*.self_attn.sinks",
        "blocks.*.mlp.router_proj": "layers.*.mlp.router",
        "blocks.*.mlp.experts.gate_up": "layers.*.mlp.experts.gate_up_proj",
        "blocks.*.mlp.experts.gate_up_bias": "layers.*.mlp.experts.gate_up_proj_bias",
        "blocks.*.mlp.experts.down": "layers.*.mlp.experts.down_proj",
        "blocks.*.mlp.experts.down_bias": "layers.*.mlp.experts.down_proj_bias",
    },
    harmless=("initial_context_length", "output_router_logits", "router_aux_loss_coef"),
)
