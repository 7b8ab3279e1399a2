"""Gemma 1, 2 and 3: Llamas of wide heads, with norms that add one to their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qkv.models.families import llama
from qkv.models.families.rope import read_rotaries
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import Family, Fused
from qkv.models.network.design import Attention, Design

# The values of keys that a config leaves out.
GEMMA_SIZES = {  # Gemma 7B
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}
GEMMA2_SIZES = {  # `Gemma2Config` in transformers
    **GEMMA_SIZES,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
GEMMA3_SIZES = {**GEMMA2_SIZES, "vocab_size": 262208, "max_position_embeddings": 131072}


def gemma(config: Config) -> Design:
    """Return the design of a Gemma."""
    config.only("use_bidirectional_attention", False, None)
    config.size("head_dim", GEMMA_SIZES["head_dim"])  # null is not allowed
    activation = config.activation("hidden_act", "gelu_pytorch_tanh")
    if config.values.get("hidden_act") == "gelu":  # the first files name another than they mean
        activation = "gelu_tanh"
    layer = llama.attention(config, GEMMA_SIZES)
    return decoder(config, GEMMA_SIZES, layer, activation=activation)


def decoder(
    config: Config,
    sizes: Mapping[str, int],
    layers: Attention | Sequence[Attention],
    **fields: Any,
) -> Design:
    """Return the design that all Gemmas share; the arguments are those of `llama.decoder`."""
    shared: dict[str, Any] = {"norm_offset": 1.0, **llama.biases(config), **fields}
    plain = llama.decoder(config, sizes, layers, tied=True, **shared)
    return replace(plain, embed_scale=plain.dim**0.5)


def gemma2(config: Config) -> Design:
    """Return the design of a Gemma 2: soft caps on scores and logits, windows in turn."""
    config.only("use_bidirectional_attention", False, None)
    scores = {
        "is_causal": True,
        "scale": config.positive("query_pre_attn_scalar", 256) ** -0.5,
        "softcap": config.positive_or_none("attn_logit_softcapping", 50.0),
    }
    config.size("head_dim", GEMMA2_SIZES["head_dim"])  # null is not allowed
    full = llama.attention(config, GEMMA2_SIZES, options=scores)
    windows = llama.windows(config, GEMMA2_SIZES["num_hidden_layers"], every=2, width=4096)
    softcap = config.positive_or_none("final_logit_softcapping", 30.0)
    return capped_decoder(config, GEMMA2_SIZES, [full.within(width) for width in windows], softcap)


def capped_decoder(
    config: Config, sizes: Mapping[str, int], layers: Sequence[Attention], softcap: float | None
) -> Design:
    """Return the design that Gemma 2 and 3 share; `softcap` is that of the logits over words."""
    activation = config.activation("hidden_activation", "gelu_pytorch_tanh")
    plain = decoder(config, sizes, layers, activation=activation, norms="both")
    if plain.head is None or config.head() != "CausalLM":
        return plain
    return replace(plain, head=replace(plain.head, softcap=softcap))


def gemma2_names(config: Config, **others: str) -> Mapping[str, str | Fused]:
    """Return our names with those in files: Llama's, but for the norms; `others` differ too."""
    return {
        **llama.names(config),
        "blocks.*.out_norm1": "layers.*.post_attention_layernorm",
        "blocks.*.norm2": "layers.*.pre_feedforward_layernorm",
        "blocks.*.out_norm2": "layers.*.post_feedforward_layernorm",
        **others,
    }


def gemma3(config: Config) -> Design:
    """Return the design of a Gemma 3: one layer of six sees all; norms of queries and keys."""
    sizes = GEMMA3_SIZES
    config.only("attn_logit_softcapping", None)
    config.only("use_bidirectional_attention", False, None, True)
    head_dim = config.size("head_dim", sizes["head_dim"])
    positions = config.size("max_position_embeddings", sizes["max_position_embeddings"])
    bases = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
    rotary = read_rotaries(config, head_dim, positions, bases, scaled=(FULL,))
    scores = {
        "is_causal": not config.values.get("use_bidirectional_attention"),
        "scale": config.positive("query_pre_attn_scalar", 256) ** -0.5,
    }
    full = llama.attention(config, sizes, rotary=rotary[FULL], options=scores, qk_norm="head")
    local = replace(full, rotary=rotary[SLIDING])
    every = config.size("sliding_window_pattern", 6)
    windows = llama.windows(config, sizes["num_hidden_layers"], every=every, width=4096)
    layers = [local.within(width) if width else full for width in windows]
    softcap = config.positive_or_none("final_logit_softcapping")
    return capped_decoder(config, sizes, layers, softcap)


def gemma3_names(config: Config) -> Mapping[str, str | Fused]:
    """Return our names with those in files: Gemma 2's, and the norms of queries and keys."""
    return gemma2_names(config, **llama.QK_NORMS)


def gemma3_text(config: Config) -> Design:
    """Return the design of the text part of a Gemma 3 that also takes images."""
    inner = _text_config(config)
    inner.only("model_type", "gemma3_text")
    inner.only("use_bidirectional_attention", False, None)
    design = gemma3(inner)
    inner.finish(_GEMMA3_HARMLESS)
    return design


def _text_config(config: Config) -> Config:
    """Return the config of the text part, as that of a model of its own."""
    inner = config.table("text_config")
    generates = config.head() == "ConditionalGeneration"
    inner["architectures"] = ["Gemma3ForCausalLM" if generates else "Gemma3TextModel"]
    inner["tie_word_embeddings"] = config.flag("tie_word_embeddings", True)
    return Config(inner, f"{config.source}: text_config")


_GEMMA3_HARMLESS = ("_sliding_window_pattern", "cache_implementation", "hidden_act")
FAMILIES = (
    llama.family("gemma", gemma, harmless=("hidden_activation",)),
    llama.family("gemma2", gemma2, gemma2_names, harmless=("cache_implementation", "hidden_act")),
    llama.family("gemma3_text", gemma3, gemma3_names, harmless=_GEMMA3_HARMLESS),
    Family(
        model_type="gemma3",
        design=gemma3_text,
        names=lambda config: {
            **gemma3_names(_text_config(config)),
            "head.out_proj": "language_model.lm_head",
        },
        prefix="language_model.model.",
        body=llama.BODY,
        harmless=(
            *("boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image"),
            *("boi_token_id", "eoi_token_id", "image_token_id", "vision_config"),
        ),
    ),
)
