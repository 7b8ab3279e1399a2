"""Gemma 3: one layer of six looks at all, with slower rotary positions; norms of Q and K."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qkv.models.families import gemma2, llama
from qkv.models.families.rope import read_rotaries
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import Family, Fused
from qkv.models.network.design import Design

SIZES = {**gemma2.SIZES, "vocab_size": 262208, "max_position_embeddings": 131072}


def design(config: Config) -> Design:
    """The sizes of a Gemma 3; keys that are left out have the values of transformers' own."""
    config.only("attn_logit_softcapping", None)
    config.only("use_bidirectional_attention", False, None, True)
    size, positions = (
        config.size(key, SIZES[key]) for key in ("head_dim", "max_position_embeddings")
    )
    bases = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
    rotary = read_rotaries(config, size, positions, bases, scaled=(FULL,))
    scores = {
        "is_causal": not config.values.get("use_bidirectional_attention"),
        "scale": config.positive("query_pre_attn_scalar", 256) ** -0.5,
    }
    full = llama.attention(config, SIZES, rotary=rotary[FULL], options=scores, qk_norm="head")
    local = replace(full, rotary=rotary[SLIDING])
    every = config.size("sliding_window_pattern", 6)
    windows = llama.windows(config, SIZES["num_hidden_layers"], every=every, width=4096)
    layers = [local.within(width) if width else full for width in windows]
    softcap = config.positive_or_none("final_logit_softcapping")
    return gemma2.decoder(config, SIZES, layers, softcap)


def beside_images(config: Config) -> Design:
    """The part for text of a Gemma 3 that also takes images, which are left aside."""
    inner = text(config)
    inner.only("model_type", "gemma3_text")
    inner.only("use_bidirectional_attention", False, None)
    found = design(inner)
    inner.finish(HARMLESS)
    return found


def text(config: Config) -> Config:
    """The part of a config that is about text, with what stands around it."""
    inner = config.table("text_config")
    generates = config.head() == "ConditionalGeneration"
    inner["architectures"] = ["Gemma3ForCausalLM" if generates else "Gemma3TextModel"]
    inner["tie_word_embeddings"] = config.flag("tie_word_embeddings", True)
    return Config(inner, f"{config.source}: text_config")


def names(config: Config) -> Mapping[str, str | Fused]:
    """What the files call the parts: those of Gemma 2, and the norms of queries and keys."""
    return gemma2.names(config, **llama.QK_NORMS)


HARMLESS = ("_sliding_window_pattern", "cache_implementation", "hidden_act")
GEMMA3_TEXT = llama.family("gemma3_text", design, names, harmless=HARMLESS)
GEMMA3 = Family(
    model_type="gemma3",
    design=beside_images,
    names=lambda config: {**names(text(config)), "head.out_proj": "language_model.lm_head"},
    prefix="language_model.model.",
    body=llama.BODY,
    harmless=(
        *("boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image"),
        *("boi_token_id", "eoi_token_id", "image_token_id", "vision_config"),
    ),
)
