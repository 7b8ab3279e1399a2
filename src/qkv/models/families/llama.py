"""Llama: rotary positions, grouped heads, a gated MLP, and norms that leave the mean alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.models.families.rope import Dynamic, read_rotary
from qkv.models.files.config import Config
from qkv.models.files.names import Family, Fused
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head

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
    bias = config.flag("attention_bias", False)
    return decoder(config, qkv_bias=bias, out_bias=bias, mlp_bias=config.flag("mlp_bias", False))


def decoder(
    config: Config,
    sizes: Mapping[str, int] = SIZES,
    *,
    windows: Sequence[int | None] = (),
    qk_norm: bool = False,
    **others: Any,
) -> Design:
    """What Llama and the families after it share.

    Args:
        config: of the model.
        sizes: what stands for keys that it leaves out.
        windows: for each layer how many tokens a query sees, itself included, None for all.
        qk_norm: whether the queries and keys of each head are normalised.
        others: fields of the design that are different.
    """
    found = {key: config.size(key, size) for key, size in sizes.items() if key in SIZES}
    dim, heads = found["hidden_size"], found["num_attention_heads"]
    size = config.size_or_none("head_dim", sizes.get("head_dim"))
    if size is None:
        size = dim // config.heads(dim, heads)
    positions = found["max_position_embeddings"]
    rotary = read_rotary(config, size, positions)
    count = config.layers("num_hidden_layers", sizes["num_hidden_layers"])
    settings: dict[str, Any] = {
        "vocabulary": found["vocab_size"],
        "dim": dim,
        "hidden": found["intermediate_size"],
        "activation": config.activation("hidden_act", "silu"),
        "eps": config.positive("rms_norm_eps", 1e-6),
        "layers": tuple(
            Attention(
                heads,
                key_heads(config, heads, sizes.get("num_key_value_heads")),
                size,
                rotary=rotary,
                options={"is_causal": True} | ({"window": (window - 1, 0)} if window else {}),
                qk_norm=qk_norm,
            )
            for window in windows or [None] * count
        ),
        "max_length": None if isinstance(rotary.scaling, Dynamic) else positions,
        "rms": True,
        "gated": True,
        "qkv_bias": False,
        "out_bias": False,
        "mlp_bias": False,
        "head": head(config, found["vocab_size"]),
    }
    return Design(**{**settings, **others})


def key_heads(config: Config, heads: int, default: int | None = None) -> int:
    """Hkv, which divides Hq, here `heads`."""
    found = config.size_or_none("num_key_value_heads", default) or heads
    if heads % found:
        raise ModelError(
            f"{config.source}: num_attention_heads is {heads} and num_key_value_heads is {found}: "
            "the first must be a multiple of the second"
        )
    return found


def head(config: Config, vocabulary: int, *, tied: bool = False) -> Head | None:
    """The next word, or a class of the text or of each token.

    `tied` is what holds where the config does not say.
    """
    if config.head() == "CausalLM":
        return Head(vocabulary, tied=config.flag("tie_word_embeddings", tied))
    if config.head() == "SequenceClassification":
        return Head(config.labels(), pool="last")
    if config.head() == "TokenClassification":
        return Head(config.labels(), bias=True, classes=True)
    return None


NAMES: dict[str, str | Fused] = {
    "embed": "embed_tokens",
    "blocks.*.norm1": "layers.*.input_layernorm",
    "blocks.*.attn.q_proj": "layers.*.self_attn.q_proj",
    "blocks.*.attn.k_proj": "layers.*.self_attn.k_proj",
    "blocks.*.attn.v_proj": "layers.*.self_attn.v_proj",
    "blocks.*.attn.out_proj": "layers.*.self_attn.o_proj",
    "blocks.*.norm2": "layers.*.post_attention_layernorm",
    "blocks.*.mlp.gate_proj": "layers.*.mlp.gate_proj",
    "blocks.*.mlp.up_proj": "layers.*.mlp.up_proj",
    "blocks.*.mlp.down_proj": "layers.*.mlp.down_proj",
    "final_norm": "norm",
}
BODY = ("embed_tokens.", "layers.", "norm.")
UNUSED = (r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def names(config: Config, **others: str | Fused) -> dict[str, str | Fused]:
    """What the files of Llama and its followers call the parts; `others` differ in one."""
    top = "score" if config.head().endswith("Classification") else "lm_head"
    return {**NAMES, "head.out_proj": top, **others}


LLAMA = Family(
    model_type="llama",
    design=design,
    names=names,
    prefix="model.",
    body=BODY,
    unused=UNUSED,
    harmless=("is_llama_config", "max_sequence_length"),
)
