"""Encoders for long texts, with rotary positions: ModernBERT and Nomic-BERT."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from qkv.models.families import bert
from qkv.models.families.rope import read_rotaries, read_rotary
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import QKV, Family, Fused, fused
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head
from qkv.models.network.rope_scaling import Dynamic

POOLS: dict[str, Literal["cls", "mean"]] = {"cls": "cls", "mean": "mean"}


def modernbert(config: Config) -> Design:
    """Return the design of a ModernBERT: windows in most layers, a gated MLP, norms before.

    Keys that the config leaves out have the values of ModernBERT-base.
    """
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
        layers=modernbert_layers(config, dim, positions),
        max_seq_length=positions,
        embed_norm=True,
        first_norm=False,
        norm_bias=config.flag("norm_bias", False),
        gated=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        head=modernbert_head(config, vocabulary),
    )


def modernbert_layers(config: Config, dim: int, positions: int) -> tuple[Attention, ...]:
    """Return how each layer attends: every third sees all, the others a window.

    Each kind of layer has a rotary base of its own.
    """
    heads = config.heads(dim, 12)
    every = config.size("global_attn_every_n_layers", 3)
    count = config.layers("num_hidden_layers", 22)
    kinds = config.kinds([SLIDING if layer % every else FULL for layer in range(count)])
    base = config.positive("global_rope_theta", 160000.0)
    local = config.positive_or_none("local_rope_theta", 10000.0) or base
    bases = {FULL: ("global_rope_theta", base), SLIDING: ("local_rope_theta", local)}
    rotary = read_rotaries(config, dim // heads, positions, bases, scaled=bases)
    width = config.size("local_attention", 128)
    config.only("sliding_window", width // 2, None)  # one side of it, in transformers' name
    full = Attention(heads, heads, dim // heads, rotary=rotary[FULL])
    attends = {FULL: full, SLIDING: replace(full, rotary=rotary[SLIDING]).within(width)}
    return tuple(attends[kind] for kind in kinds)


def modernbert_head(config: Config, vocabulary: int) -> Head | None:
    """Return the head: words for masked tokens, or classes of the text or of each token."""
    words = Head(
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
            return words
        case "SequenceClassification":
            return replace(words, outputs=config.labels(), tied=False, bias=True, pool=pool)
        case "TokenClassification":
            return replace(words, outputs=config.labels(), tied=False, bias=True, classes=True)
    return None


def modernbert_names(config: Config) -> dict[str, str | Fused]:
    """Return our names with those in files."""
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
    design=modernbert,
    names=modernbert_names,
    prefix="model.",
    body=("embeddings.", "layers.", "final_norm."),
    harmless=(
        *("cls_token_id", "deterministic_flash_attn", "embedding_dropout", "mlp_dropout"),
        *("initializer_cutoff_factor", "layer_norm_eps", "position_embedding_type"),
        *("reference_compile", "repad_logits_with_grad"),
        *("sparse_pred_ignore_index", "sparse_prediction"),
    ),
)


# Options of the code that came with the first files: the values that change nothing.
_NOMIC_NEUTRAL = {
    **{"activation_function": ("swiglu",), "causal": (False,), "prenorm": (False,)},
    **{"parallel_block": (False,), "use_rms_norm": (False, None), "num_experts": (0, None)},
    **{"qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,)},
    **{"rotary_emb_fraction": (1.0,), "rotary_emb_interleaved": (False,)},
    **{"rotary_emb_scale_base": (None,), "rotary_scaling_factor": (None,)},
    **{"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
}


def nomic_bert(config: Config) -> Design:
    """Return the design of a Nomic-BERT: a BERT with rotary positions and a gated MLP.

    Keys that the config leaves out have the values of nomic-embed-text-v1.5. A config may spell
    its keys as transformers does, or as the first files did.
    """
    for key, allowed in _NOMIC_NEUTRAL.items():
        config.only(key, *allowed)
    width = config.spelling("hidden_size", "n_embd")
    dim = config.size(width, 768)
    count = config.spelling("num_attention_heads", "n_head")
    size = config.size_or_none("head_dim")
    heads = config.heads(dim, 12, key=count, of=width) if size is None else config.size(count, 12)
    size = size or dim // heads
    positions = config.size(config.spelling("max_position_embeddings", "n_positions"), 2048)
    rotary = read_rotary(config, size, positions, base=config.positive("rotary_emb_base", 1000.0))
    layers = config.layers(config.spelling("num_hidden_layers", "n_layer"), 12)
    activation = config.activation("hidden_act", "silu")
    return Design(
        vocabulary=config.size("vocab_size", 30528),
        dim=dim,
        hidden=config.size(config.spelling("intermediate_size", "n_inner"), 3072),
        activation=activation,
        eps=config.positive(config.spelling("layer_norm_eps", "layer_norm_epsilon"), 1e-12),
        layers=(Attention(heads, heads, size, rotary=rotary),) * layers,
        max_seq_length=None if isinstance(rotary.scaling, Dynamic) else positions,
        token_types=config.size("type_vocab_size", 2),
        gated=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        head=bert.head(config, activation, vocabulary=30528),
        **bert.POST_NORM,
    )


def nomic_bert_names(config: Config) -> dict[str, str | Fused]:
    """Return our names with those in files."""
    return {
        **bert.BODY,
        **bert.head_names(config, bert.BERT_HEAD),
        "embed_norm": "emb_ln",
        **fused("encoder.layers.*.attn.Wqkv", *QKV),
        "blocks.*.attn.out_proj": "encoder.layers.*.attn.out_proj",
        "blocks.*.norm1": "encoder.layers.*.norm1",
        "blocks.*.mlp.up_proj": "encoder.layers.*.mlp.fc11",
        "blocks.*.mlp.gate_proj": "encoder.layers.*.mlp.fc12",
        "blocks.*.mlp.down_proj": "encoder.layers.*.mlp.fc2",
        "blocks.*.norm2": "encoder.layers.*.norm2",
        "head.norm": "cls.predictions.transform.layer_norm",
    }


NOMIC_BERT = Family(
    model_type="nomic_bert",
    design=nomic_bert,
    names=nomic_bert_names,
    prefix="nomic_bert.",
    old_prefix="bert.",
    instead=bert.BERT.instead,
    body=("embeddings.", "emb_ln.", "encoder."),
    unused=(
        *bert.BERT.unused,
        r"encoder\.layers\.\d+\.attn\.rotary_emb\.inv_freq",
    ),
    harmless=(
        *("attn_pdrop", "auto_map", "dense_seq_output", "embd_pdrop", "fused_bias_fc"),
        *("fused_dropout_add_ln", "max_trained_positions", "pad_vocab_size_multiple"),
        *("parallel_block_tied_norm", "reorder_and_upcast_attn", "resid_pdrop"),
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj", "use_flash_attn", "use_xentropy"),
    ),
)
FAMILIES = (MODERNBERT, NOMIC_BERT)
