"""RoBERTa: a BERT whose positions count the tokens that are no padding, behind the padding's id."""

from __future__ import annotations

from dataclasses import replace

from qkv.models.families import bert
from qkv.models.files.config import Config
from qkv.models.files.names import Family
from qkv.models.files.read import ModelError
from qkv.models.network.design import Design


def design(config: Config, vocabulary: int = 50265) -> Design:
    """The sizes of a RoBERTa; keys that are left out have the values of transformers."""
    padding = config.whole("pad_token_id", 1)
    shared = bert.encoder(
        config,
        {**bert.BASE, "vocab_size": vocabulary},
        token_types=config.size("type_vocab_size", 2),
        head=bert.head(config, "gelu", vocabulary=vocabulary),
    )
    return behind_padding(shared, padding, config)


def behind_padding(shared: Design, padding: int, config: Config) -> Design:
    """The same with positions that are counted behind the padding's id."""
    if shared.positions <= padding + 1:
        raise ModelError(
            f"{config.source}: max_position_embeddings is {shared.positions} and the padding's id "
            f"{padding}: positions begin behind it, so the first must be at least {padding + 2}"
        )
    first = padding + 1
    return replace(
        shared, max_seq_length=shared.positions - first, first_position=first, padding=padding
    )


def names(config: Config) -> dict[str, str]:
    """What the files call the parts."""
    return {**bert.BODY, **top(config)}


def top(config: Config) -> dict[str, str]:
    """The same for what RoBERTa and MPNet have on top."""
    match config.head():
        case "SequenceClassification":
            return {"head.dense_proj": "classifier.dense", "head.out_proj": "classifier.out_proj"}
        case "TokenClassification":
            return {"head.out_proj": "classifier"}
    return {
        "head.dense_proj": "lm_head.dense",
        "head.norm": "lm_head.layer_norm",
        "head.out_proj": "lm_head.decoder",
    }


ROBERTA = Family(
    model_type="roberta",
    design=design,
    names=names,
    prefix="roberta.",
    instead={"lm_head.decoder.bias": "lm_head.bias"},
    body=("embeddings.", "encoder."),
    unused=(r"embeddings\.(position_ids|token_type_ids)",),
)
XLM_ROBERTA = replace(
    ROBERTA, model_type="xlm-roberta", design=lambda config: design(config, 30522)
)
CAMEMBERT = replace(XLM_ROBERTA, model_type="camembert")
