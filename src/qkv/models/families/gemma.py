"""Gemma: a Llama of wide heads, whose norms add one to their weights and whose table is scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qkv.models.families import llama
from qkv.models.files.config import Config
from qkv.models.network.design import Attention, Design

SIZES = {  # of Gemma 7B
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}


def design(config: Config) -> Design:
    """The sizes of a Gemma; keys that are left out have the values of Gemma 7B."""
    config.only("use_bidirectional_attention", False, None)
    config.size("head_dim", SIZES["head_dim"])  # there is no other for null
    count = config.layers("num_hidden_layers", SIZES["num_hidden_layers"])
    given = config.activation("hidden_act", "gelu_pytorch_tanh")
    meant = (
        "gelu_tanh" if config.values.get("hidden_act") == "gelu" else given
    )  # as first published
    return decoder(config, SIZES, [llama.attention(config, SIZES)] * count, activation=meant)


def decoder(
    config: Config, sizes: Mapping[str, int], layers: Sequence[Attention], **others: Any
) -> Design:
    """What all Gemmas share.

    Args:
        config: of the model.
        sizes: what stands for keys that it leaves out.
        layers: how each one attends.
        others: fields of the design that are different.
    """
    bias = config.flag("attention_bias", False)
    shared: dict[str, Any] = {"norm_offset": 1.0, "qkv_bias": bias, "out_bias": bias, **others}
    found = llama.decoder(config, sizes, layers, tied=True, **shared)
    return replace(found, embed_scale=found.dim**0.5)


GEMMA = llama.family("gemma", design, harmless=("hidden_activation",))
