"""Gemma 2: soft caps on scores and logits, windows in turn, norms before and after each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qkv.models.families import gemma, llama
from qkv.models.files.config import Config
from qkv.models.files.names import Fused
from qkv.models.network.design import Attention, Design

SIZES = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}


def design(config: Config) -> Design:
    """The sizes of a Gemma 2; keys that are left out have the values of transformers' own."""
    config.only("use_bidirectional_attention", False, None)
    scores = {
        "is_causal": True,
        "scale": config.positive("query_pre_attn_scalar", 256) ** -0.5,
        "softcap": config.positive_or_none("attn_logit_softcapping", 50.0),
    }
    config.size("head_dim", SIZES["head_dim"])  # there is no other for null
    full = llama.attention(config, SIZES, options=scores)
    windows = llama.windows(config, SIZES["num_hidden_layers"], every=2, width=4096)
    softcap = config.positive_or_none("final_logit_softcapping", 30.0)
    return decoder(config, SIZES, [full.within(width) for width in windows], softcap)


def decoder(
    config: Config, sizes: Mapping[str, int], layers: Sequence[Attention], softcap: float | None
) -> Design:
    """What Gemma 2 and 3 share.

    Args:
        config: of the model.
        sizes: what stands for keys that it leaves out.
        layers: how each one attends.
        softcap: of the logits over words.
    """
    found = gemma.decoder(
        config,
        sizes,
        layers,
        activation=config.activation("hidden_activation", "gelu_pytorch_tanh"),
        norms="both",
    )
    head = found.head
    if head is not None and config.head() == "CausalLM":
        head = replace(head, softcap=softcap)
    return replace(found, head=head)


def names(config: Config, **others: str) -> Mapping[str, str | Fused]:
    """What the files call the parts: those of Llama, but for the norms; `others` differ in one."""
    return {
        **llama.names(config),
        "blocks.*.out_norm1": "layers.*.post_attention_layernorm",
        "blocks.*.norm2": "layers.*.pre_feedforward_layernorm",
        "blocks.*.out_norm2": "layers.*.post_feedforward_layernorm",
        **others,
    }


GEMMA2 = llama.family("gemma2", design, names, harmless=("cache_implementation", "hidden_act"))
