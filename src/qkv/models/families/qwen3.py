"""Qwen3: a Qwen2 that normalises queries and keys in place of their biases."""

from __future__ import annotations

from qkv.models.families import qwen2
from qkv.models.families.llama import BODY, UNUSED, decoder, names
from qkv.models.files.config import Config
from qkv.models.files.names import Family
from qkv.models.network.design import Design

SIZES = {**qwen2.SIZES, "head_dim": 128}  # of `Qwen3Config` in transformers


def design(config: Config) -> Design:
    """The sizes of a Qwen3; keys that are left out have the values that transformers has."""
    bias = config.flag("attention_bias", False)
    return decoder(
        config, SIZES, windows=qwen2.windows(config), qk_norm=True, qkv_bias=bias, out_bias=bias
    )


QWEN3 = Family(
    model_type="qwen3",
    design=design,
    names=lambda config: names(
        config,
        **{
            "blocks.*.attn.q_norm": "layers.*.self_attn.q_norm",
            "blocks.*.attn.k_norm": "layers.*.self_attn.k_norm",
        },
    ),
    prefix="model.",
    body=BODY,
    unused=UNUSED,
)
