"""GPT-NeoX, and Pythia: attention and MLP in parallel, a quarter of each head rotated."""

from __future__ import annotations

from qkv.models.families import llama
from qkv.models.families.rope import read_rotary
from qkv.models.files.config import Config
from qkv.models.files.names import QKV, Family, Fused, fused
from qkv.models.network.design import Attention, Design
from qkv.models.network.rope_scaling import Dynamic


def design(config: Config) -> Design:
    """The sizes of a GPT-NeoX; keys that are left out have the values of gpt-neox-20b."""
    dim = config.size("hidden_size", 6144)
    heads = config.heads(dim, 64)
    vocabulary = config.size("vocab_size", 50432)
    positions = config.size("max_position_embeddings", 2048)
    config.only("head_dim", dim // heads, None)
    base = config.positive("rotary_emb_base", 10000.0)
    config.only("rope_theta", base, None)  # other names, which some files have beside those
    part = config.positive("rotary_pct", 0.25)
    config.only("partial_rotary_factor", part, None)
    rotary = read_rotary(config, dim // heads, positions, base=base, partial=part)
    attention = Attention(heads, heads, dim // heads, rotary, options={"is_causal": True})
    bias = config.flag("attention_bias", True)
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=config.size("intermediate_size", 24576),
        activation=config.activation("hidden_act", "gelu"),
        eps=config.positive("layer_norm_eps", 1e-5),
        layers=(attention,) * config.layers("num_hidden_layers", 44),
        max_seq_length=None if isinstance(rotary.scaling, Dynamic) else positions,
        parallel=config.flag("use_parallel_residual", True),
        qkv_bias=bias,
        out_bias=bias,
        head=llama.head(config, vocabulary),
    )


def names(config: Config) -> dict[str, str | Fused]:
    """What the files call the parts."""
    heads = config.size("num_attention_heads", 64)
    tops = {"SequenceClassification": "score", "TokenClassification": "classifier"}
    return {
        "embed": "embed_in",
        "blocks.*.norm1": "layers.*.input_layernorm",
        **fused("layers.*.attention.query_key_value", *QKV, groups=heads),
        "blocks.*.attn.out_proj": "layers.*.attention.dense",
        "blocks.*.norm2": "layers.*.post_attention_layernorm",
        "blocks.*.mlp.up_proj": "layers.*.mlp.dense_h_to_4h",
        "blocks.*.mlp.down_proj": "layers.*.mlp.dense_4h_to_h",
        "final_norm": "final_layer_norm",
        "head.out_proj": tops.get(config.head(), "embed_out"),
    }


GPT_NEOX = Family(
    model_type="gpt_neox",
    design=design,
    names=names,
    prefix="gpt_neox.",
    old={"lm_head.weight": "embed_out.weight"},
    body=("embed_in.", "layers.", "final_layer_norm."),
    unused=(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    harmless=("hidden_dropout",),
)
