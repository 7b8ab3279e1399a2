"""GPT-2: causal, learned positions, norms before each part, one tensor for Q, K and V."""

from __future__ import annotations

from qkv.models.files.config import Config
from qkv.models.files.names import QKV, Family, fused
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head

HARMLESS = (
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "n_ctx"),
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
    *("summary_type", "summary_use_proj"),
)


def design(config: Config) -> Design:
    """The sizes of a GPT-2; keys that are left out have the values of gpt2."""
    width = config.spelling("n_embd", "hidden_size")
    dim = config.size(width, 768)
    heads = config.heads(dim, 12, key=config.spelling("n_head", "num_attention_heads"), of=width)
    vocabulary = config.size("vocab_size", 50257)
    positions = config.size(config.spelling("n_positions", "max_position_embeddings"), 1024)
    count = config.layers(config.spelling("n_layer", "num_hidden_layers"), 12)
    config.only("add_cross_attention", False)
    scaled = config.flag("scale_attn_weights", True)
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    first = (dim // heads) ** -0.5 if scaled else 1.0
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=config.size_or_none("n_inner") or 4 * dim,
        activation=config.activation("activation_function", "gelu_new"),
        eps=config.positive("layer_norm_epsilon", 1e-5),
        layers=tuple(
            Attention(
                heads,
                heads,
                dim // heads,
                options={"is_causal": True, "scale": first / (layer + 1 if by_layer else 1)},
            )
            for layer in range(count)
        ),
        max_seq_length=positions,
        positions=positions,
        head=head(config, vocabulary),
    )


def head(config: Config, vocabulary: int) -> Head | None:
    """The next word, or a class of the text."""
    if config.head() == "CausalLM":
        return Head(vocabulary, tied=config.flag("tie_word_embeddings", True))
    if config.head() == "SequenceClassification":
        return Head(config.labels(), pool="lasttoken")
    return None


GPT2 = Family(
    model_type="gpt2",
    design=design,
    names=lambda config: {
        "embed": "wte",
        "pos_embed": "wpe",
        "blocks.*.norm1": "h.*.ln_1",
        **fused("h.*.attn.c_attn", *QKV),
        "blocks.*.attn.out_proj": "h.*.attn.c_proj",
        "blocks.*.norm2": "h.*.ln_2",
        "blocks.*.mlp.up_proj": "h.*.mlp.c_fc",
        "blocks.*.mlp.down_proj": "h.*.mlp.c_proj",
        "final_norm": "ln_f",
        "head.out_proj": "score" if config.head() == "SequenceClassification" else "lm_head",
    },
    layout="in_out",
    prefix="transformer.",
    body=("wte.", "wpe.", "h.", "ln_f."),
    unused=(r"h\.\d+\.attn\.(masked_)?bias",),
    harmless=HARMLESS,
)
