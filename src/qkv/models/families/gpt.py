"""GPT-2 and the decoders after it: GPT-Neo, GPT-J, GPT-NeoX (Pythia), OPT and BLOOM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from qkv.layers import Rotary
from qkv.models.families.rope import read_rotary
from qkv.models.files.config import Config
from qkv.models.files.names import QKV, Family, Fused, fused, projections
from qkv.models.files.read import ModelError, is_whole
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head
from qkv.models.network.rope_scaling import Dynamic

HARMLESS = (
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "n_ctx"),
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
    *("summary_type", "summary_use_proj"),
)


class Sizes(NamedTuple):
    """The sizes of a family: the keys of a config, each with its other spelling, and defaults."""

    vocabulary: int
    dim: int
    heads: int
    layers: int
    positions: int | None  # None for a family without a limit
    dim_keys: tuple[str, ...] = ("hidden_size",)
    heads_keys: tuple[str, ...] = ("num_attention_heads",)
    layers_keys: tuple[str, ...] = ("num_hidden_layers",)
    positions_keys: tuple[str, ...] = ("max_position_embeddings",)


_N_KEYS: dict[str, Any] = {
    "dim_keys": ("n_embd", "hidden_size"),
    "heads_keys": ("n_head", "num_attention_heads"),
    "layers_keys": ("n_layer", "num_hidden_layers"),
    "positions_keys": ("n_positions", "max_position_embeddings"),
}
_GPT2 = Sizes(50257, 768, 12, 12, 1024, **_N_KEYS)  # gpt2
_GPTJ = Sizes(50400, 4096, 16, 28, 2048, **_N_KEYS)  # gpt-j-6b
_GPT_NEO = Sizes(  # gpt-neo-1.3B
    *(50257, 2048, 16, 24, 2048),
    heads_keys=("num_heads", "num_attention_heads"),
    layers_keys=("num_layers", "num_hidden_layers"),
)
_GPT_NEOX = Sizes(50432, 6144, 64, 44, 2048)  # gpt-neox-20b
_OPT = Sizes(50272, 768, 12, 12, 2048)  # opt-125m
_BLOOM = Sizes(  # `BloomConfig` in transformers
    *(250880, 64, 8, 2, None), **{**_N_KEYS, "dim_keys": ("n_embed", "hidden_size")}
)


def decoder(config: Config, sizes: Sizes, **fields: Any) -> Design:
    """Return the design that these families share.

    Args:
        config: the model's config.
        sizes: the keys of its sizes, and their defaults.
        fields: fields of the design that differ in this family.
    """
    width = config.spelling(*sizes.dim_keys)
    dim = config.size(width, sizes.dim)
    heads = config.heads(dim, sizes.heads, key=config.spelling(*sizes.heads_keys), of=width)
    vocabulary = config.size("vocab_size", sizes.vocabulary)
    positions = sizes.positions
    if positions is not None:
        positions = config.size(config.spelling(*sizes.positions_keys), positions)
    attention = Attention(heads, heads, dim // heads, options={"is_causal": True})
    count = config.layers(config.spelling(*sizes.layers_keys), sizes.layers)
    shared: dict[str, Any] = {
        "vocabulary": vocabulary,
        "dim": dim,
        "hidden": 4 * dim,
        "layers": (attention,) * count,
        "max_seq_length": positions,
        "positions": positions or 0,
        **fields,
    }
    if "activation" not in fields:
        shared["activation"] = config.activation("activation_function", "gelu_new")
    if "eps" not in fields:
        shared["eps"] = config.positive("layer_norm_epsilon", 1e-5)
    if "head" not in fields:
        shared["head"] = head(config, vocabulary, tied=True)
    return Design(**shared)


def head(
    config: Config, vocabulary: int, *, tied: bool, bias: bool = False, tokens: bool = False
) -> Head | None:
    """Return the head of a decoder: the next word, or classes of the text or of each token.

    Args:
        config: the model's config.
        vocabulary: the number of words.
        tied: whether the output matrix is the token table, unless the config says otherwise.
        bias: whether the logits of words have a bias.
        tokens: whether the family has a head for classes of each token.
    """
    if config.head() == "CausalLM":
        return Head(vocabulary, tied=config.flag("tie_word_embeddings", tied), bias=bias)
    if config.head() == "SequenceClassification":
        return Head(config.labels(), pool="lasttoken")
    if tokens and config.head() == "TokenClassification":
        return Head(config.labels(), bias=True, classes=True)
    return None


def out_name(config: Config, words: str = "lm_head") -> str:
    """Return the name in files of the last projection; `words` is the name for words."""
    classes = {"SequenceClassification": "score", "TokenClassification": "classifier"}
    return classes.get(config.head(), words)


def gpt2(config: Config) -> Design:
    """Return the design of a GPT-2: learned positions, norms before each part."""
    config.only("add_cross_attention", False)
    plain = decoder(config, _GPT2)
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    scaled = config.flag("scale_attn_weights", True)
    first = plain.layers[0].head_size ** -0.5 if scaled else 1.0
    options = (
        {"is_causal": True, "scale": first / (number if by_layer else 1)}
        for number in range(1, len(plain.layers) + 1)
    )
    return replace(
        plain,
        hidden=config.size_or_none("n_inner") or plain.hidden,
        layers=tuple(replace(plain.layers[0], options=own) for own in options),
    )


GPT2 = Family(
    model_type="gpt2",
    design=gpt2,
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
        "head.out_proj": out_name(config),
    },
    layout="in_out",
    prefix="transformer.",
    body=("wte.", "wpe.", "h.", "ln_f."),
    unused=(r"h\.\d+\.attn\.(masked_)?bias",),
    harmless=HARMLESS,
)


def gpt_neo(config: Config) -> Design:
    """Return the design of a GPT-Neo: a GPT-2 with unscaled scores, and windows in some layers."""
    plain = decoder(config, _GPT_NEO)
    far = replace(plain.layers[0], options={"is_causal": True, "scale": 1.0})
    near = far.within(config.size("window_size", 256))
    kinds = gpt_neo_kinds(config, len(plain.layers))
    return replace(
        plain,
        hidden=config.size_or_none("intermediate_size") or plain.hidden,
        layers=tuple(near if kind == "local" else far for kind in kinds),
        qkv_bias=False,
    )


def gpt_neo_kinds(config: Config, count: int) -> list[str]:
    """Return "global" or "local" for each layer, from pairs [kinds of layers, repetitions].

    >>> types = [[["global", "local"], 1], [["global"], 1]]
    >>> gpt_neo_kinds(Config({"attention_types": types}, "config.json"), 3)
    ['global', 'local', 'global']
    """
    known = ("global", "local")
    types = config.given("attention_types", [[[*known], 12]])
    key = config.spelling(*_GPT_NEO.layers_keys)
    must = f'pairs like [["global", "local"], 12], together one for each of the {count} ({key})'
    fine = isinstance(types, list)
    kinds: list[str] = []
    for pair in types if fine else ():
        fine = fine and isinstance(pair, list) and len(pair) == 2
        fine = fine and isinstance(pair[0], list) and set(map(str, pair[0])) <= {*known}
        fine = fine and is_whole(pair[1]) and 0 <= pair[1] * len(pair[0]) <= count - len(kinds)
        kinds += [*pair[0]] * pair[1] if fine else []
    config.need(fine and len(kinds) == count, "attention_types", types, must, 80)
    again = config.given("attention_layers", kinds)  # old files have both keys
    if again != kinds:
        raise ModelError(
            f"{config.source}: attention_layers is {again!r:.80} and attention_types gives "
            f"{kinds!r:.80}: they are two names for one thing"
        )
    return kinds


GPT_NEO = Family(
    model_type="gpt_neo",
    design=gpt_neo,
    names=lambda config: {
        "embed": "wte",
        "pos_embed": "wpe",
        "blocks.*.norm1": "h.*.ln_1",
        **projections("h.*.attn.attention.", "q_proj", "k_proj", "v_proj", "out_proj"),
        "blocks.*.norm2": "h.*.ln_2",
        "blocks.*.mlp.up_proj": "h.*.mlp.c_fc",
        "blocks.*.mlp.down_proj": "h.*.mlp.c_proj",
        "final_norm": "ln_f",
        "head.out_proj": out_name(config),
    },
    prefix="transformer.",
    body=("wte.", "wpe.", "h.", "ln_f."),
    unused=(r"h\.\d+\.attn\.attention\.(masked_)?bias",),
    harmless=(*HARMLESS, "embed_dropout", "resid_dropout"),
)


def gptj(config: Config) -> Design:
    """Return the design of a GPT-J: parallel parts behind one norm, heads rotated in part."""
    vocabulary = config.size("vocab_size", _GPTJ.vocabulary)
    plain = decoder(config, _GPTJ, head=head(config, vocabulary, tied=False, bias=True))
    size, rotated = plain.layers[0].head_size, config.size("rotary_dim", 64)
    if rotated % 2 or rotated > size:
        width = config.spelling(*_GPTJ.dim_keys)
        raise ModelError(
            f"{config.source}: rotary_dim is {rotated} and a head has {size} numbers, by {width} "
            f"and num_attention_heads (n_head): it must be an even number of at most {size}"
        )
    rotary = Rotary(dims=rotated, interleaved=True)
    return replace(
        plain,
        hidden=config.size_or_none("n_inner") or plain.hidden,
        layers=tuple(replace(layer, rotary=rotary) for layer in plain.layers),
        positions=0,
        parallel=True,
        mlp_norm=False,
        qkv_bias=False,
        out_bias=False,
    )


GPTJ = Family(
    model_type="gptj",
    design=gptj,
    names=lambda config: {
        "embed": "wte",
        "blocks.*.norm1": "h.*.ln_1",
        **projections("h.*.attn.", "q_proj", "k_proj", "v_proj", "out_proj"),
        "blocks.*.mlp.up_proj": "h.*.mlp.fc_in",
        "blocks.*.mlp.down_proj": "h.*.mlp.fc_out",
        "final_norm": "ln_f",
        "head.out_proj": out_name(config),
    },
    prefix="transformer.",
    body=("wte.", "h.", "ln_f."),
    unused=(r"h\.\d+\.attn\.(bias|masked_bias|embed_positions)",),
    harmless=(*HARMLESS, "rotary", "scale_attn_weights"),
)


def gpt_neox(config: Config) -> Design:
    """Return the design of a GPT-NeoX: parallel parts, a quarter of each head rotated."""
    bias = config.flag("attention_bias", True)
    plain = decoder(
        config,
        _GPT_NEOX,
        hidden=config.size("intermediate_size", 24576),
        activation=config.activation("hidden_act", "gelu"),
        eps=config.positive("layer_norm_eps", 1e-5),
        parallel=config.flag("use_parallel_residual", True),
        qkv_bias=bias,
        out_bias=bias,
    )
    layer, positions = plain.layers[0], plain.positions
    config.only("head_dim", layer.head_size, None)
    base = config.positive("rotary_emb_base", 10000.0)
    config.only("rope_theta", base, None)  # some files have both names
    part = config.positive("rotary_pct", 0.25)
    config.only("partial_rotary_factor", part, None)
    rotary = read_rotary(config, layer.head_size, positions, base=base, partial=part)
    return replace(
        plain,
        layers=(replace(layer, rotary=rotary),) * len(plain.layers),
        max_seq_length=None if isinstance(rotary.scaling, Dynamic) else positions,
        positions=0,
        head=head(config, plain.vocabulary, tied=False, tokens=True),
    )


def _neox_blocks(block: str, attention: str, heads: int) -> Mapping[str, str | Fused]:
    """Return the names of a layer's parts in the files of GPT-NeoX and BLOOM."""
    return {
        "blocks.*.norm1": f"{block}.input_layernorm",
        **fused(f"{block}.{attention}.query_key_value", *QKV, groups=heads),
        "blocks.*.attn.out_proj": f"{block}.{attention}.dense",
        "blocks.*.norm2": f"{block}.post_attention_layernorm",
        "blocks.*.mlp.up_proj": f"{block}.mlp.dense_h_to_4h",
        "blocks.*.mlp.down_proj": f"{block}.mlp.dense_4h_to_h",
    }


GPT_NEOX = Family(
    model_type="gpt_neox",
    design=gpt_neox,
    names=lambda config: {
        "embed": "embed_in",
        **_neox_blocks("layers.*", "attention", config.size("num_attention_heads", 64)),
        "final_norm": "final_layer_norm",
        "head.out_proj": out_name(config, "embed_out"),
    },
    prefix="gpt_neox.",
    old={"lm_head.weight": "embed_out.weight"},
    body=("embed_in.", "layers.", "final_layer_norm."),
    unused=(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    harmless=("hidden_dropout",),
)


def opt(config: Config) -> Design:
    """Return the design of an OPT: positions count the visible tokens, from the third row on."""
    plain = decoder(
        config,
        _OPT,
        hidden=config.size("ffn_dim", 3072),
        activation=config.activation("activation_function", "relu"),
        eps=1e-5,
    )
    dim, first, top = plain.dim, 2, plain.head
    embedded = config.size_or_none("word_embed_proj_dim") or dim
    projects = embedded != dim
    if projects and top is None:
        raise ModelError(
            f"{config.source}: word_embed_proj_dim is {embedded} and hidden_size is {dim}: qkv "
            "projects the last vectors in a head alone: take the model with its head "
            "(architectures says OPTForCausalLM), or both must be the same"
        )
    if projects and top is not None:
        top = replace(top, dense=True, width=embedded, dense_bias=False)
    config.only("layer_norm_elementwise_affine", True)
    before, bias = config.flag("do_layer_norm_before", True), config.flag("enable_bias", True)
    removed = config.flag("_remove_final_layer_norm", False)
    return replace(
        plain,
        positions=plain.positions + first,
        first_position=first,
        counted=True,
        embed_dim=embedded if projects else None,
        embed_bias=False,
        projects_first=projects,
        norms="before" if before else "after",
        final_norm=before and not removed,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        head=top,
    )


OPT = Family(
    model_type="opt",
    design=opt,
    names=lambda config: {
        "embed": "decoder.embed_tokens",
        "pos_embed": "decoder.embed_positions",
        "blocks.*.norm1": "decoder.layers.*.self_attn_layer_norm",
        **projections("decoder.layers.*.self_attn.", "q_proj", "k_proj", "v_proj", "out_proj"),
        "blocks.*.norm2": "decoder.layers.*.final_layer_norm",
        "blocks.*.mlp.up_proj": "decoder.layers.*.fc1",
        "blocks.*.mlp.down_proj": "decoder.layers.*.fc2",
        "final_norm": "decoder.final_layer_norm",
        "embed_proj": "decoder.project_in",
        "head.dense_proj": "decoder.project_out",
        "head.out_proj": out_name(config),
    },
    prefix="model.",
    body=("decoder.",),
    harmless=("dropout", "init_std", "layerdrop"),
)


def bloom(config: Config) -> Design:
    """Return the design of a BLOOM: no positions, but scores that fall with distance (ALiBi)."""
    vocabulary = config.size("vocab_size", _BLOOM.vocabulary)
    top = head(config, vocabulary, tied=True, tokens=True)
    plain = decoder(config, _BLOOM, activation="gelu_bloom", embed_norm=True, head=top)
    config.only("n_inner", plain.hidden, None)
    config.only("apply_residual_connection_post_layernorm", False)
    if config.size("pretraining_tp", 1) > 1:  # the exact way leaves biases out
        config.only("slow_but_exact", False)
    else:
        config.flag("slow_but_exact", False)
    return replace(plain, layers=tuple(replace(layer, alibi=True) for layer in plain.layers))


BLOOM = Family(
    model_type="bloom",
    design=bloom,
    names=lambda config: {
        "embed": "word_embeddings",
        "embed_norm": "word_embeddings_layernorm",
        **_neox_blocks(
            "h.*", "self_attention", config.size(config.spelling(*_BLOOM.heads_keys), _BLOOM.heads)
        ),
        "final_norm": "ln_f",
        "head.out_proj": out_name(config),
    },
    prefix="transformer.",
    body=("word_embeddings.", "word_embeddings_layernorm.", "h.", "ln_f."),
    harmless=(
        *("attention_softmax_in_fp32", "bias_dropout_fusion", "hidden_dropout"),
        *("masked_softmax_fusion", "offset_alibi", "seq_length", "skip_bias_add"),
        *("skip_bias_add_qkv", "unk_token_id"),
    ),
)
FAMILIES = (GPT2, GPT_NEO, GPTJ, GPT_NEOX, OPT, BLOOM)
