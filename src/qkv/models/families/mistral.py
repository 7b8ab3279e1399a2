"""Mistral: a Llama in which each token sees a window of those before it."""

from __future__ import annotations

from qkv.models.families import llama
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.read import ModelError
from qkv.models.network.design import Design

SIZES = {  # of Mistral 7B
    **llama.SIZES,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


def design(config: Config) -> Design:
    """The sizes of a Mistral; keys that are left out have the values of Mistral 7B."""
    count = config.layers("num_hidden_layers", SIZES["num_hidden_layers"])
    window = config.size_or_none("sliding_window", 4096)
    kind = FULL if window is None else SLIDING
    if set(config.kinds([kind] * count)) != {kind}:
        raise ModelError(
            f"{config.source}: layer_types has others than {kind!r} beside sliding_window "
            f"{window}: all layers of a mistral are alike"
        )
    layer = llama.attention(config, SIZES).within(window)
    return llama.decoder(config, SIZES, [layer] * count)


MISTRAL = llama.family("mistral", design)
