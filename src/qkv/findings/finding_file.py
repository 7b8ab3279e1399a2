"""The file of a finding, read against its JSON Schema and written."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from qkv.arrays import shown
from qkv.edits import edits_of
from qkv.edits import schema as edits_schema
from qkv.files import replacing

_MOST = 2**26  # bytes of a file: an edit may hold a whole activation
_TYPES: dict[str, Any] = {
    **{"object": dict, "array": list, "string": str},
    **{"integer": int, "number": (int, float)},
}


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the file of a finding, that of its edits included.

    >>> schema()["properties"]["position"]["minimum"], "hide" in schema()["$defs"]
    (0, True)
    """
    found: dict[str, Any] = json.loads(
        files("qkv.findings").joinpath("schema.json").read_text("utf-8")
    )
    edits = edits_schema()
    found["properties"]["edits"]["items"] = edits["items"]
    found["$defs"] |= edits["$defs"]
    return found


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file of a finding holds, once it fits the schema.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no finding; the message names the field and what it must be.
    """
    size = Path(path).stat().st_size
    if size > _MOST:
        raise ValueError(f"{path}: is {size} bytes long: a finding has at most {_MOST}")
    try:
        value = json.loads(Path(path).read_bytes().decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path}: is not JSON that can be read: {said:.200}") from None
    fault = _fault(value, schema(), "it")
    if fault:
        raise ValueError(f"{path}: {fault}")
    try:
        edits_of(value["edits"], call=str(path), given="edits")
    except TypeError as error:
        raise ValueError(str(error)) from None
    found: dict[str, Any] = value
    return found


def write(path: str | os.PathLike[str], value: dict[str, Any]) -> None:
    """Write what a finding holds, a line for each field; the file appears when it is complete."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(field, ensure_ascii=False, allow_nan=False)}"
        for name, field in value.items()
    ]
    with replacing(path) as file:
        file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, which is no number of JSON")


def _fault(value: Any, rule: dict[str, Any], where: str) -> str:
    """What does not fit a rule of the schema, in words; empty where all does."""
    rule = schema()["$defs"].get(rule.get("$ref", "").rpartition("/")[2], rule)
    if not _fits(value, rule):
        return f"{where} is {shown(value)}: it must be {rule['description']}"
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(value, dict):
        known, within = rule["properties"], "" if where == "it" else f"{where}."
        missing = [name for name in rule["required"] if name not in value]
        unknown = [name for name in value if name not in known]
        if missing or unknown:
            what = f"has no {missing[0]}" if missing else f"has {shown(unknown[0])}"
            return f"{where} {what}: a finding has {', '.join(rule['required'])} there"
        parts = [(value[name], known[name], within + name) for name in known]
    elif isinstance(value, list) and where != "edits":  # `edits_of` says more of these
        rules = rule.get("prefixItems") or [rule["items"]] * len(value)
        parts = [
            (one, own, f"{where}[{n}]")
            for n, (one, own) in enumerate(zip(value, rules, strict=True))
        ]
    return next(filter(None, (_fault(*part) for part in parts)), "")


def _fits(value: Any, rule: dict[str, Any]) -> bool:
    """Whether a value itself fits a rule, whatever its parts are."""
    if isinstance(value, bool) or not isinstance(value, _TYPES[rule["type"]]):
        return False
    if "const" in rule:
        return bool(value == rule["const"])
    if isinstance(value, int | float):
        return bool(rule["minimum"] <= value <= rule.get("maximum", value))
    of = "Length" if isinstance(value, str) else "Items"
    if not rule.get(f"min{of}", 0) <= len(value) <= rule.get(f"max{of}", len(value)):
        return False
    return "pattern" not in rule or bool(re.search(rule["pattern"], value))
