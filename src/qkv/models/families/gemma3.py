"""Gemma 3: one layer of six looks at all, with slower rotary positions; norms of Q and K."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.models.families import gemma2, llama
from qkv.models.families.rope import Dynamic, read_rotaries
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import Family, Fused
from qkv.models.network.design import Attention, Design


def design(config: Config) -> Design:
    """The sizes of a Gemma 3; keys that are left out have the values of transformers' own."""
    config.only("attn_logit_softcapping", None)
    size, positions = config.size("head_dim", 256), config.size("max_position_embeddings", 131072)
    bases = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
    rotary = read_rotaries(config, size, positions, bases, scaled=(FULL,))
    config.only("use_bidirectional_attention", False, None, True)
    causal = not config.values.get("use_bidirectional_attention")
    scores: dict[str, Any] = {
        "is_causal": causal,
        "scale": config.positive("query_pre_attn_scalar", 256) ** -0.5,
    }
    heads = config.size("num_attention_heads", 8)
    full = Attention(
        heads,
        llama.key_heads(config, heads, 4),
        size,
        rotary=rotary[FULL],
        options=scores,
        qk_norm=True,
    )
    layers = []
    for width in windows(config):
        if width is None:
            layers.append(full)
        else:  # that of a model that looks to both sides is split between them
            window = (width - 1, 0) if causal else (width // 2, width // 2)
            layers.append(
                replace(full, rotary=rotary[SLIDING], options={**scores, "window": window})
            )
    return gemma2.decoder(
        config,
        layers,
        None if isinstance(rotary[FULL].scaling, Dynamic) else positions,
        vocabulary=262208,
        softcap=config.positive_or_none("final_logit_softcapping"),
    )


def windows(config: Config) -> tuple[int | None, ...]:
    """How wide the window of each layer is, None for all."""
    count = config.layers("num_hidden_layers", 26)
    every = config.size("sliding_window_pattern", 6)
    kinds = config.kinds([SLIDING if (n + 1) % every else FULL for n in range(count)])
    return config.windows(kinds, 4096)


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
    return {
        **gemma2.names(config),
        "blocks.*.attn.q_norm": "layers.*.self_attn.q_norm",
        "blocks.*.attn.k_norm": "layers.*.self_attn.k_norm",
    }


HARMLESS = ("_sliding_window_pattern", "cache_implementation", "hidden_act")
GEMMA3_TEXT = Family(
    model_type="gemma3_text",
    design=design,
    names=names,
    prefix="model.",
    body=llama.BODY,
    unused=llama.UNUSED,
    harmless=HARMLESS,
)
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
