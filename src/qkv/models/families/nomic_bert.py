"""Nomic-BERT: a BERT with rotary positions, a gated MLP and no biases, for long texts."""

from __future__ import annotations

from qkv.models.families import bert
from qkv.models.families.rope import read_rotary
from qkv.models.files.config import Config
from qkv.models.files.names import QKV, Family, Fused, fused
from qkv.models.network.design import Attention, Design
from qkv.models.network.rope_scaling import Dynamic

# What the code that came with the first files could also do, at the value that does nothing.
PLAIN = {
    **{"activation_function": ("swiglu",), "causal": (False,), "prenorm": (False,)},
    **{"parallel_block": (False,), "use_rms_norm": (False, None), "num_experts": (0, None)},
    **{"qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,)},
    **{"rotary_emb_fraction": (1.0,), "rotary_emb_interleaved": (False,)},
    **{"rotary_emb_scale_base": (None,), "rotary_scaling_factor": (None,)},
    **{"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
}


def design(config: Config) -> Design:
    """The sizes of a Nomic-BERT; keys that are left out have the values of nomic-embed-text-v1.5.

    They may have the names that transformers has for them, or those of the first files.
    """
    for key, allowed in PLAIN.items():
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
        embed_norm=True,
        norms="after",
        final_norm=False,
        gated=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        head=bert.head(config, activation, vocabulary=30528),
    )


def names(config: Config) -> dict[str, str | Fused]:
    """What the files call the parts."""
    return {
        **bert.names(config),
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
    design=design,
    names=names,
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
