"""Llama and its variants: Mistral, Qwen2, Qwen3, OLMo 2 and Phi-3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qkv.models.families import gpt
from qkv.models.families.rope import read_rotary
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import QKV, Family, Fused, fused, projections
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention, Design
from qkv.models.network.rope_scaling import Dynamic

# The values of keys that a config leaves out.
SIZES: Mapping[str, int] = {  # Llama 2 7B
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
MISTRAL_SIZES = {  # Mistral 7B, and Mixtral 8x7B
    **SIZES,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
QWEN2_SIZES = {  # `Qwen2Config` in transformers
    **SIZES,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
QWEN3_SIZES = {**QWEN2_SIZES, "head_dim": 128}  # `Qwen3Config` in transformers
OLMO2_SIZES = {**SIZES, "vocab_size": 50304}  # `Olmo2Config` in transformers
PHI3_SIZES = {  # Phi-3 mini
    **SIZES,
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
}


def attention(
    config: Config,
    sizes: Mapping[str, int],
    *,
    base: float = 10000.0,
    rope: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Attention:
    """Return how a layer of Llama, or of a family after it, attends.

    Args:
        config: the model's config.
        sizes: the values of keys that it leaves out.
        base: the base of its rotary positions, unless the config says otherwise.
        rope: their `rope_parameters`, likewise.
        fields: fields of the attention that differ in this family.
    """
    heads = config.size("num_attention_heads", sizes["num_attention_heads"])
    size = config.size_or_none("head_dim", sizes.get("head_dim"))
    if size is None:
        dim = config.size("hidden_size", sizes["hidden_size"])
        size = dim // config.heads(dim, heads)
    kv_heads = config.size_or_none("num_key_value_heads", sizes.get("num_key_value_heads")) or heads
    if heads % kv_heads:
        raise ModelError(
            f"{config.source}: num_attention_heads is {heads} and num_key_value_heads is "
            f"{kv_heads}: the first must be a multiple of the second"
        )
    if "rotary" not in fields:
        positions = config.size("max_position_embeddings", sizes["max_position_embeddings"])
        fields["rotary"] = read_rotary(config, size, positions, base=base, default=rope)
    return Attention(heads, kv_heads, size, **{"options": {"is_causal": True}, **fields})


def windows(config: Config, layers: int, *, every: int, width: int) -> tuple[int | None, ...]:
    """Return the window of each layer in tokens; None for every layer that sees all tokens.

    Args:
        config: the model's config.
        layers: the number of layers, unless the config says otherwise.
        every: each layer whose number (from 1) is a multiple of this sees all tokens.
        width: the size of the windows, unless the config says otherwise.
    """
    count = config.layers("num_hidden_layers", layers)
    turns = [SLIDING if layer % every else FULL for layer in range(1, count + 1)]
    kinds = config.kinds(turns)
    window = config.size_or_none("sliding_window", width)
    if window is None and SLIDING in kinds:
        raise ModelError(
            f"{config.source}: sliding_window is None and layer_types has 'sliding_attention': "
            "give the window's size"
        )
    return tuple(window if kind == SLIDING else None for kind in kinds)


def decoder(
    config: Config,
    sizes: Mapping[str, int],
    layers: Attention | Sequence[Attention],
    *,
    tied: bool = False,
    **fields: Any,
) -> Design:
    """Return the design that Llama and the families after it share.

    Args:
        config: the model's config.
        sizes: the values of keys that it leaves out.
        layers: how each layer attends, or how all of them do.
        tied: whether the output matrix is the token table, unless the config says otherwise.
        fields: fields of the design that differ in this family.
    """
    values = {key: config.size(key, sizes[key]) for key in SIZES}
    if isinstance(layers, Attention):
        layers = (layers,) * config.layers("num_hidden_layers", sizes["num_hidden_layers"])
    dynamic = any(one.rotary and isinstance(one.rotary.scaling, Dynamic) for one in layers)
    plain = Design(
        vocabulary=values["vocab_size"],
        dim=values["hidden_size"],
        hidden=values["intermediate_size"],
        activation=fields.get("activation") or config.activation("hidden_act", "silu"),
        eps=fields.get("eps") or config.positive("rms_norm_eps", 1e-6),
        layers=tuple(layers),
        max_seq_length=None if dynamic else values["max_position_embeddings"],
        rms=True,
        gated=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        head=gpt.head(config, values["vocab_size"], tied=tied, tokens=True),
    )
    return replace(plain, **fields)


def biases(config: Config, default: bool = False) -> dict[str, bool]:
    """Return the fields of a design that `attention_bias` sets."""
    return dict.fromkeys(("qkv_bias", "out_bias"), config.flag("attention_bias", default))


NAMES: dict[str, str] = {
    "embed": "embed_tokens",
    "blocks.*.norm1": "layers.*.input_layernorm",
    **projections("layers.*.self_attn.", "q_proj", "k_proj", "v_proj", "o_proj"),
    "blocks.*.norm2": "layers.*.post_attention_layernorm",
    "blocks.*.mlp.gate_proj": "layers.*.mlp.gate_proj",
    "blocks.*.mlp.up_proj": "layers.*.mlp.up_proj",
    "blocks.*.mlp.down_proj": "layers.*.mlp.down_proj",
    "final_norm": "norm",
}
QK_NORMS = {f"blocks.*.attn.{name}_norm": f"layers.*.self_attn.{name}_norm" for name in "qk"}
BODY = ("embed_tokens.", "layers.", "norm.")


def names(config: Config, **others: str) -> dict[str, str | Fused]:
    """Return our names with those in the files of Llama; `others` are those of a variant."""
    out = "score" if config.head().endswith("Classification") else "lm_head"
    return {**NAMES, "head.out_proj": out, **others}


def family(
    model_type: str,
    design: Callable[[Config], Design],
    names: Callable[[Config], Mapping[str, str | Fused]] = names,
    *,
    harmless: tuple[str, ...] = (),
) -> Family:
    """Return a family whose files are laid out as those of Llama."""
    return Family(
        model_type=model_type,
        design=design,
        names=names,
        prefix="model.",
        old_prefix="transformer.",  # of LlamaForQuestionAnswering
        body=BODY,
        unused=(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
        harmless=harmless,
    )


def llama(config: Config) -> Design:
    """Return the design of a Llama: rotary positions, grouped heads, a gated MLP, RMS norms."""
    config.only("pretraining_tp", 1, None)
    config.only("rope_interleaved", False, None)
    mlp_bias = config.flag("mlp_bias", False)
    layer = attention(config, SIZES)
    return decoder(config, SIZES, layer, mlp_bias=mlp_bias, **biases(config))


def mistral(config: Config) -> Design:
    """Return the design of a Mistral: a Llama in which each token sees a window."""
    count = config.layers("num_hidden_layers", MISTRAL_SIZES["num_hidden_layers"])
    window = config.size_or_none("sliding_window", 4096)
    kind = FULL if window is None else SLIDING
    if set(config.kinds([kind] * count)) != {kind}:
        raise ModelError(
            f"{config.source}: layer_types has others than {kind!r} beside sliding_window "
            f"{window}: all layers of a mistral are alike"
        )
    return decoder(config, MISTRAL_SIZES, attention(config, MISTRAL_SIZES).within(window))


def qwen2(config: Config) -> Design:
    """Return the design of a Qwen2: biases to Q, K and V; its last layers may have windows."""
    config.only("use_mrope", False, None)
    layers = _last_windowed(config, attention(config, QWEN2_SIZES))
    return decoder(config, QWEN2_SIZES, layers, qkv_bias=True)


def qwen3(config: Config) -> Design:
    """Return the design of a Qwen3: a Qwen2 that normalises queries and keys."""
    layers = _last_windowed(config, attention(config, QWEN3_SIZES, qk_norm="head"))
    return decoder(config, QWEN3_SIZES, layers, **biases(config))


def _last_windowed(config: Config, layer: Attention) -> list[Attention]:
    """Return all layers of a Qwen, the last of them with a window if the config has one."""
    count = config.layers("num_hidden_layers", QWEN2_SIZES["num_hidden_layers"])
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


def olmo2(config: Config) -> Design:
    """Return the design of an OLMo 2: norms behind each part, Q and K normalised whole."""
    layer = attention(config, OLMO2_SIZES, qk_norm="width")
    eps = config.positive("rms_norm_eps", 1e-5)
    return decoder(config, OLMO2_SIZES, layer, eps=eps, norms="behind", **biases(config))


def olmo2_names(config: Config) -> Mapping[str, str | Fused]:
    """Return our names with those in files: Llama's, but for the norms."""
    return {
        **names(config, **QK_NORMS),
        "blocks.*.out_norm1": "layers.*.post_attention_layernorm",
        "blocks.*.out_norm2": "layers.*.post_feedforward_layernorm",
    }


# Early files call long RoPE by other names.
_PHI3_ROPE = {"default": "default", **dict.fromkeys(("longrope", "su", "yarn"), "longrope")}


def phi3(config: Config) -> Design:
    """Return the design of a Phi-3: a Llama with fused projections, heads rotated in part."""
    config.only("attention_bias", False, None)
    plain = attention(config, PHI3_SIZES, rotary=None)
    positions = config.size("max_position_embeddings", PHI3_SIZES["max_position_embeddings"])
    rope: dict[str, Any] = {"partial": 1.0, "original": 4096, "spellings": _PHI3_ROPE}
    layer = replace(plain, rotary=read_rotary(config, plain.head_size, positions, **rope))
    layer = layer.within(config.size_or_none("sliding_window"))
    return decoder(config, PHI3_SIZES, layer, eps=config.positive("rms_norm_eps", 1e-5))


def phi3_names(config: Config) -> Mapping[str, str | Fused]:
    """Return our names with those in files: Llama's, but for the fused projections."""
    heads = config.size("num_attention_heads", PHI3_SIZES["num_attention_heads"])
    kv_heads = config.size_or_none("num_key_value_heads") or heads
    gated = ("blocks.*.mlp.gate_proj", "blocks.*.mlp.up_proj")
    return {
        **names(config),
        **fused("layers.*.self_attn.qkv_proj", *QKV, shares=(heads, kv_heads, kv_heads)),
        **fused("layers.*.mlp.gate_up_proj", *gated),
    }


FAMILIES = (
    family("llama", llama, harmless=("is_llama_config", "max_sequence_length")),
    family("mistral", mistral),
    family("qwen2", qwen2),
    family("qwen3", qwen3, lambda config: names(config, **QK_NORMS)),
    family("olmo2", olmo2, olmo2_names),
    family("phi3", phi3, phi3_names, harmless=("auto_map", "embd_pdrop", "resid_pdrop")),
)
