"""The steps as data: the rows of steps.json, which Python and the live page read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

# `rows`: each step by what Python and the page call it. `op` says how a number of it is made, as
# sums.py reads it; `columns` what their number is called, nothing where they are keys. `phrases`:
# what notes and titles are made of. {x} is a placeholder; one that stands alone keeps its type.
_DATA = json.loads(files("qkv.see.steps").joinpath("steps.json").read_text("utf-8"))
ROWS: Mapping[str, Mapping[str, Any]] = _DATA["rows"]
PHRASES: Mapping[str, str] = _DATA["phrases"]


def fill(text: Any, given: Mapping[str, Any]) -> Any:
    """Put what is given in the place of the placeholders of a row or of a part of it.

    >>> fill({"of": "{x}", "rows": ["{place}"]}, {"x": "Q", "place": 3})
    {'of': 'Q', 'rows': [3]}
    """
    if isinstance(text, Mapping):
        return {name: fill(part, given) for name, part in text.items()}
    if isinstance(text, list):
        return [fill(part, given) for part in text]
    if not isinstance(text, str):
        return text
    if alone := re.fullmatch(r"\{(\w+)\}", text):
        return given[alone[1]]
    return re.sub(r"\{(\w+)\}", lambda found: str(given[found[1]]), text)


def phrase(name: str, **given: Any) -> str:
    """One of the phrases, filled.

    >>> phrase("head", head=3)
    'head 3'
    """
    return str(fill(PHRASES[name], given))


def biased(bias: str | None) -> dict[str, Any]:
    """The placeholders of a bias: its name, and how a line adds it.

    >>> biased("b_O")
    {'bias': 'b_O', 'plus': ' + b_O'}
    """
    return {"bias": bias, "plus": f" + {bias}" if bias else ""}
