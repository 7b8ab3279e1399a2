"""Gemma 2: soft caps on scores and logits, windows in turn, norms before and after each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qkv.models.families import llama
from qkv.models.families.rope import Dynamic, read_rotary
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import Family, Fused
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head


def design(config: Config) -> Design:
    """The sizes of a Gemma 2; keys that are left out have the values of transformers' own."""
    count = config.layers("num_hidden_layers", 26)
    kinds = config.kinds([FULL if layer % 2 else SLIDING for layer in range(count)])
    config.only("use_bidirectional_attention", False, None)
    size, positions = config.size("head_dim", 256), config.size("max_position_embeddings", 8192)
    rotary = read_rotary(config, size, positions)
    scores = {
        "is_causal": True,
        "scale": config.positive("query_pre_attn_scalar", 256) ** -0.5,
        "softcap": config.positive_or_none("attn_logit_softcapping", 50.0),
    }
    heads = config.size("num_attention_heads", 8)
    kv_heads = llama.key_heads(config, heads, 4)
    full = Attention(heads, kv_heads, size, rotary=rotary, options=scores)
    return decoder(
        config,
        [
            replace(full, options={**scores, "window": (width - 1, 0)}) if width else full
            for width in config.windows(kinds, 4096)
        ],
        None if isinstance(rotary.scaling, Dynamic) else positions,
        vocabulary=256000,
        softcap=config.positive_or_none("final_logit_softcapping", 30.0),
    )


def decoder(
    config: Config,
    layers: Sequence[Attention],
    positions: int | None,
    *,
    vocabulary: int,
    softcap: float | None,
) -> Design:
    """What Gemma 2 and 3 share.

    Args:
        config: of the model.
        layers: how each one attends.
        positions: the most tokens of a text.
        vocabulary: its size, where the config does not say.
        softcap: of the logits.
    """
    dim, words = config.size("hidden_size", 2304), config.size("vocab_size", vocabulary)
    bias = config.flag("attention_bias", False)
    return Design(
        vocabulary=words,
        dim=dim,
        hidden=config.size("intermediate_size", 9216),
        activation=config.activation("hidden_activation", "gelu_pytorch_tanh"),
        eps=config.positive("rms_norm_eps", 1e-6),
        layers=tuple(layers),
        max_length=positions,
        embed_scale=dim**0.5,
        norms="both",
        rms=True,
        norm_offset=1.0,
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=False,
        head=head(config, words, softcap),
    )


def head(config: Config, vocabulary: int, softcap: float | None) -> Head | None:
    """That of Llama, with a soft cap on the logits of words."""
    found = llama.head(config, vocabulary, tied=True)
    if found is None or config.head() != "CausalLM":
        return found
    return replace(found, softcap=softcap)


def names(config: Config) -> Mapping[str, str | Fused]:
    """What the files call the parts: those of Llama, but for the norms."""
    return {
        **llama.names(config),
        "blocks.*.out_norm1": "layers.*.post_attention_layernorm",
        "blocks.*.norm2": "layers.*.pre_feedforward_layernorm",
        "blocks.*.out_norm2": "layers.*.post_feedforward_layernorm",
    }


GEMMA2 = Family(
    model_type="gemma2",
    design=design,
    names=names,
    prefix="model.",
    body=llama.BODY,
    unused=llama.UNUSED,
    harmless=("cache_implementation", "hidden_act"),
)
