"""The families of models that can be loaded, related ones in one file."""

import copyreg
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from qkv.models.families import (
    bert,
    clip,
    experts,
    gemma,
    gpt,
    lessons,
    llama,
    long_encoders,
    t5,
    vit,
)
from qkv.models.files.config import Config
from qkv.models.files.names import Family, Names
from qkv.models.files.read import ModelError
from qkv.models.network.designs import AnyDesign

_MODULES = (bert, clip, experts, gemma, gpt, llama, long_encoders, t5, vit)
_PUBLISHED = chain.from_iterable(module.FAMILIES for module in _MODULES)
PUBLISHED: dict[str, Family] = {
    family.model_type: family for family in sorted(_PUBLISHED, key=lambda one: one.model_type)
}
FAMILIES = {**PUBLISHED, **{family.model_type: family for family in lessons.FAMILIES}}


def _reduced(family: Family) -> Any:
    """Let copies and pickles of a model refer to its family by name: some have lambdas."""
    known = FAMILIES.get(family.model_type) is family
    return (_known, (family.model_type,)) if known else object.__reduce_ex__(family, 2)


def _known(model_type: str) -> Family:
    return FAMILIES[model_type]


copyreg.pickle(Family, _reduced)
__all__ = ["FAMILIES", "PUBLISHED", "described", "towers"]


def described(values: Mapping[str, Any], source: str | Path) -> tuple[AnyDesign, Names]:
    """Return the design that a config.json describes, and the names of its parameters in files.

    Args:
        values: the contents of the config.json.
        source: the name of the file in errors.

    Raises:
        ModelError: the family is not known, or a value of the config is not possible.
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
    """Return the config of each of two towers in one config.json, and the names in its files."""
    return {
        side: (own, Names.of(FAMILIES[own["model_type"]], Config(own, str(source))))
        for side, own in clip.towers(values, str(source)).items()
    }
