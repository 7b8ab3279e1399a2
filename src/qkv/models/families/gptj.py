"""GPT-J: attention and MLP in parallel behind one norm, the first pairs of each head rotated."""

from __future__ import annotations

from qkv.layers import Rotary
from qkv.models.families import gpt2
from qkv.models.files.config import Config
from qkv.models.files.names import Family, projections
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head


def design(config: Config) -> Design:
    """The sizes of a GPT-J; keys that are left out have the values of gpt-j-6b."""
    width = config.spelling("n_embd", "hidden_size")
    dim = config.size(width, 4096)
    heads = config.heads(dim, 16, key=config.spelling("n_head", "num_attention_heads"), of=width)
    size, rotated = dim // heads, config.size("rotary_dim", 64)
    if rotated % 2 or rotated > size:
        raise ModelError(
            f"{config.source}: rotary_dim is {rotated} and a head has {size} numbers, by {width} "
            f"and num_attention_heads (n_head): it must be an even number of at most {size}"
        )
    vocabulary = config.size("vocab_size", 50400)
    positions = config.size(config.spelling("n_positions", "max_position_embeddings"), 2048)
    rotary = Rotary(dims=rotated, interleaved=True)
    attention = Attention(heads, heads, size, rotary, options={"is_causal": True})
    count = config.layers(config.spelling("n_layer", "num_hidden_layers"), 28)
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=config.size_or_none("n_inner") or 4 * dim,
        activation=config.activation("activation_function", "gelu_new"),
        eps=config.positive("layer_norm_epsilon", 1e-5),
        layers=(attention,) * count,
        max_seq_length=positions,
        parallel=True,
        mlp_norm=False,
        qkv_bias=False,
        out_bias=False,
        head=head(config, vocabulary),
    )


def head(config: Config, vocabulary: int) -> Head | None:
    """The next word, or a class of the text."""
    if config.head() == "CausalLM":
        return Head(vocabulary, tied=config.flag("tie_word_embeddings", False), bias=True)
    if config.head() == "SequenceClassification":
        return Head(config.labels(), pool="lasttoken")
    return None


GPTJ = Family(
    model_type="gptj",
    design=design,
    names=lambda config: {
        "embed": "wte",
        "blocks.*.norm1": "h.*.ln_1",
        **projections("h.*.attn.", "q_proj", "k_proj", "v_proj", "out_proj"),
        "blocks.*.mlp.up_proj": "h.*.mlp.fc_in",
        "blocks.*.mlp.down_proj": "h.*.mlp.fc_out",
        "final_norm": "ln_f",
        "head.out_proj": "score" if config.head() == "SequenceClassification" else "lm_head",
    },
    prefix="transformer.",
    body=("wte.", "h.", "ln_f."),
    unused=(r"h\.\d+\.attn\.(bias|masked_bias|embed_positions)",),
    harmless=(*gpt2.HARMLESS, "rotary", "scale_attn_weights"),
)
