"""Llama: rotary positions, grouped heads, a gated MLP, and norms that leave the mean alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qkv.models.families.rope import read_rotary
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import Family, Fused, projections
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head
from qkv.models.network.rope_scaling import Dynamic

SIZES: Mapping[str, int] = {  # of Llama 2 7B
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}


def design(config: Config) -> Design:
    """The sizes of a Llama; keys that are left out have the values of Llama 2 7B."""
    config.only("pretraining_tp", 1, None)
    config.only("rope_interleaved", False, None)
    count, bias = config.layers("num_hidden_layers", 32), config.flag("attention_bias", False)
    return decoder(
        config,
        SIZES,
        [attention(config, SIZES)] * count,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
    )


def attention(
    config: Config,
    sizes: Mapping[str, int],
    *,
    base: float = 10000.0,
    rope: Mapping[str, Any] | None = None,
    **others: Any,
) -> Attention:
    """How a layer of Llama, or of a family after it, attends.

    Args:
        config: of the model.
        sizes: what stands for keys that it leaves out.
        base: of its rotary positions, the same.
        rope: their `rope_parameters`, the same.
        others: fields that are different.
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
    if "rotary" not in others:
        positions = config.size("max_position_embeddings", sizes["max_position_embeddings"])
        others["rotary"] = read_rotary(config, size, positions, base=base, default=rope)
    return Attention(heads, kv_heads, size, **{"options": {"is_causal": True}, **others})


def windows(config: Config, layers: int, *, every: int, width: int) -> tuple[int | None, ...]:
    """How many tokens a query of each layer sees: all in one layer of so many, else a window.

    `layers` and `width` hold where the config is silent.
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
    layers: Sequence[Attention],
    *,
    tied: bool = False,
    **others: Any,
) -> Design:
    """What Llama and the families after it share.

    Args:
        config: of the model.
        sizes: what stands for keys that it leaves out.
        layers: how each one attends.
        tied: whether the output matrix is the token table, where the config does not say.
        others: fields of the design that are different.
    """
    found = {key: config.size(key, sizes[key]) for key in SIZES}
    dynamic = any(one.rotary and isinstance(one.rotary.scaling, Dynamic) for one in layers)
    plain = Design(
        vocabulary=found["vocab_size"],
        dim=found["hidden_size"],
        hidden=found["intermediate_size"],
        activation=others.get("activation") or config.activation("hidden_act", "silu"),
        eps=config.positive("rms_norm_eps", 1e-6),
        layers=tuple(layers),
        max_seq_length=None if dynamic else found["max_position_embeddings"],
        rms=True,
        gated=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        head=head(config, found["vocab_size"], tied=tied),
    )
    return replace(plain, **others)


def head(config: Config, vocabulary: int, *, tied: bool = False) -> Head | None:
    """The next word, or a class of the text or of each token.

    `tied` is what holds where the config does not say.
    """
    if config.head() == "CausalLM":
        return Head(vocabulary, tied=config.flag("tie_word_embeddings", tied))
    if config.head() == "SequenceClassification":
        return Head(config.labels(), pool="lasttoken")
    if config.head() == "TokenClassification":
        return Head(config.labels(), bias=True, classes=True)
    return None


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
QK_NORMS = {f"blocks.*.attn.{one}_norm": f"layers.*.self_attn.{one}_norm" for one in "qk"}
BODY = ("embed_tokens.", "layers.", "norm.")


def names(config: Config, **others: str) -> dict[str, str | Fused]:
    """What the files of Llama and its followers call the parts; `others` differ in one."""
    top = "score" if config.head().endswith("Classification") else "lm_head"
    return {**NAMES, "head.out_proj": top, **others}


def family(
    model_type: str,
    design: Callable[[Config], Design],
    names: Callable[[Config], Mapping[str, str | Fused]] = names,
    *,
    harmless: tuple[str, ...] = (),
) -> Family:
    """A family whose files are laid out as those of Llama."""
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


LLAMA = family("llama", design, harmless=("is_llama_config", "max_sequence_length"))
