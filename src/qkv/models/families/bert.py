"""BERT and the encoders after it: DistilBERT, ELECTRA, ALBERT, RoBERTa and MPNet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from qkv.models.files.config import Config
from qkv.models.files.names import Family, projections
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head
from qkv.models.network.relative_bias import Buckets

# The values of keys that a config leaves out.
BERT_SIZES: Mapping[str, Any] = {  # bert-base-uncased
    **{"vocab_size": 30522, "hidden_size": 768, "num_attention_heads": 12},
    **{"num_hidden_layers": 12, "intermediate_size": 3072, "hidden_act": "gelu"},
}
ELECTRA_SIZES = {  # electra-small
    **BERT_SIZES,
    **{"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
}
ALBERT_SIZES = {  # albert-xxlarge
    **{"vocab_size": 30000, "hidden_size": 4096, "num_attention_heads": 64},
    **{"num_hidden_layers": 12, "intermediate_size": 16384, "hidden_act": "gelu_new"},
}
POST_NORM: Mapping[str, Any] = {"embed_norm": True, "norms": "after", "final_norm": False}


def encoder(config: Config, sizes: Mapping[str, Any] = BERT_SIZES, **fields: Any) -> Design:
    """Return the design that BERT and the encoders after it share.

    Args:
        config: the model's config.
        sizes: the values of keys that it leaves out.
        fields: fields of the design that differ in this family.
    """
    dim = config.size("hidden_size", sizes["hidden_size"])
    heads = config.heads(dim, sizes["num_attention_heads"])
    count = config.layers("num_hidden_layers", sizes["num_hidden_layers"])
    positions = config.size("max_position_embeddings", 512)
    config.only("position_embedding_type", "absolute")
    return Design(
        vocabulary=config.size("vocab_size", sizes["vocab_size"]),
        dim=dim,
        hidden=config.size("intermediate_size", sizes["intermediate_size"]),
        activation=config.activation("hidden_act", sizes["hidden_act"]),
        eps=config.positive("layer_norm_eps", 1e-12),
        layers=(Attention(heads, heads, dim // heads),) * count,
        max_seq_length=positions,
        positions=positions,
        **POST_NORM,
        **fields,
    )


def head(
    config: Config, activation: str, *, vocabulary: int = 30522, pooled: str = "tanh"
) -> Head | None:
    """Return the head: words for masked tokens, or classes of the text or of each token.

    Args:
        config: the model's config.
        activation: the activation of the head over words.
        vocabulary: the number of words, unless the config says otherwise.
        pooled: the activation before the classes of a text.
    """
    match config.head():
        case "MaskedLM" | "PreTraining":
            return Head(
                config.size("vocab_size", vocabulary),
                tied=config.flag("tie_word_embeddings", True),
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


def head_names(
    config: Config,
    words: tuple[str, str, str],
    text: tuple[str, str] = ("pooler.dense", "classifier"),
) -> dict[str, str]:
    """Return our names of a head's parts with those in files.

    Args:
        config: the model's config.
        words: the linear layer, norm and projection of a head over words.
        text: the linear layer and projection of a head over classes of a text.
    """
    match config.head():
        case "SequenceClassification":
            return dict(zip(("head.dense_proj", "head.out_proj"), text, strict=True))
        case "TokenClassification":
            return {"head.out_proj": "classifier"}
    return dict(zip(("head.dense_proj", "head.norm", "head.out_proj"), words, strict=True))


BODY = {
    "embed": "embeddings.word_embeddings",
    "pos_embed": "embeddings.position_embeddings",
    "token_type_embed": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    **projections(
        "encoder.layer.*.attention.", "self.query", "self.key", "self.value", "output.dense"
    ),
    "blocks.*.norm1": "encoder.layer.*.attention.output.LayerNorm",
    "blocks.*.mlp.up_proj": "encoder.layer.*.intermediate.dense",
    "blocks.*.mlp.down_proj": "encoder.layer.*.output.dense",
    "blocks.*.norm2": "encoder.layer.*.output.LayerNorm",
}
_TRANSFORM = "cls.predictions.transform"
BERT_HEAD = (f"{_TRANSFORM}.dense", f"{_TRANSFORM}.LayerNorm", "cls.predictions.decoder")


def bert(config: Config) -> Design:
    """Return the design of a BERT: learned positions, segments, norms after each part."""
    top = head(config, config.activation("hidden_act", "gelu"))
    return encoder(config, token_types=config.size("type_vocab_size", 2), head=top)


BERT = Family(
    model_type="bert",
    design=bert,
    names=lambda config: {**BODY, **head_names(config, BERT_HEAD)},
    prefix="bert.",
    old={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    instead={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    body=("embeddings.", "encoder."),
    unused=(r"embeddings\.(position_ids|token_type_ids)",),
    harmless=(
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads"),
        *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
    ),
)


def distilbert(config: Config) -> Design:
    """Return the design of a DistilBERT: a BERT without segments, with keys of its own."""
    width = config.spelling("dim", "hidden_size")
    dim = config.size(width, 768)
    heads = config.heads(dim, 12, key=config.spelling("n_heads", "num_attention_heads"), of=width)
    positions = config.size("max_position_embeddings", 512)
    activation = config.activation("activation", "gelu")
    layers = config.layers(config.spelling("n_layers", "num_hidden_layers"), 6)
    return Design(
        vocabulary=config.size("vocab_size", 30522),
        dim=dim,
        hidden=config.size("hidden_dim", 3072),
        activation=activation,
        eps=1e-12,
        layers=(Attention(heads, heads, dim // heads),) * layers,
        max_seq_length=positions,
        positions=positions,
        head=head(config, activation, pooled="relu"),
        **POST_NORM,
    )


_DISTILBERT_HEAD = ("vocab_transform", "vocab_layer_norm", "vocab_projector")
DISTILBERT = Family(
    model_type="distilbert",
    design=distilbert,
    names=lambda config: {
        "embed": "embeddings.word_embeddings",
        "pos_embed": "embeddings.position_embeddings",
        "embed_norm": "embeddings.LayerNorm",
        **projections("transformer.layer.*.attention.", "q_lin", "k_lin", "v_lin", "out_lin"),
        "blocks.*.norm1": "transformer.layer.*.sa_layer_norm",
        "blocks.*.mlp.up_proj": "transformer.layer.*.ffn.lin1",
        "blocks.*.mlp.down_proj": "transformer.layer.*.ffn.lin2",
        "blocks.*.norm2": "transformer.layer.*.output_layer_norm",
        **head_names(config, _DISTILBERT_HEAD, ("pre_classifier", "classifier")),
    },
    prefix="distilbert.",
    body=("embeddings.", "transformer."),
    unused=(r"embeddings\.position_ids",),
    harmless=(
        *("dropout", "qa_dropout", "seq_classif_dropout", "tie_weights_"),
        "sinusoidal_pos_embds",  # how the table of positions was first made
    ),
)


def electra(config: Config) -> Design:
    """Return the design of an ELECTRA: a BERT whose token table may be narrower."""
    width = config.size("embedding_size", 128)
    plain = encoder(config, ELECTRA_SIZES, token_types=config.size("type_vocab_size", 2))
    if config.head() == "PreTraining":  # the discriminator: one logit for each token
        options: dict[str, Any] = {"flat": True, "dense": True, "activation": plain.activation}
        top: Head | None = Head(1, bias=True, classes=True, **options)
    else:
        top = head(config, "gelu", pooled="gelu")
        top = replace(top, width=width) if top is not None and top.norm else top
    return replace(plain, embed_dim=None if width == plain.dim else width, head=top)


def electra_names(config: Config) -> dict[str, str]:
    """Return our names with those in files; a discriminator and a generator have other heads."""
    side = "discriminator_predictions" if config.head() == "PreTraining" else "generator"
    norm = "generator_predictions.LayerNorm"
    words = {
        "generator": ("generator_predictions.dense", norm, "generator_lm_head"),
        "discriminator_predictions": (f"{side}.dense", norm, f"{side}.dense_prediction"),
    }
    text = ("classifier.dense", "classifier.out_proj")
    own = {"embed_proj": "embeddings_project", **head_names(config, words[side], text)}
    return {**BODY, **own}


ELECTRA = Family(
    model_type="electra",
    design=electra,
    names=electra_names,
    prefix="electra.",
    body=("embeddings.", "embeddings_project.", "encoder."),
    unused=BERT.unused,
    harmless=("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"),
)
_MOST_LAYERS = 10_000


def albert(config: Config) -> Design:
    """Return the design of an ALBERT: layers share parameters, and the token table is narrower."""
    plain = encoder(config, ALBERT_SIZES, token_types=config.size("type_vocab_size", 2))
    same_as = tuple(first for first, _, _ in albert_groups(config))
    top = head(config, plain.activation, vocabulary=30000)
    width = config.size("embedding_size", 128)
    return replace(
        plain,
        embed_dim=width,
        layers=plain.layers[:1] * len(same_as),
        same_as=same_as,
        head=replace(top, width=width) if top is not None and top.norm else top,
    )


def albert_groups(config: Config) -> Iterator[tuple[int, int, int]]:
    """Yield for each layer: the first layer with its parameters, its group, its place in that.

    A group runs as a whole, once for each layer of the config that belongs to it.
    """
    count = config.layers("num_hidden_layers", 12)
    groups = config.size("num_hidden_groups", 1)
    if groups > count:
        raise ModelError(
            f"{config.source}: num_hidden_groups is {groups} and num_hidden_layers is {count}: "
            "there can be no more groups than layers"
        )
    inner = config.size("inner_group_num", 1, most=_MOST_LAYERS // count)
    firsts: dict[int, int] = {}
    for layer in range(count):
        group = int(layer / (count / groups))  # rounded as in training
        first = firsts.setdefault(group, layer) * inner
        yield from ((first + part, group, part) for part in range(inner))


_ALBERT_BLOCK = {
    **{"attn.q_proj": "attention.query", "attn.k_proj": "attention.key"},
    **{"attn.v_proj": "attention.value", "attn.out_proj": "attention.dense"},
    **{"norm1": "attention.LayerNorm", "norm2": "full_layer_layer_norm"},
    **{"mlp.up_proj": "ffn", "mlp.down_proj": "ffn_output"},
}


def albert_names(config: Config) -> dict[str, str]:
    """Return our names with those in files, which number groups and the layers in them."""
    groups = "encoder.albert_layer_groups"
    blocks = {
        f"blocks.{first}.{ours}": f"{groups}.{group}.albert_layers.{part}.{theirs}"
        for first, group, part in albert_groups(config)
        for ours, theirs in _ALBERT_BLOCK.items()
    }
    words = ("predictions.dense", "predictions.LayerNorm", "predictions.decoder")
    return {
        **{ours: theirs for ours, theirs in BODY.items() if "blocks." not in ours},
        "embed_proj": "encoder.embedding_hidden_mapping_in",
        **blocks,
        **head_names(config, words, ("pooler", "classifier")),
    }


ALBERT = Family(
    model_type="albert",
    design=albert,
    names=albert_names,
    prefix="albert.",
    instead={"predictions.decoder.bias": "predictions.bias"},
    body=("embeddings.", "encoder."),
    unused=BERT.unused,
    harmless=("classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type"),
)


def roberta(config: Config, vocabulary: int = 50265) -> Design:
    """Return the design of a RoBERTa: a BERT whose positions count all tokens but padding."""
    padding = config.whole("pad_token_id", 1)
    shared = encoder(
        config,
        {**BERT_SIZES, "vocab_size": vocabulary},
        token_types=config.size("type_vocab_size", 2),
        head=head(config, "gelu", vocabulary=vocabulary),
    )
    return _behind_padding(shared, padding, config)


def _behind_padding(shared: Design, padding: int, config: Config) -> Design:
    """Return a design whose positions begin behind the row of the padding's id."""
    if shared.positions <= padding + 1:
        raise ModelError(
            f"{config.source}: max_position_embeddings is {shared.positions} and the padding's id "
            f"{padding}: positions begin behind it, so the first must be at least {padding + 2}"
        )
    first = padding + 1
    return replace(
        shared, max_seq_length=shared.positions - first, first_position=first, padding=padding
    )


def _roberta_head_names(config: Config) -> dict[str, str]:
    words = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
    return head_names(config, words, ("classifier.dense", "classifier.out_proj"))


ROBERTA = Family(
    model_type="roberta",
    design=roberta,
    names=lambda config: {**BODY, **_roberta_head_names(config)},
    prefix="roberta.",
    instead={"lm_head.decoder.bias": "lm_head.bias"},
    body=("embeddings.", "encoder."),
    unused=(r"embeddings\.(position_ids|token_type_ids)",),
)
XLM_ROBERTA = replace(
    ROBERTA, model_type="xlm-roberta", design=lambda config: roberta(config, 30522)
)


def mpnet(config: Config) -> Design:
    """Return the design of an MPNet: a RoBERTa without segments, with biases by distance."""
    buckets, vocabulary = Buckets(32, 128), 30527
    config.only("relative_attention_num_buckets", buckets.count)  # transformers has no others
    sizes = {**BERT_SIZES, "vocab_size": vocabulary}
    top = head(config, "gelu", vocabulary=vocabulary)
    shared = encoder(config, sizes, buckets=buckets, head=top)
    return _behind_padding(shared, 1, config)  # whatever id the config gives


MPNET = replace(
    ROBERTA,
    model_type="mpnet",
    design=mpnet,
    names=lambda config: {
        **BODY,
        "relative_bias": "encoder.relative_attention_bias",
        **projections("encoder.layer.*.attention.attn.", "q", "k", "v", "o"),
        "blocks.*.norm1": "encoder.layer.*.attention.LayerNorm",
        **_roberta_head_names(config),
    },
    prefix="mpnet.",
    unused=(r"embeddings\.position_ids",),
)
FAMILIES = (
    *(BERT, DISTILBERT, ELECTRA, ALBERT, ROBERTA, XLM_ROBERTA, MPNET),
    replace(XLM_ROBERTA, model_type="camembert"),
)
