"""ELECTRA: a BERT whose token table may be narrower, and that tells which words were replaced."""

from __future__ import annotations

from dataclasses import replace

from qkv.models.families import bert
from qkv.models.files.config import Config
from qkv.models.files.names import Family
from qkv.models.network.design import Design
from qkv.models.network.head import Head

SMALL = {
    **bert.BASE,
    **{"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
}


def design(config: Config) -> Design:
    """The sizes of an ELECTRA; keys that are left out have the values of the small one."""
    width = config.size("embedding_size", 128)
    found = bert.encoder(config, SMALL, token_types=config.size("type_vocab_size", 2))
    return replace(
        found,
        embed_dim=None if width == found.dim else width,
        head=head(config, found.activation, width),
    )


def head(config: Config, activation: str, width: int) -> Head | None:
    """The generator's words, the discriminator's logit for each token, or classes."""
    if config.head() == "PreTraining":
        return Head(1, bias=True, classes=True, flat=True, dense=True, activation=activation)
    found = bert.head(config, "gelu", pooled="gelu")
    return replace(found, width=width) if found is not None and found.norm else found


def names(config: Config) -> dict[str, str]:
    """What the files call the parts."""
    match config.head():
        case "PreTraining":
            top = ("discriminator_predictions.dense", "discriminator_predictions.dense_prediction")
        case "SequenceClassification":
            top = ("classifier.dense", "classifier.out_proj")
        case "TokenClassification":
            top = ("", "classifier")
        case _:
            top = ("generator_predictions.dense", "generator_lm_head")
    return {
        **bert.BODY,
        "embed_proj": "embeddings_project",
        "head.dense_proj": top[0],
        "head.norm": "generator_predictions.LayerNorm",
        "head.out_proj": top[1],
    }


ELECTRA = Family(
    model_type="electra",
    design=design,
    names=names,
    prefix="electra.",
    body=("embeddings.", "embeddings_project.", "encoder."),
    unused=bert.BERT.unused,
    harmless=("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"),
)
