"""Qwen3: a Qwen2 that normalises queries and keys in place of their biases."""

from __future__ import annotations

from qkv.models.families import llama, qwen2
from qkv.models.files.config import Config
from qkv.models.network.design import Design

SIZES = {**qwen2.SIZES, "head_dim": 128}  # of `Qwen3Config` in transformers


def design(config: Config) -> Design:
    """The sizes of a Qwen3; keys that are left out have the values that transformers has."""
    layers = qwen2.windowed(config, llama.attention(config, SIZES, qk_norm="head"))
    bias = config.flag("attention_bias", False)
    return llama.decoder(config, SIZES, layers, qkv_bias=bias, out_bias=bias)


QWEN3 = llama.family("qwen3", design, lambda config: llama.names(config, **llama.QK_NORMS))
