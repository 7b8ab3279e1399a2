"""The families of models that qkv can load; each file here describes related families."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from qkv.arrays import quote
from qkv.models.families import _bert, _gpt, _llama, _t5, _vision, lessons
from qkv.models.families._registry import FAMILIES
from qkv.models.files.names import Family, Names
from qkv.models.files.read import ModelError
from qkv.models.network.design import AnyDesign

_MODULES = (_bert, _gpt, _llama, _t5, _vision)
_PUBLISHED = chain.from_iterable(module.FAMILIES for module in _MODULES)
PUBLISHED: dict[str, Family] = {
    family.model_type: family for family in sorted(_PUBLISHED, key=lambda family: family.model_type)
}
__all__ = ["FAMILIES", "PUBLISHED", "design_of", "lessons", "towers"]


def design_of(values: Mapping[str, Any], source: str | Path) -> tuple[AnyDesign, Names]:
    """Return the design for a config.json, and the parameter names in the model's files.

    Args:
        values: the contents of the config.json.
        source: the name of the file, for errors.

    Raises:
        ModelError: the family is unknown, or a value in the config is invalid.
        TypeError: the family's function did not return a design.
    """
    model_type = values.get("model_type")
    if model_type is None:
        raise ModelError(
            f"{source}: model_type is missing; set it to one of {', '.join(sorted(FAMILIES))}"
        )
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(
            f"{source}: model_type is {model_type!r:.80}, an unknown family; register it with "
            f"qkv.models.register, or choose a family that qkv supports: {_list_families()}"
        )
    family = FAMILIES[model_type]
    config = family.config(values, str(source))
    design, names = family.design(config), Names.of(family, config)
    if not isinstance(design, AnyDesign):
        raise TypeError(
            f"register: the function of the family {model_type!r} returned {quote(design)}; it "
            "must return a qkv.models.Design"
        )
    config.finish(family.harmless)
    return design, names


def towers(values: Mapping[str, Any], source: Path) -> dict[str, tuple[dict[str, Any], Names]]:
    """Return the config and the parameter names of the text tower and of the image tower."""
    return {
        side: (config, Names.of(family, family.config(config, str(source))))
        for side, (config, family) in _vision.towers(values, str(source)).items()
    }


def _list_families() -> str:
    return ", ".join(sorted(FAMILIES))
