"""How one number of a step came about, spelled out: the sum behind any cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array

Op = dict[str, Any]
Arrays = Mapping[str, Array]


def spell(
    name: str,
    op: Op,
    place: tuple[int, int],
    arrays: Arrays,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    most: int = 3,
) -> str:
    """What the number at a place of the array `name` is made of, in words and numbers.

    Args:
        name: of the array.
        op: how it was made; `kind` is a name in this file, the rest belongs to that.
        place: row and column.
        arrays: the array and what it is made of, by name.
        rows: what the rows stand for.
        columns: what the columns stand for; their numbers if left out.
        most: how many terms of a long sum are written out.

    >>> arrays = {"A": np.array([[1.0, 2.0]]), "B": np.array([[3.0], [4.0]])}
    >>> arrays["C"] = arrays["A"] @ arrays["B"]
    >>> spell("C", {"kind": "product", "left": "A", "right": "B"}, (0, 0), arrays, ["cat"])
    'C[cat, 0] = 1.000*3.000 + 2.000*4.000 = 11.000'
    """
    i, j = place
    where = f"{name}[{rows[i]}, {columns[j] if columns else j}]"
    value = _number(arrays[name][i, j])
    if op["kind"] == "given":  # nothing to add up
        return f"{where} = {value}"
    return f"{where} = {_KINDS[op['kind']](op, i, j, arrays, most)} = {value}"


def _row(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """A row of a table."""
    return f"{op['of']}[{op['rows'][i]}, {j}]"


def _wave(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """A sinusoidal position."""
    size, even = op["dim"], j - j % 2
    wave = "cos" if j % 2 else "sin"
    angle = i / 10000 ** (even / size)
    return f"{wave}({i} / 10000^({even}/{size})) = {wave}({_number(angle)})"


def _sum(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """One number of each of several arrays."""
    parts = ((name, arrays[name]) for name in op["terms"])
    return " + ".join(
        f"{name} {_number(array[i, j] if array.ndim == 2 else array[j])}" for name, array in parts
    )


def _norm(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """LayerNorm, or RMSNorm, which takes no mean off."""
    row = arrays[op["of"]][i].astype(np.float64)
    mean = 0.0 if op["rms"] else float(row.mean())
    size = math.sqrt(float(((row - mean) ** 2).mean()) + op["eps"])
    top = _number(row[j]) if op["rms"] else f"({_number(row[j])} - {_number(mean)})"
    out = f"{top} / {_number(size)} * {_number(arrays[op['gain']][j])}"
    return out + (f" + {_number(arrays[op['shift']][j])}" if op.get("shift") else "")


def _product(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """A row of the left matrix times a column of the right one, or a row of it where flipped."""
    left, right = arrays[op["left"]][i], arrays[op["right"]]
    other = right[j] if op.get("flip") else right[:, j]
    n = len(left)
    shown = n if n <= most + 1 else most
    terms = [f"{_number(a)}*{_number(b)}" for a, b in zip(left[:shown], other[:shown], strict=True)]
    if shown < n:
        rest = float(left[shown:].astype(np.float64) @ other[shown:].astype(np.float64))
        terms.append(f"… ({n - shown} more: {_number(rest)})")
    if op.get("bias"):
        terms.append(f"bias {_number(arrays[op['bias']][j])}")
    return " + ".join(terms)


def _rotated(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """A pair of numbers rotated by an angle that grows with the position."""
    row, dims = arrays[op["of"]][i], op["dims"]
    if j >= dims:
        return f"{op['of']} {_number(row[j])}, not rotated"
    half = dims // 2
    pair = j // 2 if op["interleaved"] else j % half
    first = j == (2 * pair if op["interleaved"] else pair)
    a, b = (2 * pair, 2 * pair + 1) if op["interleaved"] else (pair, pair + half)
    angle = _number(op["positions"][i] * op["base"] ** (-2 * pair / dims))
    cos, sin, sign = ("cos", "sin", "-") if first else ("sin", "cos", "+")
    return f"{_number(row[a])}*{cos}({angle}) {sign} {_number(row[b])}*{sin}({angle})"


def _scaled(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """A score, divided or multiplied as `by` says."""
    return f"{_number(arrays[op['of']][i, j])} {op['by']}"


def _masked(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """A score that a mask lets through, with what the mask adds to it."""
    if np.isneginf(arrays[op["name"]][i, j]):
        return "hidden"
    added = f" + {op['added']} {_number(arrays[op['added']][i, j])}" if op.get("added") else ""
    return f"{op['of']} {_number(arrays[op['of']][i, j])}{added}"


def _softmax(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """The power of a score over the sum of the powers of its row."""
    row = arrays[op["of"]][i].astype(np.float64)
    top = float(row.max())
    if not np.isfinite(row[j]):
        return "hidden"
    powers = np.exp(row - top)
    whole = _number(powers.sum())
    return f"exp({_number(row[j])} - {_number(top)}) / {whole} = {_number(powers[j])} / {whole}"


def _joined(op: Op, i: int, j: int, arrays: Arrays, most: int) -> str:
    """A number of one head's context."""
    return f"context of head {j // op['width']}, column {j % op['width']}"


_KINDS: dict[str, Callable[[Op, int, int, Arrays, int], str]] = {
    "row": _row,
    "wave": _wave,
    "sum": _sum,
    "norm": _norm,
    "product": _product,
    "rotated": _rotated,
    "scaled": _scaled,
    "masked": _masked,
    "softmax": _softmax,
    "joined": _joined,
}


def _number(x: Any) -> str:
    """Three places.

    >>> _number(0.12345), _number(float("-inf"))
    ('0.123', '-∞')
    """
    return "-∞" if float(x) == -math.inf else f"{float(x):.3f}"
