"""ModernBERT: rotary positions, windows in most layers, a gated MLP, norms before each part."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from qkv.models.families.rope import read_rotaries
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import QKV, Family, Fused, fused
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head

POOLS: dict[str, Literal["cls", "mean"]] = {"cls": "cls", "mean": "mean"}


def design(config: Config) -> Design:
    """The sizes of a ModernBERT; keys that are left out have the values of the base one."""
    dim = config.size("hidden_size", 768)
    vocabulary = config.size("vocab_size", 50368)
    positions = config.size("max_position_embeddings", 8192)
    bias = config.flag("attention_bias", False)
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=config.size("intermediate_size", 1152),
        activation=config.activation("hidden_activation", "gelu"),
        eps=config.positive("norm_eps", 1e-5),
        layers=layers(config, dim, positions),
        max_seq_length=positions,
        embed_norm=True,
        first_norm=False,
        norm_bias=config.flag("norm_bias", False),
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        head=head(config, vocabulary),
    )


def layers(config: Config, dim: int, positions: int) -> tuple[Attention, ...]:
    """Every third layer sees all, the others a window, each kind with a rotary base of its own."""
    heads = config.heads(dim, 12)
    every = config.size("global_attn_every_n_layers", 3)
    count = config.layers("num_hidden_layers", 22)
    kinds = config.kinds([SLIDING if layer % every else FULL for layer in range(count)])
    base = config.positive("global_rope_theta", 160000.0)
    local = config.positive_or_none("local_rope_theta", 10000.0) or base
    bases = {FULL: ("global_rope_theta", base), SLIDING: ("local_rope_theta", local)}
    rotary = read_rotaries(config, dim // heads, positions, bases, scaled=bases)
    width = config.size("local_attention", 128)
    config.only("sliding_window", width // 2, None)  # transformers' own name for a side of it
    full = Attention(heads, heads, dim // heads, rotary=rotary[FULL])
    attends = {FULL: full, SLIDING: replace(full, rotary=rotary[SLIDING]).within(width)}
    return tuple(attends[kind] for kind in kinds)


def head(config: Config, vocabulary: int) -> Head | None:
    """Words in the place of masked ones, or classes of the text or of each token."""
    steps = Head(
        vocabulary,
        tied=config.flag("tie_word_embeddings", True),
        bias=config.flag("decoder_bias", True),
        dense=True,
        dense_bias=config.flag("classifier_bias", False),
        activation=config.activation("classifier_activation", "gelu"),
        norm=True,
        norm_bias=config.flag("norm_bias", False),
    )
    pool = config.choice("classifier_pooling", POOLS, "cls")
    match config.head():
        case "MaskedLM":
            return steps
        case "SequenceClassification":
            return replace(steps, outputs=config.labels(), tied=False, bias=True, pool=pool)
        case "TokenClassification":
            return replace(steps, outputs=config.labels(), tied=False, bias=True, classes=True)
    return None


def names(config: Config) -> dict[str, str | Fused]:
    """What the files call the parts."""
    classes = config.head().endswith("Classification")
    return {
        "embed": "embeddings.tok_embeddings",
        "embed_norm": "embeddings.norm",
        "blocks.*.norm1": "layers.*.attn_norm",
        **fused("layers.*.attn.Wqkv", *QKV),
        "blocks.*.attn.out_proj": "layers.*.attn.Wo",
        "blocks.*.norm2": "layers.*.mlp_norm",
        **fused("layers.*.mlp.Wi", "blocks.*.mlp.gate_proj", "blocks.*.mlp.up_proj"),
        "blocks.*.mlp.down_proj": "layers.*.mlp.Wo",
        "final_norm": "final_norm",
        "head.dense_proj": "head.dense",
        "head.norm": "head.norm",
        "head.out_proj": "classifier" if classes else "decoder",
    }


MODERNBERT = Family(
    model_type="modernbert",
    design=design,
    names=names,
    prefix="model.",
    body=("embeddings.", "layers.", "final_norm."),
    harmless=(
        *("cls_token_id", "deterministic_flash_attn", "embedding_dropout", "mlp_dropout"),
        *("initializer_cutoff_factor", "layer_norm_eps", "position_embedding_type"),
        *("reference_compile", "repad_logits_with_grad"),
        *("sparse_pred_ignore_index", "sparse_prediction"),
    ),
)
