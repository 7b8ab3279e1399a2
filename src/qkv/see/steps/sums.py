"""The calculation of one number of a step, written out as a sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array

Op = dict[str, Any]
Arrays = Mapping[str, Array]

_ACTIVATIONS = {
    "relu": "max({x}, 0)",
    "silu": "{x} / (1 + exp({minus}))",
    "quick_gelu": "{x} / (1 + exp(-1.702 * {x}))",
    "tanh": "tanh({x})",
    "gelu": "{x} * (1 + erf({x} / 1.414)) / 2",
    "gelu_tanh": "{x} * (1 + tanh(0.798 * ({x} + 0.045 * {x}^3))) / 2",
}


def spell(
    name: str,
    op: Op,
    place: tuple[int, int],
    arrays: Arrays,
    rows: Sequence[str],
    columns: Sequence[str] | Mapping[int, str] | None = None,
    most: int = 3,
) -> str:
    """Write out how the number in one cell of the array `name` is computed.

    Args:
        name: the name of the array.
        op: how the array is computed, in the format that `_made` reads.
        place: the row and column of the cell.
        arrays: the array and its inputs, by name.
        rows: names for the rows.
        columns: names for the columns; by default the column's index.
        most: the largest number of terms to write; a longer sum shows its largest terms.

    >>> arrays = {"A": np.array([[1.0, 2.0]]), "B": np.array([[3.0], [4.0]])}
    >>> arrays["C"] = arrays["A"] @ arrays["B"]
    >>> op = {"kind": "product", "left": "A", "right": "B", "bias": None, "flip": False}
    >>> spell("C", op, (0, 0), arrays, ["cat"])
    'C[cat, 0] = 1.000*3.000 + 2.000*4.000 = 11.000'
    """
    i, j = place
    called = dict(columns if isinstance(columns, Mapping) else enumerate(columns or ()))
    where = f"{name}[{rows[i]}, {called.get(j, j)}]"
    value = _number(arrays[name][i, j])
    made = _made(op, i, j, arrays, most)
    return f"{where} = {made} = {value}" if made else f"{where} = {value}"


def _made(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """Write out how the number in row i and column j is computed; return "" for an input."""

    def at(name: str) -> str:
        return _number(arrays[name][i, j])

    match op:
        case {"kind": "given"}:
            return ""
        case {"kind": "row", "of": table, "rows": rows}:
            return f"{table}[{rows[i]}, {j}]"
        case {"kind": "wave", "dim": size}:
            even, wave = j - j % 2, "cos" if j % 2 else "sin"
            angle = _number(i / 10000 ** (even / size))
            return f"{wave}({i} / 10000^({even}/{size})) = {wave}({angle})"
        case {"kind": "sum", "terms": terms}:
            parts = ((name, np.atleast_2d(arrays[name])) for name in terms)
            return " + ".join(f"{name} {_number(x[i % len(x), j])}" for name, x in parts)
        case {"kind": "norm", "of": name, "gain": gain}:
            shift = f" + {_number(arrays[op['shift']][j])}" if op["shift"] else ""
            return f"{_normed(op, arrays[name][i], j)} * {_number(arrays[gain][j])}{shift}"
        case {"kind": "product"}:
            return _product(op, i, j, arrays, most)
        case {"kind": "rotated", "of": name}:
            return _rotated(op, arrays[name][i], i, j)
        case {"kind": "scaled", "of": name, "by": by}:
            return f"{at(name)} {by}"
        case {"kind": "masked", "name": masked, "of": name, "added": added}:
            if np.isneginf(arrays[masked][i, j]):
                return "hidden"
            return f"{name} {at(name)}" + (f" + {added} {at(added)}" if added else "")
        case {"kind": "softmax", "of": name}:
            return _softmax(arrays[name][i], j)
        case {"kind": "activation", "of": name, "name": activation}:
            return _activated(float(arrays[name][i, j]), activation)
        case {"kind": "times", "left": left, "right": right}:
            return f"{left} {at(left)} * {right} {at(right)}"
        case {"kind": "capped", "of": name, "cap": cap}:
            return f"{_number(cap)} * tanh({at(name)} / {_number(cap)})"
        case {"kind": "joined", "width": width}:
            return f"context of head {j // width}, column {j % width}"
    raise KeyError(op["kind"])


def _normed(op: Op, x: Array, j: int) -> str:
    """Write out one number of a LayerNorm's or RMSNorm's result; RMSNorm subtracts no mean."""
    row = x.astype(np.float64)
    mean = 0.0 if op["rms"] else float(row.mean())
    size = math.sqrt(float(((row - mean) ** 2).mean()) + op["eps"])
    top = _number(row[j]) if op["rms"] else f"({_number(row[j])} - {_number(mean)})"
    return f"{top} / {_number(size)}"


def _product(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """Write out a row of the left matrix times a column of the right matrix.

    If the right matrix is flipped (transposed), a row of it takes the place of the column.
    """
    left, right = arrays[op["left"]][i], arrays[op["right"]]
    other = right[j] if op["flip"] else right[:, j]
    n = len(left)
    products = left.astype(np.float64) * other.astype(np.float64)
    shown = list(op.get("terms") or range(n))
    if n > most + 1:  # the largest first
        best = op.get("terms") or np.argsort(-np.abs(products), kind="stable").tolist()
        shown = best[:most]
    terms = [f"{_number(left[k])}*{_number(other[k])}" for k in shown]
    if len(shown) < n:
        rest = float(np.delete(products, shown).sum())
        terms.append(f"… ({n - len(shown)} more: {_number(rest)})")
    if op["bias"]:
        terms.append(f"bias {_number(arrays[op['bias']][j])}")
    return " + ".join(terms)


def _rotated(op: Op, row: Array, i: int, j: int) -> str:
    """Write out one number of a rotated pair; the angle grows with the position."""
    dims = op["dims"]
    if j >= dims:
        return f"{op['of']} {_number(row[j])}, not rotated"
    half = dims // 2
    pair = j // 2 if op["interleaved"] else j % half
    a, b = (2 * pair, 2 * pair + 1) if op["interleaved"] else (pair, pair + half)
    angle = _number(op["positions"][i] * op["base"] ** (-2 * pair / dims))
    cos, sin, sign = ("cos", "sin", "-") if j == a else ("sin", "cos", "+")
    return f"{_number(row[a])}*{cos}({angle}) {sign} {_number(row[b])}*{sin}({angle})"


def _activated(x: float, activation: str) -> str:
    """Write the activation of a number, like `page/assets/parts/sums.js`."""
    return _ACTIVATIONS[activation].format(x=_number(x), minus=_number(-x))


def _softmax(scores: Array, j: int) -> str:
    """Write out a softmax: the exponential of a score, divided by the row's sum of exponentials."""
    row = scores.astype(np.float64)
    top = float(row.max())
    if not np.isfinite(row[j]):
        return "hidden"
    powers = np.exp(row - top)
    whole = _number(powers.sum())
    return f"exp({_number(row[j])} - {_number(top)}) / {whole} = {_number(powers[j])} / {whole}"


def _number(x: Any) -> str:
    """Write a number with three decimals.

    >>> _number(0.12345), _number(float("-inf"))
    ('0.123', '-∞')
    """
    return "-∞" if float(x) == -math.inf else f"{float(x):.3f}"
