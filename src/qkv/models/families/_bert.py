"""BERT and its variants: ALBERT, DistilBERT, ELECTRA, ModernBERT, MPNet, RoBERTa, ..."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from qkv.layers import Rotary
from qkv.models.families._rope import OlderKeys, RotaryDefaults, read_rotaries, read_rotary
from qkv.models.families._shared import read_families, stack
from qkv.models.files.config import FULL, MOST_LAYERS, SLIDING, Config
from qkv.models.files.names import PartNames, fused
from qkv.models.files.read import ModelError
from qkv.models.network import Buckets, Disentangled
from qkv.models.network.design import Attention, Convolved, Design
from qkv.models.network.head import Head
from qkv.ops.activation import CONFIG_NAMES


def encoder(config: Config, **fields: Any) -> Design:
    """Return the design that BERT and its variants share.

    Args:
        config: the model's config.
        fields: the fields of the design that the family sets.
    """
    config.only("position_embedding_type", "absolute")
    return _post_norm(config, **fields)


def _post_norm(config: Config, **fields: Any) -> Design:
    """Return the design of an encoder with a norm after each attention and each MLP."""
    return Design(**stack(config, embed_norm=True, norms="after", final_norm=False, **fields))


def head(config: Config, activation: str, *, pooled: str = "tanh") -> Head | None:
    """Return the head, which predicts masked words or classifies the text or each token.

    Args:
        config: the model's config.
        activation: the activation in the head that predicts words.
        pooled: the activation before the layer that classifies the text.
    """
    match config.head():
        case "MaskedLM" | "PreTraining":
            return Head(
                config.size("vocab_size"),
                tied=config.flag("tie_word_embeddings"),
                bias=True,
                dense=True,
                activation=activation,
                norm=True,
            )
        case "SequenceClassification":
            return Head(config.labels(), bias=True, pool="cls", dense=True, activation=pooled)
        case "TokenClassification":
            return Head(config.labels(), bias=True, classes=True)
    return None


def bert(config: Config) -> Design:
    """Return the design of a BERT: learned positions, segments, and post-norms."""
    if _is_jina_bert(config):
        return _jina_bert(config)
    top = head(config, config.activation("hidden_act"))
    return encoder(config, token_types=config.size("type_vocab_size"), head=top)


def _is_jina_bert(config: Config) -> bool:
    """Return whether the model is a JinaBERT (jina-embeddings-v2), which has ALiBi."""
    return config.values.get("position_embedding_type") == "alibi"


def _normalizes_qk(config: Config) -> bool:
    """Return whether a JinaBERT normalises queries and keys; only the name of its code says so."""
    return "qk-post-norm" in str(config.value("auto_map", ""))


def _jina_bert(config: Config) -> Design:
    """Return the design of a JinaBERT: scores that decrease with distance, and gated MLPs."""
    _, heads, size = config.heads()
    config.only("position_embedding_type", "alibi")
    norm: Literal["width", "no"] = "width" if _normalizes_qk(config) else "no"
    return _post_norm(
        config,
        layers=Attention(heads, heads, size, alibi=True, qk_norm=norm),
        activation=config.choice("feed_forward_type", {"geglu": "gelu", "reglu": "relu"}),
        positions=0,
        token_types=config.size("type_vocab_size"),
        gated=True,
        mlp_bias="down",
        head=head(config, config.activation("hidden_act")),
    )


def _bert_names(names: PartNames, config: Config) -> PartNames:
    """Return the parameter names; a JinaBERT has different names in its MLPs and norms."""
    if not _is_jina_bert(config):
        return names
    wide, parts = "mlp.gated_layers", {"mlp.down_proj": "mlp.wo", "norm2": "mlp.layernorm"}
    both = ["blocks.*.mlp.gate_proj", "blocks.*.mlp.up_proj"]
    if _normalizes_qk(config):
        wide, both = "mlp.up_gated_layer", both[::-1]
        parts = {"mlp.down_proj": "mlp.down_layer", "norm1": "layer_norm_1"}
        parts |= {"norm2": "layer_norm_2", "attn.q_norm": "attention.self.layer_norm_q"}
        parts |= {"attn.k_norm": "attention.self.layer_norm_k"}
    block = "encoder.layer.*."
    named = {f"blocks.*.{our}": block + their for our, their in parts.items()}
    return {**names, **named, **fused(block + wide, *both)}


def distilbert(config: Config) -> Design:
    """Return the design of a DistilBERT: a BERT without segments, with different config keys."""
    return encoder(config, head=head(config, config.activation("hidden_act"), pooled="relu"))


def electra(config: Config) -> Design:
    """Return the design of an ELECTRA: a BERT whose token embeddings may be smaller than D."""
    width = config.size("embedding_size")
    plain = encoder(config, token_types=config.size("type_vocab_size"))
    if config.head() == "PreTraining":  # A discriminator with one logit per token.
        options: dict[str, Any] = {"flat": True, "dense": True, "activation": plain.activation}
        top: Head | None = Head(1, bias=True, classes=True, **options)
    else:
        top = _narrow(head(config, "gelu", pooled="gelu"), width)
    return replace(plain, embed_dim=None if width == plain.dim else width, head=top)


def _narrow(top: Head | None, width: int) -> Head | None:
    """Return the head; if the head predicts words, set the size of its word vectors to `width`."""
    return replace(top, width=width) if top is not None and top.norm else top


def albert(config: Config) -> Design:
    """Return the design of an ALBERT: layers that share parameters, and small token embeddings."""
    plain = encoder(config, token_types=config.size("type_vocab_size"))
    same_as = tuple(first for first, _, _ in _albert_groups(config))
    width = config.size("embedding_size")
    return replace(
        plain,
        embed_dim=width,
        layers=plain.layers[:1] * len(same_as),
        same_as=same_as,
        head=_narrow(head(config, plain.activation), width),
    )


def _albert_groups(config: Config) -> Iterator[tuple[int, int, int]]:
    """Yield `(first, group, part)` for each layer in the network.

    `first` is the index of the first layer that uses this layer's parameters. `group` is the index
    of the layer's group. `part` is the layer's index in its group. The network always runs
    all layers of a group. `num_hidden_layers` in the config counts the groups that are run, not the
    layers: the network has `num_hidden_layers * inner_group_num` layers.
    """
    count, groups = config.layers(), config.size("num_hidden_groups")
    if groups > count:
        raise ModelError(
            f"{config.source}: num_hidden_groups is {groups} and num_hidden_layers is {count}; "
            "num_hidden_groups must not be larger than num_hidden_layers"
        )
    inner = config.size("inner_group_num", most=MOST_LAYERS // count)
    firsts: dict[int, int] = {}
    for layer in range(count):
        group = int(layer / (count / groups))  # computed as in transformers
        first = firsts.setdefault(group, layer) * inner
        yield from ((first + part, group, part) for part in range(inner))


def _albert_names(names: PartNames, config: Config) -> PartNames:
    """Return the parameter names: `*` in `names` becomes the number of a group or a layer."""
    return {
        ours.replace("*", str(first)): str(theirs)
        .replace("*", str(group), 1)
        .replace("*", str(part))
        for first, group, part in _albert_groups(config)
        for ours, theirs in names.items()
    }


def roberta(config: Config) -> Design:
    """Return the design of a RoBERTa: a BERT with positions that skip padding tokens."""
    _need_no_adapters(config)
    padding, token_types = config.whole("pad_token_id"), config.size("type_vocab_size")
    shared = encoder(config, token_types=token_types, head=head(config, "gelu"))
    return _behind_padding(shared, padding, config)


def _need_no_adapters(config: Config) -> None:
    """Raise an error for jina-embeddings-v3 in its first format, whose layers have adapters."""
    if tasks := config.value("lora_adaptations", None):
        raise ModelError(
            f"{config.source}: lora_adaptations is {tasks!r:.80}, but qkv does not apply task "
            "adapters; load the model in the format of transformers (model_type jina_embeddings_v3)"
        )


def _behind_padding(shared: Design, padding: int, config: Config) -> Design:
    """Return the design with position ids that begin at the padding token's id + 1."""
    if shared.positions <= padding + 1:
        raise ModelError(
            f"{config.source}: max_position_embeddings is {shared.positions} and the padding's id "
            f"is {padding}, so positions begin at {padding + 1}; max_position_embeddings must be "
            f"at least {padding + 2}"
        )
    first = padding + 1
    return replace(
        shared, max_seq_length=shared.positions - first, first_position=first, padding=padding
    )


def mpnet(config: Config) -> Design:
    """Return the design of an MPNet: a RoBERTa with relative position biases, without segments."""
    buckets = Buckets(32, 128)
    config.only(
        "relative_attention_num_buckets", buckets.count
    )  # transformers supports only this number of buckets
    shared = encoder(config, buckets=buckets, head=head(config, "gelu"))
    return _behind_padding(shared, 1, config)  # MPNet ignores `pad_token_id`


_POOLS: dict[str, Literal["cls", "mean"]] = {"cls": "cls", "mean": "mean"}


def modernbert(config: Config) -> Design:
    """Return the design of a ModernBERT: windows in most layers, gated MLPs, and pre-norms."""
    bias = config.flag("attention_bias")
    return Design(
        **stack(
            config,
            layers=_modernbert_layers(config),
            max_seq_length=config.size("max_position_embeddings"),
            embed_norm=True,
            first_norm=False,
            norm_bias=config.flag("norm_bias"),
            gated=True,
            qkv_bias=bias,
            out_bias=bias,
            mlp_bias=config.flag("mlp_bias"),
            head=_modernbert_head(config),
        )
    )


def deberta_v2(config: Config) -> Design:
    """Return the design of a DeBERTa v2 or v3: scores between tokens and relative positions."""
    dim, heads, size = config.heads()
    for key in ("embedding_size", "pooler_hidden_size"):
        config.only(key, dim, None)
    config.only("attention_head_size", size, None)
    conv, width = None, config.whole("conv_kernel_size")
    config.need(width % 2 == 1 or width == 0, "conv_kernel_size", width, "an odd number, or 0")
    if width:
        groups, activations = config.size("conv_groups"), {**CONFIG_NAMES, "tanh": "tanh"}
        config.need(dim % groups == 0, "conv_groups", groups, f"a divisor of {dim}")
        conv = Convolved(width, groups, config.choice("conv_act", activations))
    kinds = config.value("pos_att_type", [])
    kinds = [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else kinds
    met = {"c2p": ("q", "k_proj"), "p2c": ("k", "q_proj")}
    fine = isinstance(kinds, list) and all(kind in [*met] for kind in kinds)
    config.need(fine, "pos_att_type", kinds, 'a list of "c2p" and "p2c"')
    met = {kind: part for kind, part in met.items() if kind in kinds}
    scale = ((1 + len(met)) * size) ** -0.5
    longest = config.size("max_position_embeddings")
    relative = None
    if config.flag("relative_attention"):
        buckets = config.value("position_buckets", -1)
        if buckets != -1:
            buckets = config.size("position_buckets", least=4, most=longest)
        furthest = config.value("max_relative_positions", -1)
        least = max(buckets, 1)
        furthest = longest if furthest == -1 else config.size("max_relative_positions", least=least)
        prefix = "" if config.flag("share_att_key") else "pos_"
        relative = Disentangled(
            furthest if buckets == -1 else buckets,
            None if buckets == -1 else furthest,
            {part: prefix + proj for part, proj in met.values()},
            scale,
            norm=config.choice("norm_rel_ebd", {"none": False, "layer_norm": True}),
        )
    pooled = config.choice("pooler_hidden_act", {**CONFIG_NAMES, "tanh": "tanh"})
    top = head(config, config.activation("hidden_act"), pooled=pooled)
    if top is not None and top.norm and not config.flag("legacy"):
        top = replace(top, tied=True)
    return _post_norm(
        config,
        layers=Attention(heads, heads, size, options={"scale": scale}),
        positions=longest if config.flag("position_biased_input") else 0,
        token_types=config.whole("type_vocab_size"),
        disentangled=relative,
        conv=conv,
        head=top,
    )


def _deberta_names(names: PartNames, config: Config) -> PartNames:
    """Return the parameter names; without `legacy`, files name the head for words differently."""
    if config.head() != "MaskedLM" or config.flag("legacy"):
        return names
    top, inner = "lm_predictions.lm_head", ("dense", "LayerNorm")
    parts = zip(("head.dense_proj", "head.norm"), inner, strict=True)
    return {**names, **{our: f"{top}.{their}" for our, their in parts}, "head.out_proj": top}


def _modernbert_layers(config: Config) -> tuple[Attention, ...]:
    """Return each layer's attention: by default, two of three layers have a window.

    The base of the rotary positions may differ between layers with and without a window.
    """
    _, heads, size = config.heads()
    every = config.size("global_attn_every_n_layers")
    kinds = config.kinds([SLIDING if layer % every else FULL for layer in range(config.layers())])
    base = config.positive("global_rope_theta")
    local = config.positive_or_none("local_rope_theta") or base
    keys = {FULL: OlderKeys("global_rope_theta", base)}
    keys[SLIDING] = OlderKeys("local_rope_theta", local)
    rotary = read_rotaries(config, size, keys)
    width = config.size("local_attention")
    config.only("sliding_window", width // 2, None)  # `sliding_window` is half the window's width
    full = Attention(heads, heads, size, rotary=rotary[FULL])
    attends = {FULL: full, SLIDING: replace(full, rotary=rotary[SLIDING]).within(width)}
    return tuple(attends[kind] for kind in kinds)


def _modernbert_head(config: Config) -> Head | None:
    """Return the head, which predicts masked words or classifies the text or each token."""
    words = Head(
        config.size("vocab_size"),
        tied=config.flag("tie_word_embeddings"),
        bias=config.flag("decoder_bias"),
        dense=True,
        dense_bias=config.flag("classifier_bias"),
        activation=config.activation("classifier_activation"),
        norm=True,
        norm_bias=config.flag("norm_bias"),
    )
    pool = config.choice("classifier_pooling", _POOLS)
    match config.head():
        case "MaskedLM":
            return words
        case "SequenceClassification":
            return replace(words, outputs=config.labels(), tied=False, bias=True, pool=pool)
        case "TokenClassification":
            return replace(words, outputs=config.labels(), tied=False, bias=True, classes=True)
    return None


# Keys of the original Nomic-BERT code, each with the values that qkv supports.
_NOMIC_NEUTRAL = {
    **{"activation_function": ("swiglu",), "causal": (False,), "prenorm": (False,)},
    **{"parallel_block": (False,), "use_rms_norm": (False, None), "num_experts": (0, None)},
    **{"qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,)},
    **{"rotary_emb_fraction": (1.0,), "rotary_emb_interleaved": (False,)},
    **{"rotary_emb_scale_base": (None,), "rotary_scaling_factor": (None,)},
    **{"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
}


def nomic_bert(config: Config) -> Design:
    """Return the design of a Nomic-BERT: a BERT with rotary positions and a gated MLP."""
    for key, allowed in _NOMIC_NEUTRAL.items():
        config.only(key, *allowed)
    _, heads, size = config.sized_heads()
    rotary = read_rotary(config, size, RotaryDefaults(config.positive("rotary_emb_base")))
    return _post_norm(
        config,
        layers=Attention(heads, heads, size, rotary=rotary),
        token_types=config.size("type_vocab_size"),
        gated=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        head=head(config, config.activation("hidden_act")),
    )


def _rotary_design(config: Config, rotary: Rotary, **fields: Any) -> Design:
    """Return the design of an encoder with rotary positions and a norm after each part."""
    _, heads, size = config.sized_heads()
    types = config.whole("type_vocab_size")
    layers = Attention(heads, heads, size, rotary=rotary)
    return _post_norm(config, layers=layers, token_types=types, **fields)


def jina_embeddings_v3(config: Config) -> Design:
    """Return the design of a jina-embeddings-v3 without task adapters: a rotary XLM-RoBERTa."""
    _, _, size = config.sized_heads()
    rotary = read_rotary(config, size, RotaryDefaults(20000.0))
    return _rotary_design(config, rotary, head=head(config, "gelu"))


def gte(config: Config) -> Design:
    """Return the design of a GTE: rotary positions and gated MLPs."""
    _, _, size = config.sized_heads()
    rotary = read_rotary(config, size, RotaryDefaults(160000.0))
    return _rotary_design(config, rotary, gated=True, mlp_bias="down", head=head(config, "gelu"))


# Keys of the first code of GTE, each with the values that qkv supports. Its xformers kernel drops
# padding, as qkv always does.
_NEW_NEUTRAL = {
    **{"position_embedding_type": ("rope",), "layer_norm_type": ("layer_norm",)},
    **{"pack_qkv": (True,), "logn_attention_scale": (False, None)},
}


def new(config: Config) -> Design:
    """Return the design of a GTE in its first format, whose `model_type` is "new"."""
    for key, allowed in _NEW_NEUTRAL.items():
        config.only(key, *allowed)
    _, _, size = config.sized_heads()
    table = Config(config.table("rope_scaling"), f"{config.source}: rope_scaling")
    table.choice(table.spelling("type", "rope_type"), {"ntk": True}, "ntk")
    table.only("mixed_b", None)
    factor = max(table.positive("factor", 1.0), 1.0)
    table.finish()
    # "ntk" multiplies the base, and divides all angles.
    values = {"rope_theta": config.positive("rope_theta") * factor}
    values["max_position_embeddings"] = config.size("max_position_embeddings")
    scaling = {"rope_type": "linear", "factor": factor ** (2 / size)}
    rotary = read_rotary(Config({**values, "rope_scaling": scaling}, config.source), size)
    top = head(config, config.activation("hidden_act"))
    return _rotary_design(config, rotary, gated=True, mlp_bias="down", head=top)


_ALL = read_families(
    "bert.toml",
    {
        "bert": bert,
        "distilbert": distilbert,
        "electra": electra,
        "albert": albert,
        "roberta": roberta,
        "xlm-roberta": roberta,
        "camembert": roberta,
        "mpnet": mpnet,
        "deberta-v2": deberta_v2,
        "modernbert": modernbert,
        "nomic_bert": nomic_bert,
        "gte": gte,
        "new": new,
        "jina_embeddings_v3": jina_embeddings_v3,
    },
    **{"albert": _albert_names, "bert": _bert_names, "deberta-v2": _deberta_names},
)
# transformers has no class for the first format of GTE.
FAMILIES = [family for family in _ALL if family.model_type != "new"]
