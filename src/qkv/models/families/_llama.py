"""Llama and related decoders, such as Mistral, Qwen, OLMo, Granite, Phi, Gemma and mixtures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qkv.models.families import _gpt
from qkv.models.families._rope import OlderKeys, RotaryDefaults, read_rotaries, read_rotary
from qkv.models.families._shared import read_families, stack
from qkv.models.files.config import FULL, SLIDING, Config
from qkv.models.files.names import QKV, PartNames, fused
from qkv.models.files.read import ModelError, is_whole
from qkv.models.network import LongRope
from qkv.models.network.design import Attention, Design, GatedMixture, Mixture
from qkv.models.network.head import Head


def attention(config: Config, **fields: Any) -> Attention:
    """Return the attention of a layer in Llama or a related family.

    Args:
        config: the model's config.
        fields: fields of `Attention`, with the family's values.
    """
    heads, size = config.size("num_attention_heads"), config.size_or_none("head_dim")
    if size is None:
        _, _, size = config.heads()
    kv_heads = config.size_or_none("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ModelError(
            f"{config.source}: num_attention_heads is {heads} and num_key_value_heads is "
            f"{kv_heads}; num_attention_heads must be a multiple of num_key_value_heads"
        )
    if "rotary" not in fields:
        given = config.defaults
        base, table = given["rope_theta"], given.get("rope_parameters", {})
        defaults = RotaryDefaults(base, table, given.get("partial_rotary_factor"))
        fields["rotary"] = read_rotary(config, size, defaults)
    fields.setdefault("options", {"is_causal": config.flag("is_causal", True)})
    return Attention(heads, kv_heads, size, **fields)


def window(config: Config) -> int | None:
    """Return the width of the windows, from the key `sliding_window`; None without windows.

    In causal attention, `sliding_window` is the width. If `is_causal` is false, `sliding_window` is
    the number of tokens on each side.
    """
    width = config.size_or_none("sliding_window")
    return width if width is None or config.flag("is_causal", True) else 2 * width


def windows(config: Config, every: int) -> tuple[int | None, ...]:
    """Return the window of each layer, in tokens; None for a layer that sees all tokens.

    The config's key `layer_types` gives the kind of each layer. If `layer_types` is missing, the
    layers `every`, `2 * every`, ... (counted from 1) see all tokens, and the other layers have
    windows.
    """
    turns = [SLIDING if layer % every else FULL for layer in range(1, config.layers() + 1)]
    kinds = config.kinds(turns)
    width = window(config)
    if width is None and SLIDING in kinds:
        raise ModelError(
            f"{config.source}: sliding_window is None, but layer_types has "
            "'sliding_attention'; set sliding_window to the window's size"
        )
    return tuple(width if kind == SLIDING else None for kind in kinds)


def decoder(config: Config, layers: Attention | Sequence[Attention], **fields: Any) -> Design:
    """Return the design that Llama and its variants share.

    Args:
        config: the model's config.
        layers: one attention for all layers, or a list with the attention of each layer.
        fields: the fields of the design that the family sets.
    """
    shared: dict[str, Any] = {
        "layers": layers if isinstance(layers, Attention) else tuple(layers),
        "rms": True,
        "gated": True,
        "qkv_bias": False,
        "out_bias": False,
        "mlp_bias": False,
        "head": _gpt.head(config, tokens=True),
    }
    return Design(**stack(config, **{**shared, **fields}))


def biases(config: Config) -> dict[str, bool]:
    """Return the fields `qkv_bias` and `out_bias` of a design, from the key `attention_bias`."""
    return dict.fromkeys(("qkv_bias", "out_bias"), config.flag("attention_bias"))


def llama(config: Config) -> Design:
    """Return the design of a Llama: rotary positions, grouped heads, gated MLPs and RMS norms."""
    config.only("pretraining_tp", 1, None)
    config.only("rope_interleaved", False, None)
    mlp_bias = config.flag("mlp_bias")
    return decoder(config, attention(config), mlp_bias=mlp_bias, **biases(config))


def eurobert(config: Config) -> Design:
    """Return the design of a EuroBERT: a Llama in which each token sees all tokens."""
    pool = config.choice("classifier_pooling", {"bos": "cls", "mean": "mean", "late": "late"})
    top, bias = None, config.flag("mlp_bias")
    match config.head():
        case "MaskedLM":
            tied = config.flag("tie_word_embeddings")
            top = Head(config.size("vocab_size"), tied=tied, bias=bias)
        case "SequenceClassification":
            late = pool == "late"
            options: dict[str, Any] = {"pool": "mean" if late else pool, "late": late}
            top = Head(config.labels(), bias=True, dense=True, activation="gelu", **options)
        case "TokenClassification":
            top = Head(config.labels(), bias=True, classes=True)
    return replace(
        llama(config), layers=(attention(config, options={}),) * config.layers(), head=top
    )


def mistral(config: Config) -> Design:
    """Return the design of a Mistral: a Llama in which each token sees a window."""
    width = config.size_or_none("sliding_window")
    kind = FULL if width is None else SLIDING
    if set(config.kinds([kind] * config.layers())) != {kind}:
        raise ModelError(
            f"{config.source}: sliding_window is {width}, so each of the layer_types must be "
            f"{kind!r}, because all layers of a Mistral model have the same type"
        )
    return decoder(config, attention(config).within(window(config)))


def qwen2(config: Config) -> Design:
    """Return the design of a Qwen2: Q, K and V have biases; the last layers may have windows."""
    config.only("use_mrope", False, None)
    return decoder(config, _last_windowed(config, attention(config)), qkv_bias=True)


def qwen3(config: Config) -> Design:
    """Return the design of a Qwen3: a Qwen2 that normalises queries and keys."""
    layers = _last_windowed(config, attention(config, qk_norm="head"))
    return decoder(config, layers, **biases(config))


def _window(config: Config) -> int | None:
    """Return the window of a Qwen or SmolLM3; None if `use_sliding_window` is false."""
    width = window(config)
    return width if config.flag("use_sliding_window") else None


def _last_windowed(config: Config, layer: Attention) -> list[Attention]:
    """Return the attention of each layer of a Qwen.

    By default, layer `max_window_layers` and all later layers have windows.
    """
    first, count = config.whole("max_window_layers"), config.layers()
    return _add_windows(config, [layer] * count, [number >= first for number in range(count)])


def _add_windows(
    config: Config, layers: Sequence[Attention], turns: Sequence[bool]
) -> list[Attention]:
    """Return the layers, some of which have windows: by default, those with True in `turns`."""
    width = _window(config)
    kinds = config.kinds([SLIDING if turn and width is not None else FULL for turn in turns])
    if width is None and SLIDING in kinds:
        raise ModelError(
            f"{config.source}: layer_types has 'sliding_attention', but the window is missing; set "
            "sliding_window, and set use_sliding_window to true"
        )
    pairs = zip(layers, kinds, strict=True)
    return [layer.within(width) if kind == SLIDING else layer for layer, kind in pairs]


def smollm3(config: Config) -> Design:
    """Return the design of a SmolLM3: a Llama in which some layers have no rotary positions."""
    layer, count = attention(config), config.layers()
    every = config.size("no_rope_layer_interval")
    turns = config.value("no_rope_layers", [int(n % every > 0) for n in range(1, count + 1)])
    fine = isinstance(turns, list) and len(turns) >= count and all(map(is_whole, turns))
    must = f"a list of {count} numbers, 1 for a layer with rotary positions and 0 for other layers"
    config.need(fine, "no_rope_layers", turns, must)
    layers = [layer if turn else replace(layer, rotary=None) for turn in turns[:count]]
    return decoder(
        config,
        _add_windows(config, layers, [one.rotary is None for one in layers]),
        positions=0,
        mlp_bias=config.flag("mlp_bias"),
        **biases(config),
    )


def granite(config: Config) -> Design:
    """Return the design of a Granite: a Llama with a factor for each sum, score and logit."""
    scale = config.positive("attention_multiplier")
    plain = decoder(
        config,
        attention(config, options={"is_causal": config.flag("is_causal", True), "scale": scale}),
        embed_scale=config.positive("embedding_multiplier"),
        residual_scale=config.positive("residual_multiplier"),
        mlp_bias=config.flag("mlp_bias"),
        **biases(config),
    )
    divisor = config.positive("logits_scaling")
    if plain.head is None or config.head() != "CausalLM":
        return plain
    return replace(plain, head=replace(plain.head, scale=1 / divisor))


def olmo(config: Config) -> Design:
    """Return the design of an OLMo: a Llama whose LayerNorms have no parameters."""
    layer, eps = attention(config, clip=config.positive_or_none("clip_qkv")), 1e-5
    return decoder(config, layer, rms=False, norm_weight=False, eps=eps, **biases(config))


def olmo2(config: Config) -> Design:
    """Return the design of an OLMo 2.

    A norm follows each attention layer and each MLP. Queries and keys are normalised over all
    heads.
    """
    return decoder(config, attention(config, qk_norm="width"), norms="behind", **biases(config))


def olmo3(config: Config) -> Design:
    """Return the design of an OLMo 3: an OLMo 2 in which three of four layers have windows."""
    config.only("rope_theta", 5e5, None)  # transformers uses other values only in some layers
    keys = {FULL: OlderKeys("rope_theta", 5e5), SLIDING: OlderKeys("rope_theta", 5e5, scaled=False)}
    layers = _with_local_rotary(config, keys, 4, qk_norm="width")
    return decoder(config, layers, norms="behind", **biases(config))


def _with_local_rotary(
    config: Config, keys: Mapping[str, OlderKeys], every: int, **fields: Any
) -> list[Attention]:
    """Return the attention of each layer; layers with windows have their own rotary positions.

    Args:
        config: the model's config.
        keys: the older keys for rotary positions, as in `read_rotaries`.
        every: the default for layers without windows, as in `windows`.
        fields: other fields of `Attention`.
    """
    rotary = read_rotaries(config, config.sized_heads()[2], keys)
    full = attention(config, rotary=rotary[FULL], **fields)
    local = replace(full, rotary=rotary[SLIDING])
    return [local.within(width) if width else full for width in windows(config, every)]


def starcoder2(config: Config) -> Design:
    """Return the design of a Starcoder2: a Mistral with LayerNorms, biases and no gate."""
    given = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), config.flag("use_bias"))
    layer = attention(config).within(window(config))
    return decoder(config, layer, rms=False, gated=False, **given)


def stablelm(config: Config) -> Design:
    """Return the design of a StableLM: a Llama with LayerNorms and partly rotated heads."""
    config.only("head_dim", config.heads()[2], None)
    parallel, bias = config.flag("use_parallel_residual"), config.flag("use_qkv_bias")
    return decoder(
        config,
        attention(config, qk_norm="each" if config.flag("qk_layernorm") else "no"),
        rms=False,
        parallel=parallel,
        mlp_norm=not parallel,
        qkv_bias=bias,
    )


def phi(config: Config) -> Design:
    """Return the design of a Phi (1 to 2): attention and MLP in parallel, partly rotated heads."""
    return decoder(
        config,
        attention(config, qk_norm="head" if config.flag("qk_layernorm") else "no"),
        rms=False,
        parallel=True,
        mlp_norm=False,
        gated=False,
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True),
        head=_gpt.head(config, bias=True, tokens=True),
    )


# In early files, "su" and "yarn" mean "longrope".
_PHI3_KINDS = {"default": "default", **dict.fromkeys(("longrope", "su", "yarn"), "longrope")}


def phi3(config: Config) -> Design:
    """Return the design of a Phi-3: a Llama with fused projections and partly rotated heads."""
    config.only("attention_bias", False, None)
    plain = attention(config, rotary=None)
    defaults = RotaryDefaults(partial=1.0, spellings=_PHI3_KINDS)
    rotary = read_rotary(config, plain.head_size, defaults)
    if isinstance(rotary.scaling, LongRope):
        rotary = replace(rotary, scaling=replace(rotary.scaling, renews=True))
    return decoder(config, replace(plain, rotary=rotary).within(window(config)))


def _phi3_names(names: PartNames, config: Config) -> PartNames:
    """Return the parameter names for files in which one tensor holds Q, K and V.

    The config gives the sizes of Q, K and V.
    """
    heads = config.size("num_attention_heads")
    kv_heads = config.size_or_none("num_key_value_heads") or heads
    shares = (heads, kv_heads, kv_heads)
    return {**names, **fused("layers.*.self_attn.qkv_proj", *QKV, shares=shares)}


def gemma(config: Config) -> Design:
    """Return the design of a Gemma: a Llama with GELU, and norms that add 1 to their weights."""
    config.only("use_bidirectional_attention", False, None)
    config.size("head_dim")  # Check that `head_dim` is an integer, not null.
    activation = config.activation("hidden_act")
    if config.values.get("hidden_act") == "gelu":  # In early configs, "gelu" means "gelu_tanh".
        activation = "gelu_tanh"
    return gemma_decoder(config, attention(config), activation=activation)


def gemma_decoder(config: Config, layers: Attention | Sequence[Attention], **fields: Any) -> Design:
    """Return the design that all Gemmas share; the arguments are those of `decoder`."""
    plain = decoder(config, layers, norm_offset=1.0, **biases(config), **fields)
    return replace(plain, embed_scale=plain.dim**0.5)


def gemma2(config: Config) -> Design:
    """Return the design of a Gemma 2: capped scores and logits; every second layer has a window."""
    config.only("use_bidirectional_attention", False, None)
    scores = {
        "is_causal": config.flag("is_causal", True),
        "scale": config.positive("query_pre_attn_scalar") ** -0.5,
        "softcap": config.positive_or_none("attn_logit_softcapping"),
    }
    config.size("head_dim")  # Check that `head_dim` is an integer, not null.
    full = attention(config, options=scores)
    return _gemma_design(config, [full.within(width) for width in windows(config, 2)])


def _gemma_design(config: Config, layers: Sequence[Attention]) -> Design:
    """Return the design that Gemma 2 and 3 share.

    One norm precedes each attention and each MLP, and another norm follows it. Logits are capped.
    """
    softcap = config.positive_or_none("final_logit_softcapping")
    plain = gemma_decoder(config, layers, norms="both")
    if plain.head is None or config.head() != "CausalLM":
        return plain
    return replace(plain, head=replace(plain.head, softcap=softcap))


def gemma3_text(config: Config) -> Design:
    """Return the design of a Gemma 3: five of six layers have windows; Q and K are normalised."""
    config.only("attn_logit_softcapping", None)
    config.only("use_bidirectional_attention", False, None, True)
    both_sides = bool(config.values.get("use_bidirectional_attention"))
    if both_sides:
        config.only("is_causal", True)  # the other key changes the width of windows
    keys = {FULL: OlderKeys("rope_theta", 1e6)}
    keys[SLIDING] = OlderKeys("rope_local_base_freq", 1e4, scaled=False)
    scores = {
        "is_causal": config.flag("is_causal", True) and not both_sides,
        "scale": config.positive("query_pre_attn_scalar") ** -0.5,
    }
    config.size("head_dim")  # Check that `head_dim` is an integer, not null.
    every = config.size("sliding_window_pattern")
    layers = _with_local_rotary(config, keys, every, options=scores, qk_norm="head")
    return _gemma_design(config, layers)


def gemma3(config: Config) -> Design:
    """Return the design of the text part of a Gemma 3 model for texts and images."""
    values = config.table("text_config")
    generates = config.head() == "ConditionalGeneration"
    values["architectures"] = ["Gemma3ForCausalLM" if generates else "Gemma3TextModel"]
    values["tie_word_embeddings"] = config.flag("tie_word_embeddings", True)
    family = next(one for one in FAMILIES if one.model_type == "gemma3_text")
    inner = family.config(values, f"{config.source}: text_config")
    inner.only("model_type", "gemma3_text")
    inner.only("use_bidirectional_attention", False, None)
    inner.only("is_causal", True)
    design = gemma3_text(inner)
    inner.finish(family.harmless)
    return design


def _experts(config: Config) -> tuple[int, int]:
    """Return `(count, top_k)`: the number of experts, and the number of experts per token."""
    count, top_k = config.size("num_local_experts"), config.size("num_experts_per_tok")
    if top_k > count:
        raise ModelError(
            f"{config.source}: num_experts_per_tok is {top_k}, but "
            f"{config.key('num_local_experts')} is {count}: a token cannot use more experts "
            "than there are"
        )
    return count, top_k


def mixtral(config: Config) -> Design:
    """Return the design of a Mixtral: a Mistral with experts instead of MLPs."""
    layer = attention(config).within(window(config))
    experts = GatedMixture(*_experts(config), config.size("intermediate_size"))
    return decoder(config, layer, experts=experts)


def qwen3_moe(config: Config) -> Design:
    """Return the design of a Qwen3-MoE: a Qwen3 with experts instead of some or all MLPs."""
    experts = GatedMixture(
        *_experts(config),
        config.size("moe_intermediate_size"),
        normalized=config.flag("norm_topk_prob"),
        without=_without_experts(config, config.layers()),
    )
    layer = attention(config, qk_norm="head").within(_window(config))
    return decoder(config, layer, experts=experts, **biases(config))


def _without_experts(config: Config, count: int) -> frozenset[int]:
    """Return the indices of the layers that have a plain MLP instead of experts."""
    key = "mlp_only_layers"
    listed, step = config.value(key, []), config.size("decoder_sparse_step")
    fine = isinstance(listed, list) and all(type(number) is int for number in listed)
    config.need(fine, key, listed, "a list of layer numbers")
    return frozenset(n for n in range(count) if n in listed or (n + 1) % step)


def gpt_oss(config: Config) -> Design:
    """Return the design of a GPT-OSS: experts, and one attention sink per head."""
    config.only("hidden_act", "silu")
    config.size("head_dim")  # Check that `head_dim` is an integer, not null.
    full = attention(config, sinks=True)
    count, top_k = _experts(config)
    config.only("experts_per_token", top_k, None)  # Old files also store `top_k` under this key.
    alpha, limit = config.positive("swiglu_alpha"), config.positive("swiglu_limit")
    return decoder(
        config,
        [full.within(width) for width in windows(config, 2)],
        gated=False,
        mlp_bias=True,
        experts=Mixture(count, top_k, alpha=alpha, limit=limit),
        **biases(config),
    )


FAMILIES = read_families(
    "llama.toml",
    {
        "llama": llama,
        "eurobert": eurobert,
        "mistral": mistral,
        "qwen2": qwen2,
        "qwen3": qwen3,
        "smollm3": smollm3,
        "granite": granite,
        "olmo": olmo,
        "olmo2": olmo2,
        "olmo3": olmo3,
        "starcoder2": starcoder2,
        "stablelm": stablelm,
        "phi": phi,
        "phi3": phi3,
        "gemma": gemma,
        "gemma2": gemma2,
        "gemma3_text": gemma3_text,
        "gemma3": gemma3,
        "mixtral": mixtral,
        "qwen3_moe": qwen3_moe,
        "gpt_oss": gpt_oss,
    },
    phi3=_phi3_names,
)
