"""The registry of families: `register` adds qkv's families, and those of a user's script."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from qkv._suggest import nearest, suggestion
from qkv.arrays import quote
from qkv.models.files.names import Describe, Family, Fused

# State: all families by their `model_type`. `register` adds families, and never removes one.
FAMILIES: dict[str, Family] = {}


def register(
    model_type: str, design: Describe, names: Mapping[str, str | Fused], **fields: Any
) -> Family:
    """Register a family of models, so that `qkv.load` can load its models.

    A registration applies to one process: register the family in each process that loads its
    models.

    Args:
        model_type: the value of `model_type` in the config.json of the family's models.
        design: a function that takes a `Config` and returns a `Design`. A key of the config that
            the function does not read causes a warning when a model is loaded.
        names: maps qkv's name of each part to the name in the model's files, without ".weight" and
            ".bias": `{"embed": "wte", "blocks.*.attn.q_proj": "h.*.q"}`. `*` stands for the number
            of the layer. If one tensor holds several parts, the name is a `Fused`.
        fields: other attributes of `Family`. For example, `defaults` maps keys that a config may
            lack to their values, `spellings` maps the usual name of a key to a list of the family's
            names, and `layout="in_out"` means that the files do not transpose linear weights.

    Returns:
        The family.

    Raises:
        TypeError: `design` is not a function, `names` is not a mapping of this form, or `fields`
            has a name that is not an attribute of `Family`.
        ValueError: `model_type` is empty or already registered.
    """
    if not isinstance(model_type, str):
        raise TypeError(f"register: model_type is {quote(model_type)}; pass a string")
    if not model_type or model_type in FAMILIES:
        fault = "already registered" if model_type else "empty"
        raise ValueError(f"register: model_type {model_type!r} is {fault}: choose another name")
    if not callable(design):
        raise TypeError(
            f"register: design is {quote(design)}; pass a function that takes a Config and returns "
            "a Design"
        )
    fine = isinstance(names, Mapping) and all(
        isinstance(ours, str) and isinstance(theirs, str | Fused) for ours, theirs in names.items()
    )
    if not fine:
        raise TypeError(
            f"register: names is {quote(names)}; pass a dict that maps qkv's name of each part to "
            "the name in the model's files, such as {'embed': 'wte'}"
        )
    known = [one.name for one in dataclasses.fields(Family)]
    for name in fields.keys() - known:
        near = suggestion(nearest(name, known), known)
        raise TypeError(f"register: there is no argument {name}: {near}")
    family = Family(model_type, design, names, **fields)
    FAMILIES[model_type] = family
    return family
