"""The JSON Schema of edits, which Python, the server and the page read."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Field(NamedTuple):
    """What a record has beside its `op`.

    Attributes:
        kind: the definition in the schema that describes it.
        needed: whether a record must have it.
        choices: what it may be, where the schema lists that; else empty.
    """

    kind: str
    needed: bool
    choices: tuple[str, ...] = ()


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a list of edits.

    >>> schema()["$defs"]["hide"]["description"]
    'No query sees this token.'
    """
    found: dict[str, Any] = json.loads(
        files("qkv.edits").joinpath("schema.json").read_text("utf-8")
    )
    return found


@cache
def operations() -> dict[str, dict[str, Field]]:
    """The fields of each kind of record, by its `op`.

    >>> operations()["hide"]
    {'token': Field(kind='token', needed=True, choices=())}
    """
    defined = schema()["$defs"]
    found: dict[str, dict[str, Field]] = {}
    for one in map(_name, schema()["items"]["oneOf"]):
        fields, needed = defined[one]["properties"], defined[one]["required"]
        found[one] = {
            name: Field(_name(field), name in needed, tuple(defined[_name(field)].get("enum", ())))
            for name, field in fields.items()
            if name != "op"
        }
    return found


def _name(reference: dict[str, str]) -> str:
    """The name of the definition that a part of the schema refers to."""
    return reference["$ref"].rpartition("/")[2]
