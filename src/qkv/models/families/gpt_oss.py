"""GPT-OSS: a sink in each head that takes weight and gives nothing, and experts for the MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.layers import Rotary
from qkv.models.families import llama
from qkv.models.families.rope import Dynamic, read_rotary
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import Family
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention, Design, Mixture

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def design(config: Config) -> Design:
    """The sizes of a GPT-OSS; keys that are left out have the values of gpt-oss-120b."""
    size, positions = config.size("head_dim", 64), config.size("max_position_embeddings", 131072)
    rotary = read_rotary(config, size, positions, base=150000.0, default=YARN)
    vocabulary = config.size("vocab_size", 201088)
    bias = config.flag("attention_bias", True)
    config.only("hidden_act", "silu")
    return Design(
        vocabulary=vocabulary,
        dim=config.size("hidden_size", 2880),
        hidden=config.size("intermediate_size", 2880),
        activation="silu",
        eps=config.positive("rms_norm_eps", 1e-5),
        layers=layers(config, size, rotary),
        max_length=None if isinstance(rotary.scaling, Dynamic) else positions,
        rms=True,
        qkv_bias=bias,
        out_bias=bias,
        experts=experts(config),
        head=llama.head(config, vocabulary),
    )


def layers(config: Config, size: int, rotary: Rotary) -> tuple[Attention, ...]:
    """Windows and full attention in turn, with a sink in each head."""
    count = config.layers("num_hidden_layers", 36)
    kinds = config.kinds([FULL if layer % 2 else SLIDING for layer in range(count)])
    heads = config.size("num_attention_heads", 64)
    options: dict[str, Any] = {"is_causal": True}
    full = Attention(
        heads,
        llama.key_heads(config, heads, 8),
        size,
        rotary=rotary,
        options=options,
        sinks=True,
    )
    return tuple(
        replace(full, options={**options, "window": (width - 1, 0)}) if width else full
        for width in config.windows(kinds, 128)
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


GPT_OSS = Family(
    model_type="gpt_oss",
    design=design,
    names=lambda config: {
        **llama.names(config),
        "blocks.*.attn.sinks": "layers.*.self_attn.sinks",
        "blocks.*.mlp.router_proj": "layers.*.mlp.router",
        "blocks.*.mlp.experts.gate_up": "layers.*.mlp.experts.gate_up_proj",
        "blocks.*.mlp.experts.gate_up_bias": "layers.*.mlp.experts.gate_up_proj_bias",
        "blocks.*.mlp.experts.down": "layers.*.mlp.experts.down_proj",
        "blocks.*.mlp.experts.down_bias": "layers.*.mlp.experts.down_proj_bias",
    },
    prefix="model.",
    body=llama.BODY,
    unused=llama.UNUSED,
    harmless=("initial_context_length", "output_router_logits", "router_aux_loss_coef"),
)
