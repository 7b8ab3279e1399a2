"""What the page of a walk reads."""
# WALK = {
#   "layer": number, "head": number, "tokens": [queries], "keys": [strings] | null (the tokens),
#   "rows": [places of the queries that the page holds] | null (all), "key_rows": the same of keys,
#   "arrays": {name: ARRAY}, "steps": [STEP, ...], "start": [row, column] that is spelled first,
#   "own": name of the model's own numbers, which are the array "own", "own_step": number of the
#   step that they are shown beside, "difference": the largest of all,
#   "said": the likeliest word, in words, or "",
#   "which": which head it is and what is said of it, "reasons": [why it is this one] }
# ARRAY = {"b64": base64 of little-endian float32, "shape": [...],
#          "rows": "rows" | "key_rows" | null (which list says what its rows are; null: all), or
#          a list of its own, "columns": [which columns there are], where these are not all}
#         or {"shape": [...], "b64": null}: too large for the page
# STEP = {"title", "formula", "shape", "code", "name" (of its array), "note": str,
#         "side": "queries" | "keys" | "place" (what its rows are; the place is that of "start"),
#         "columns": "keys" | null (numbers),
#         "shown": {"at": [columns], "names": [strings]} | null (all of them),
#         "weights": bool, "cell": [row, column] | null, "op": how a cell is made (steps/sums.py),
#         "lengths": packed float32, of the rows that are held | null (its rows are no vectors) }

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.largest import strongest_block
from qkv.see.page.packing import pack_numbers
from qkv.see.steps.step import Step
from qkv.see.steps.walk import Walk

MOST_TOKENS = 64
MOST_NUMBERS = 1_500_000
# What the page takes of a step as it is.
_OF_A_STEP = ("title", "formula", "shape", "code", "name", "note", "side", "weights", "cell", "op")
_WHOLE = ("K", "V", "K_rotated")


def walk_payload(walk: Walk) -> dict[str, Any]:
    """A walk for the page: its steps, and all that the sum of any cell needs.

    Of more than 64 tokens those are held among which the largest weights are, all in float32.
    """
    weights = next(step for step in walk.steps if step.name == "weights")
    rows, key_rows = _held(walk, weights.values)
    # keys are looked at from every query, so that all rows of these are needed
    sides = {step.name: step.side for step in walk.steps if step.name not in _WHOLE}
    lists = {"queries": ("rows", rows), "keys": ("key_rows", key_rows)}
    parts = _parts(walk)
    sides |= {"mask": "queries", "own": walk.last_compared.side}
    arrays = {}
    for name, array in {**walk.arrays, "own": walk.own}.items():
        which, kept = lists.get(sides.get(name, ""), ("", None))
        units, columns = parts.get(name, (None, None))
        held = array if kept is None else array[kept]
        held = held if units is None else held[units]
        packed = _pack(held if columns is None else held[..., columns])
        arrays[name] = {**packed, "rows": units if kept is None else which}
        arrays[name] |= {} if columns is None else {"columns": columns}
    return {
        "layer": walk.layer,
        "head": walk.head,
        "tokens": walk.tokens,
        "keys": None if walk.keys is walk.tokens else walk.keys,
        "rows": rows,
        "key_rows": key_rows,
        "arrays": arrays,
        "steps": [
            {name: getattr(step, name) for name in _OF_A_STEP}
            | {"columns": "keys" if step.columns else None, "shown": _shown(step)}
            | {"lengths": _lengths(step, lists.get(step.side, ("", None))[1])}
            for step in walk.steps
        ],
        "start": list(walk.cell),
        "own": walk.own_name,
        "own_step": walk.compared[-1][0],
        "difference": walk.difference,
        "said": walk.likeliest,
        "which": f"Layer {walk.layer}, head {walk.head}, step by step.",
        "reasons": [],
    }


def _shown(step: Step) -> dict[str, Any] | None:
    """Which columns of a step are shown, and what they are called."""
    return None if step.shown is None else {"at": list(step.shown), "names": step.names}


def _lengths(step: Step, rows: list[int] | None) -> dict[str, Any] | None:
    """How long the vectors of a step are."""
    if step.columns is not None or step.weights:
        return None
    held = step.values if rows is None else step.values[rows]
    with np.errstate(over="ignore"):
        return pack_numbers(np.linalg.norm(held.astype(np.float64), axis=1))


def _parts(walk: Walk) -> dict[str, tuple[list[int] | None, list[int] | None]]:
    """Of arrays that a few columns, or hidden units, are shown of: the rows and columns to hold."""
    found: dict[str, tuple[list[int] | None, list[int] | None]] = {}
    summed = {step.op["of"] for step in walk.steps if step.op["kind"] == "softmax"}
    for step in walk.steps:
        if step.op["kind"] == "product" and step.op.get("terms"):
            found[step.op["right"]] = step.op["terms"], None
        if step.shown is None:
            continue
        columns = None, list(step.shown)
        if step.name not in summed:  # a softmax is over all of a row
            found[step.name] = columns
        if step.op["kind"] == "product":
            found |= {step.op[one]: columns for one in ("right", "bias") if step.op[one]}
        if step is walk.last_compared:
            found["own"] = columns
    return found


def _held(walk: Walk, weights: Array) -> tuple[list[int] | None, list[int] | None]:
    """Which queries and which keys the page holds; None for all."""
    length, keys = weights.shape
    if max(length, keys) <= MOST_TOKENS:
        return None, None
    score = weights.copy()
    score[walk.cell] = np.inf  # the cell that is spelled out first
    if walk.keys is walk.tokens:  # one list for both: the places of the strongest links
        order = np.argsort(-score, axis=None, kind="stable")
        places = dict.fromkeys(np.stack(np.unravel_index(order, score.shape), 1).ravel().tolist())
        rows = sorted(list(places)[:MOST_TOKENS])
        return rows, rows
    return strongest_block(score, MOST_TOKENS, MOST_TOKENS)


def _pack(array: Array) -> dict[str, Any]:
    """Numbers for the page, unless there are too many."""
    if array.size > MOST_NUMBERS:
        return {"b64": None, "shape": list(array.shape)}
    return pack_numbers(array)
