"""Gemma 3: one layer of six looks at all, with slower rotary positions; norms of Q and K."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.models.config import Config
from qkv.models.design import Attention, Design
from qkv.models.families import gemma2, llama
from qkv.models.families.gemma2 import FULL, SLIDING
from qkv.models.family import Family
from qkv.models.rope import read_rotaries


def design(config: Config) -> Design:
    """The sizes of a Gemma 3; keys that are left out have the values of transformers' own."""
    count = config.layers("num_hidden_layers", 26)
    period = config.size("sliding_window_pattern", 6)
    kinds = config.kinds([SLIDING if (n + 1) % period else FULL for n in range(count)])
    config.only("attn_logit_softcapping", None)
    size, positions = config.size("head_dim", 256), config.size("max_position_embeddings", 131072)
    scores: dict[str, Any] = {"scale": config.positive("query_pre_attn_scalar", 256) ** -0.5}
    width = config.size("sliding_window", 4096)
    config.only("use_bidirectional_attention", False, None, True)
    if config.values.get("use_bidirectional_attention"):
        window = (width // 2, width // 2)
    else:
        scores["is_causal"], window = True, (width - 1, 0)
    bases = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
    rotary = read_rotaries(config, size, positions, bases, scaled=(FULL,))
    heads = config.size("num_attention_heads", 8)
    full = Attention(
        heads,
        llama.key_heads(config, heads, 4),
        size,
        rotary=rotary[FULL],
        options=scores,
        qk_norm=True,
    )
    near = replace(full, rotary=rotary[SLIDING], options={**scores, "window": window})
    attention = {FULL: full, SLIDING: near}
    softcap = config.positive_or_none("final_logit_softcapping")
    return gemma2.decoder(config, [attention[kind] for kind in kinds], positions, 262208, softcap)


GEMMA3 = Family(
    model_type="gemma3_text",
    design=design,
    names=lambda config: {
        **gemma2.names(config),
        "blocks.*.attn.q_norm": "layers.*.self_attn.q_norm",
        "blocks.*.attn.k_norm": "layers.*.self_attn.k_norm",
    },
    prefix="model.",
    body=llama.BODY,
    unused=llama.UNUSED,
    harmless=("_sliding_window_pattern", "cache_implementation", "hidden_act"),
)
