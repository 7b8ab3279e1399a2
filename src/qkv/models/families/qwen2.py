"""Qwen2: a Llama with biases to queries, keys and values, whose last layers may have windows."""

from __future__ import annotations

from qkv.models.families import llama
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention, Design

SIZES = {  # of `Qwen2Config` in transformers
    **llama.SIZES,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}


def design(config: Config) -> Design:
    """The sizes of a Qwen2; keys that are left out have the values that transformers has."""
    config.only("use_mrope", False, None)
    layers = windowed(config, llama.attention(config, SIZES))
    return llama.decoder(config, SIZES, layers, qkv_bias=True)


def windowed(config: Config, layer: Attention) -> list[Attention]:
    """All layers, which attend like this one, the last ones within a window if there is one."""
    count = config.layers("num_hidden_layers", SIZES["num_hidden_layers"])
    window = config.size_or_none("sliding_window", 4096)
    if not config.flag("use_sliding_window", False):
        window = None
    first = config.whole("max_window_layers", 28)
    kinds = config.kinds([FULL if window is None or n < first else SLIDING for n in range(count)])
    if window is None and SLIDING in kinds:
        raise ModelError(
            f"{config.source}: layer_types has 'sliding_attention' and there is no window: give "
            "sliding_window and set use_sliding_window to true"
        )
    return [layer.within(window) if kind == SLIDING else layer for kind in kinds]


QWEN2 = llama.family("qwen2", design)
