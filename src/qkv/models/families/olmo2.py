"""OLMo 2: norms behind the parts alone; queries and keys normalised, all heads side by side."""

from __future__ import annotations

from collections.abc import Mapping

from qkv.models.families import llama
from qkv.models.files.config import Config
from qkv.models.files.names import Fused
from qkv.models.network.design import Design

SIZES = {**llama.SIZES, "vocab_size": 50304}  # of `Olmo2Config` in transformers


def design(config: Config) -> Design:
    """The sizes of an OLMo 2; keys that are left out have the values that transformers has."""
    count = config.layers("num_hidden_layers", SIZES["num_hidden_layers"])
    bias = config.flag("attention_bias", False)
    return llama.decoder(
        config,
        SIZES,
        [llama.attention(config, SIZES, qk_norm="width")] * count,
        eps=config.positive("rms_norm_eps", 1e-5),
        norms="behind",
        qkv_bias=bias,
        out_bias=bias,
    )


def names(config: Config) -> Mapping[str, str | Fused]:
    """What the files call the parts: those of Llama, but for the norms."""
    return {
        **llama.names(config, **llama.QK_NORMS),
        "blocks.*.out_norm1": "layers.*.post_attention_layernorm",
        "blocks.*.out_norm2": "layers.*.post_feedforward_layernorm",
    }


OLMO2 = llama.family("olmo2", design, names)
