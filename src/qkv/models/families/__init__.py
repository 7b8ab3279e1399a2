"""The families of models that can be loaded, one short file for each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.models.families import clip
from qkv.models.families.albert import ALBERT
from qkv.models.families.attention_only import ATTENTION_ONLY
from qkv.models.families.bert import BERT
from qkv.models.families.bloom import BLOOM
from qkv.models.families.clip import CLIP, CLIP_TEXT, CLIP_VISION
from qkv.models.families.dinov2 import DINOV2
from qkv.models.families.distilbert import DISTILBERT
from qkv.models.families.electra import ELECTRA
from qkv.models.families.gemma import GEMMA
from qkv.models.families.gemma2 import GEMMA2
from qkv.models.families.gemma3 import GEMMA3, GEMMA3_TEXT
from qkv.models.families.gpt2 import GPT2
from qkv.models.families.gpt_neo import GPT_NEO
from qkv.models.families.gpt_neox import GPT_NEOX
from qkv.models.families.gpt_oss import GPT_OSS
from qkv.models.families.gptj import GPTJ
from qkv.models.families.lessons import LESSON
from qkv.models.families.llama import LLAMA
from qkv.models.families.mistral import MISTRAL
from qkv.models.families.mixtral import MIXTRAL
from qkv.models.families.modernbert import MODERNBERT
from qkv.models.families.mpnet import MPNET
from qkv.models.families.nomic_bert import NOMIC_BERT
from qkv.models.families.olmo2 import OLMO2
from qkv.models.families.opt import OPT
from qkv.models.families.phi3 import PHI3
from qkv.models.families.qwen2 import QWEN2
from qkv.models.families.qwen3 import QWEN3
from qkv.models.families.qwen3_moe import QWEN3_MOE
from qkv.models.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from qkv.models.families.t5 import MT5, T5
from qkv.models.families.vit import VIT
from qkv.models.files.config import Config
from qkv.models.files.names import Family, Names
from qkv.models.files.read import ModelError
from qkv.models.network.designs import AnyDesign

_PUBLISHED = (
    ALBERT,
    BERT,
    BLOOM,
    CAMEMBERT,
    CLIP,
    CLIP_TEXT,
    CLIP_VISION,
    DINOV2,
    DISTILBERT,
    ELECTRA,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA3_TEXT,
    GPT2,
    GPT_NEO,
    GPT_NEOX,
    GPT_OSS,
    GPTJ,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    MODERNBERT,
    MPNET,
    MT5,
    NOMIC_BERT,
    OLMO2,
    OPT,
    PHI3,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    ROBERTA,
    XLM_ROBERTA,
    T5,
    VIT,
)
_OWN = (LESSON, ATTENTION_ONLY)  # of no other library
PUBLISHED: dict[str, Family] = {family.model_type: family for family in _PUBLISHED}
FAMILIES: dict[str, Family] = {**PUBLISHED, **{family.model_type: family for family in _OWN}}

__all__ = ["FAMILIES", "PUBLISHED", "described", "towers"]


def described(values: Mapping[str, Any], source: str | Path) -> tuple[AnyDesign, Names]:
    """What a config.json describes: a model's design, and how its files name the parameters.

    Args:
        values: what it says.
        source: what errors call it.

    Raises:
        ModelError: the family is not known, or the config makes no sense.
    """
    model_type = values.get("model_type")
    if model_type is None:
        raise ModelError(f"{source}: it has no model_type: qkv knows {', '.join(FAMILIES)}")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(
            f"{source}: model_type is {model_type!r:.80}, a family that qkv does not know: "
            f"it knows {', '.join(FAMILIES)}"
        )
    family, config = FAMILIES[model_type], Config(values, str(source))
    design, names = family.design(config), Names.of(family, config)
    config.finish(family.harmless)
    return design, names


def towers(
    values: Mapping[str, Any], source: str | Path
) -> dict[str, tuple[dict[str, Any], Names]]:
    """Of two towers in one config.json each with its own config, and what its own files name."""
    found = {}
    for side, own in clip.towers(values, str(source)).items():
        names = Names.of(FAMILIES[own["model_type"]], Config(own, str(source)))
        found[side] = own, names
    return found
