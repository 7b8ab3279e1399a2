"""Qwen2: a Llama with biases to queries, keys and values, whose last layers may have windows."""

from __future__ import annotations

from qkv.models.families.llama import BODY, UNUSED, decoder, names
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import Family
from qkv.models.files.read import ModelError
from qkv.models.network.design import Design

SIZES = {  # of `Qwen2Config` in transformers
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}


def design(config: Config) -> Design:
    """The sizes of a Qwen2; keys that are left out have the values that transformers has."""
    config.only("use_mrope", False, None)
    return decoder(config, SIZES, windows=windows(config), qkv_bias=True)


def windows(config: Config) -> list[int | None]:
    """How many tokens a query of each layer sees, None for all."""
    count = config.layers("num_hidden_layers", SIZES["num_hidden_layers"])
    window = config.size_or_none("sliding_window", 4096)
    if not config.flag("use_sliding_window", False):
        window = None
    first = config.whole("max_window_layers", 28)
    kinds = config.kinds(
        [FULL if window is None or layer < first else SLIDING for layer in range(count)]
    )
    if window is None and SLIDING in kinds:
        raise ModelError(
            f"{config.source}: layer_types has 'sliding_attention' and there is no window: give "
            "sliding_window and set use_sliding_window to true"
        )
    return [window if kind == SLIDING else None for kind in kinds]


QWEN2 = Family(
    model_type="qwen2",
    design=design,
    names=names,
    prefix="model.",
    body=BODY,
    unused=UNUSED,
)
