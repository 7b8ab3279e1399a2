"""Mixtral: a Mistral with experts in the place of each MLP, of which a token goes through a few."""

from __future__ import annotations

from qkv.models.families import llama
from qkv.models.files.config import Config
from qkv.models.files.read import ModelError
from qkv.models.network.design import Design
from qkv.models.network.mixture import GatedMixture

SIZES = {  # of Mixtral 8x7B
    **llama.SIZES,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


def design(config: Config) -> Design:
    """The sizes of a Mixtral; keys that are left out have the values of transformers' own."""
    layer = llama.attention(config, SIZES, base=1e6).within(config.size_or_none("sliding_window"))
    count = config.layers("num_hidden_layers", SIZES["num_hidden_layers"])
    hidden = config.size("intermediate_size", SIZES["intermediate_size"])
    return llama.decoder(
        config,
        SIZES,
        [layer] * count,
        eps=config.positive("rms_norm_eps", 1e-5),
        experts=GatedMixture(*counts(config, 8, 2), hidden),
    )


def counts(config: Config, experts: int, chosen: int) -> tuple[int, int]:
    """How many experts there are and how many a token goes through, by default so many."""
    key = config.spelling("num_local_experts", "num_experts")
    count, top_k = config.size(key, experts), config.size("num_experts_per_tok", chosen)
    if top_k > count:
        raise ModelError(
            f"{config.source}: num_experts_per_tok is {top_k} and {key} is {count}: a token goes "
            "through no more than there are"
        )
    return count, top_k


MIXTRAL = llama.family(
    "mixtral",
    design,
    lambda config: {
        **llama.names(config),
        "blocks.*.mlp.router_proj": "layers.*.block_sparse_moe.gate",
        "blocks.*.mlp.experts.*.gate_proj": "layers.*.block_sparse_moe.experts.*.w1",
        "blocks.*.mlp.experts.*.up_proj": "layers.*.block_sparse_moe.experts.*.w3",
        "blocks.*.mlp.experts.*.down_proj": "layers.*.block_sparse_moe.experts.*.w2",
    },
    harmless=("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
)
