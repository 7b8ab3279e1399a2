"""GPT-2 and later decoders: GPT-Neo, GPT-J, GPT-NeoX (Pythia), OPT, BLOOM and Falcon."""

from dataclasses import replace
from typing import Any

from qkv.layers import Rotary
from qkv.models.families._rope import RotaryDefaults, read_rotary
from qkv.models.families._shared import read_families, stack
from qkv.models.files.config import Config
from qkv.models.files.names import Fused, PartNames
from qkv.models.files.read import ModelError, is_whole
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head


def attention(config: Config, **fields: Any) -> Attention:
    """Return the causal attention of a layer; `fields` are other fields of `Attention`."""
    _, heads, size = config.heads()
    return Attention(heads, heads, size, **{"options": {"is_causal": True}, **fields})


def decoder(config: Config, **fields: Any) -> Design:
    """Return the design that all decoders in this file share.

    Args:
        config: the model's config.
        fields: the fields of the design that the family sets.
    """
    if "layers" not in fields:
        fields["layers"] = attention(config)
    if "hidden" not in fields:
        hidden = config.size_or_none("intermediate_size")
        fields["hidden"] = 4 * config.size("hidden_size") if hidden is None else hidden
    if "head" not in fields:
        fields["head"] = head(config)
    return Design(**stack(config, **fields))


def head(config: Config, *, bias: bool = False, tokens: bool = False) -> Head | None:
    """Return a decoder's head, which predicts the next word or classifies texts or tokens.

    Args:
        config: the model's config.
        bias: whether the head that predicts words has a bias.
        tokens: whether the family has a head that classifies each token.
    """
    if config.head() == "CausalLM":
        return Head(config.size("vocab_size"), tied=config.flag("tie_word_embeddings"), bias=bias)
    if config.head() == "SequenceClassification":
        padding = config.values.get("pad_token_id", config.defaults.get("pad_token_id"))
        config.need(padding is None or is_whole(padding), "pad_token_id", padding, "a whole number")
        return Head(config.labels(), pool="lasttoken", padding=padding)
    if tokens and config.head() == "TokenClassification":
        return Head(config.labels(), bias=True, classes=True)
    return None


def gpt2(config: Config) -> Design:
    """Return the design of a GPT-2: learned positions and pre-norms."""
    config.only("add_cross_attention", False)
    layer = attention(config)
    by_layer = config.flag("scale_attn_by_inverse_layer_idx")
    first = layer.head_size**-0.5 if config.flag("scale_attn_weights") else 1.0
    scales = [first / (number if by_layer else 1) for number in range(1, config.layers() + 1)]
    options = [{"is_causal": True, "scale": scale} for scale in scales]
    return decoder(config, layers=tuple(replace(layer, options=values) for values in options))


def gpt_neo(config: Config) -> Design:
    """Return the design of a GPT-Neo: a GPT-2 with unscaled scores and windows in some layers."""
    far = attention(config, options={"is_causal": True, "scale": 1.0})
    near = far.within(config.size("window_size"))
    kinds = gpt_neo_kinds(config, config.layers())
    layers = tuple(near if kind == "local" else far for kind in kinds)
    return decoder(config, layers=layers, qkv_bias=False)


def gpt_neo_kinds(config: Config, count: int) -> list[str]:
    """Return "global" or "local" for each layer, from the key `attention_types`.

    `attention_types` is a list of pairs. The first element of a pair is a list of kinds. The second
    element is the number of consecutive uses of this list: `[["global", "local"], 2]` stands for
    global, local, global, local.

    >>> types = [[["global", "local"], 1], [["global"], 1]]
    >>> gpt_neo_kinds(Config({"attention_types": types}, "config.json"), 3)
    ['global', 'local', 'global']
    """
    known = ("global", "local")
    types = config.value("attention_types", [[[*known], 12]])
    key = config.key("num_hidden_layers")
    must = f'pairs like [["global", "local"], 12], with {count} kinds in total ({key})'
    fine = isinstance(types, list)
    kinds: list[str] = []
    for pair in types if fine else ():
        fine = fine and isinstance(pair, list) and len(pair) == 2
        fine = fine and isinstance(pair[0], list) and set(map(str, pair[0])) <= {*known}
        fine = fine and is_whole(pair[1]) and 0 <= pair[1] * len(pair[0]) <= count - len(kinds)
        kinds += [*pair[0]] * pair[1] if fine else []
    config.need(fine and len(kinds) == count, "attention_types", types, must, 80)
    again = config.value("attention_layers", kinds)  # Old files also use this key.
    if again != kinds:
        raise ModelError(
            f"{config.source}: attention_layers is {again!r:.80}, but attention_types gives "
            f"{kinds!r:.80}; keep only one of these keys, because both set the same option"
        )
    return kinds


def gptj(config: Config) -> Design:
    """Return the design of a GPT-J: attention and MLP in parallel, and partly rotated heads."""
    layer, rotated = attention(config), config.size("rotary_dim")
    size = layer.head_size
    if rotated % 2 or rotated > size:
        raise ModelError(
            f"{config.source}: rotary_dim is {rotated} and a head has {size} dimensions "
            f"({config.key('hidden_size')} / n_head); rotary_dim must "
            f"be an even number of at most {size}"
        )
    return decoder(
        config,
        layers=replace(layer, rotary=Rotary(dims=rotated, interleaved=True)),
        parallel=True,
        mlp_norm=False,
        qkv_bias=False,
        out_bias=False,
        head=head(config, bias=True),
    )


def gpt_neox(config: Config) -> Design:
    """Return the design of a GPT-NeoX: attention and MLP in parallel, and partly rotated heads."""
    layer, bias = attention(config), config.flag("attention_bias")
    config.only("head_dim", layer.head_size, None)
    base = config.positive("rotary_emb_base")
    config.only("rope_theta", base, None)  # `rope_theta` sets the same option as `rotary_emb_base`
    part = config.positive("rotary_pct")
    config.only("partial_rotary_factor", part, None)
    rotary = read_rotary(config, layer.head_size, RotaryDefaults(base, partial=part))
    return decoder(
        config,
        layers=replace(layer, rotary=rotary),
        hidden=config.size("intermediate_size"),
        parallel=config.flag("use_parallel_residual"),
        qkv_bias=bias,
        out_bias=bias,
        head=head(config, tokens=True),
    )


def opt(config: Config) -> Design:
    """Return the design of an OPT: positions skip masked tokens and begin at row 2 of the table."""
    plain = decoder(config, hidden=config.size("intermediate_size"))
    first, embedded = 2, config.size_or_none("word_embed_proj_dim") or plain.dim
    projects = embedded != plain.dim
    config.only("layer_norm_elementwise_affine", True)
    before, bias = config.flag("do_layer_norm_before"), config.flag("enable_bias")
    removed = config.flag("_remove_final_layer_norm")
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
    )


def bloom(config: Config) -> Design:
    """Return the design of a BLOOM: scores that decrease with distance (ALiBi)."""
    plain = decoder(
        config,
        layers=attention(config, alibi=1.0),
        hidden=4 * config.size("hidden_size"),
        activation="gelu_bloom",
        max_seq_length=None,
        embed_norm=True,
        head=head(config, tokens=True),
    )
    config.only("n_inner", plain.hidden, None)
    config.only("apply_residual_connection_post_layernorm", False)
    if config.size("pretraining_tp") > 1:  # with `slow_but_exact`, transformers omits biases
        config.only("slow_but_exact", False)
    else:
        config.flag("slow_but_exact")
    return plain


def falcon(config: Config) -> Design:
    """Return the design of a Falcon: attention and MLP in parallel, with one norm or two."""
    dim, heads, size = config.heads()
    norms, bias, layer = _falcon_norms(config), config.flag("bias"), attention(config)
    layer = replace(layer, num_kv_heads=_falcon_kv_heads(config, heads))
    limited: dict[str, Any] = {}
    if config.flag("alibi"):
        layer, limited = replace(layer, alibi=size**-0.5), {"max_seq_length": None, "positions": 0}
    else:
        layer = replace(layer, rotary=read_rotary(config, size))
    return decoder(
        config,
        layers=layer,
        hidden=config.size_or_none("ffn_hidden_size") or 4 * dim,
        parallel=norms != 0,
        mlp_norm=norms != 1,
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), bias),
        **limited,
        head=head(config, tokens=True),
    )


def _falcon_norms(config: Config) -> int:
    """Return how many norms the parallel parts of a block have; 0 if they are not parallel."""
    if config.flag("new_decoder_architecture"):
        config.only("parallel_attn", True)
        config.only("num_ln_in_parallel_attn", 2, 1, None)
        return 1 if config.values.get("num_ln_in_parallel_attn") == 1 else 2
    if not config.flag("parallel_attn"):
        return 0
    config.only("num_ln_in_parallel_attn", 1, None)
    return 1


def _falcon_kv_heads(config: Config, heads: int) -> int:
    """Return the number of key and value heads of a Falcon."""
    given = config.size_or_none("num_kv_heads") or heads
    if config.flag("new_decoder_architecture"):
        if heads % given:
            raise ModelError(
                f"{config.source}: num_attention_heads is {heads} and num_kv_heads is {given}; "
                "num_attention_heads must be a multiple of num_kv_heads"
            )
        return given
    if config.flag("multi_query"):
        return 1
    config.only("num_kv_heads", heads, None)
    return heads


def _falcon_names(names: PartNames, config: Config) -> PartNames:
    """Return the names for files that store, for each key head, its queries, key and value."""
    heads = config.size("num_attention_heads")
    kv_heads = _falcon_kv_heads(config, heads)
    shares = (heads // kv_heads, 1, 1)
    two = _falcon_norms(config) == 2
    norms = {"blocks.*.norm1": "h.*.ln_attn", "blocks.*.norm2": "h.*.ln_mlp"} if two else {}
    return {
        ours: replace(theirs, groups=kv_heads, shares=shares)
        if isinstance(theirs, Fused)
        else theirs
        for ours, theirs in {**names, **norms}.items()
    }


def _by_head(names: PartNames, config: Config) -> PartNames:
    """Return the names for files that store Q, K and V of head 0, then Q, K and V of head 1, ..."""
    heads = config.size("num_attention_heads")
    return {
        ours: replace(theirs, groups=heads) if isinstance(theirs, Fused) else theirs
        for ours, theirs in names.items()
    }


FAMILIES = read_families(
    "gpt.toml",
    {
        "gpt2": gpt2,
        "gpt_neo": gpt_neo,
        "gptj": gptj,
        "gpt_neox": gpt_neox,
        "opt": opt,
        "bloom": bloom,
        "falcon": falcon,
    },
    gpt_neox=_by_head,
    bloom=_by_head,
    falcon=_falcon_names,
)
