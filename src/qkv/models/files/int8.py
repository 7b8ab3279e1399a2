"""Matrices whose rows are int8, each row times a float16 of its own: how they are read and made."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array, compute_type

SCALE = "_scale"  # behind the name of a matrix: the tensor of its scales
MOST = 127  # of a number in a row, either sign
_PROBE = 16  # numbers of a row that rule out most scales
Rows = tuple[Array, Array]  # int8 (rows, columns) and float16 (rows,)


def from_rows(rows: Array, scales: Array) -> Array:
    """The numbers, float32 (rows, columns), of int8 (rows, columns) and float16 (rows,).

    >>> from_rows(np.int8([[-127, 64]]), np.float16([0.5]))
    array([[-63.5,  32. ]], dtype=float32)
    """
    return rows * scales.astype(np.float32)[:, None]


def exact_rows(matrix: Array) -> Rows | None:
    """The rows and the scales that give a matrix of finite floats exactly; None if there are none.

    An array that is no matrix has none.

    >>> exact_rows(np.float32([[-63.5, 32], [0, 0]]))
    (array([[-127,   64],
           [   0,    0]], dtype=int8), array([0.5, 0. ], dtype=float16))
    """
    if matrix.ndim != 2:
        return None
    rows, scales, exact = _search(matrix)
    return (rows, scales) if exact.all() else None


def to_rows(matrix: Array) -> Rows:
    """The rows and the scales of a matrix of finite floats, at most 127 * 65504 large.

    A row that has an exact form keeps its numbers. Another is rounded: its scale is its largest
    number / 127 in float16, and each number is off by half a scale at most. The numbers of these
    rows give the same rows and scales again.

    >>> rows, scales = to_rows(np.float32([[0.1, -12.7]]))
    >>> rows, scales.round(3)
    (array([[   1, -127]], dtype=int8), array([0.1], dtype=float16))
    """
    rows, scales, exact = _search(matrix)
    if not exact.all():
        # near float16's smallest number several scales may give the same row: one rule chooses
        rows[~exact], scales[~exact], _ = _search(_rounded(matrix[~exact]))
    return rows, scales


def _search(matrix: Array) -> tuple[Array, Array, Array]:
    """Rows, the smallest scales that give them exactly, and which rows have such a scale."""
    matrix = matrix.astype(compute_type(matrix.dtype), copy=False)
    largest = np.abs(matrix).max(axis=1, initial=0)
    rows, scales = np.zeros(matrix.shape, np.int8), np.zeros(len(matrix), np.float16)
    exact = largest == 0
    for number in range(MOST, 0, -1):  # that the largest of a row may be
        with np.errstate(over="ignore"):
            halves = (largest / number).astype(np.float16)
        factors = halves.astype(matrix.dtype)
        found = np.flatnonzero(~exact & (factors * number == largest))
        for columns in (slice(_PROBE), slice(None)):
            part, by = matrix[found, columns], factors[found, None]
            whole = np.rint(part / by)
            fits = (whole * by == part).all(axis=1)
            found, whole = found[fits], whole[fits]
        rows[found], scales[found], exact[found] = whole, halves[found], True
        if exact.all():
            break
    return rows, scales, exact


def _rounded(matrix: Array) -> Array:
    """Round a matrix to the nearest numbers that rows of int8 give, float32."""
    matrix = matrix.astype(compute_type(matrix.dtype), copy=False)
    largest = np.abs(matrix).max(axis=1)
    scales = (largest / MOST).astype(np.float16)
    # a scale below float16's normal numbers may be too small for the largest number of its row
    small = scales.astype(matrix.dtype) * (MOST + 0.5) < largest
    scales[small] = np.nextafter(scales[small], np.float16(np.inf))
    factors = scales.astype(matrix.dtype)[:, None]
    return from_rows(np.rint(matrix / factors).clip(-MOST, MOST), scales)
