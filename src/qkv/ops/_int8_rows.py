"""int8 weights: rows with one scale per row, and the products that `linear` computes in int8."""

from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.ops._lazy import StoredMatrix

MAX_INT8 = 127  # The largest int8 number in a row.
_PROBE = 16  # A scale is tested on the first 16 entries of a row, and then on all entries.
_LARGEST = MAX_INT8 * 65504.0  # The largest number that int8 and a float16 scale represent.
_LANES = 16  # The number of partial sums of a row's absolute values, as in the kernel.
AT_ONCE = 1 << 18  # The number of weights that are read or rounded to int8 at once.
LIMIT = 6  # This and the next constant are as in native/int8.h.
LARGEST_NUMBER = MAX_INT8 * 256 + MAX_INT8
Rows = tuple[Array, Array]  # An int8 matrix (rows, columns), and its scales, float16 (rows,).


def int8_weight(weight: Array) -> Any:
    """Return a matrix with the values of a float32 weight, for products in int8.

    The weight must not change. If a number is not finite or is too large for int8, return `weight`.

    >>> int8_weight(np.float32([[1, 2]])).in_int8
    True
    """
    if weight.dtype != np.float32 or weight.ndim != 2 or not weight.size:
        return weight
    if isinstance(weight, StoredMatrix) and any(weight.exact):
        return weight.mark()
    values = weight.read_narrow() if isinstance(weight, StoredMatrix) else weight
    step = AT_ONCE // values.shape[1] + 1
    for at in range(0, len(values), step):
        part = values[at : at + step].astype(np.float32, copy=False)
        if not max(part.max(), -part.min()) <= _LARGEST:  # false for NaN too
            return weight
    if isinstance(weight, StoredMatrix):
        return weight.mark()
    return StoredMatrix.of(weight, in_int8=True)


def like_weight(array: Array, other: Array) -> Any:
    """Return `int8_weight(array)` if products with `other` are in int8, otherwise `array`."""
    return int8_weight(array) if isinstance(other, StoredMatrix) and other.in_int8 else array


def quantize(x: Array) -> tuple[Array, Array]:
    """Quantise rows of float32 (rows, columns), as the kernel does.

    The scale of a row is the row's largest absolute value / 127, but at most `LIMIT` times the
    row's mean absolute value / 127, so a few large numbers do not make the scale coarse. After
    scaling, these large numbers can exceed 127; they are at most `LARGEST_NUMBER`. In a row with
    NaN or infinity, the scale is NaN, and all numbers are 0.

    Returns:
        The whole numbers, float64 (rows, columns), and the scales, float32 (rows,).

    >>> numbers, scales = quantize(np.float32([[1, -2, 4]]))
    >>> numbers.tolist(), scales.round(5).tolist()
    ([[32.0, -64.0, 127.0]], [0.03150000050663948])
    """
    rows, columns = x.shape
    sizes = np.zeros((rows, -(-columns // _LANES) * _LANES), np.float32)
    sizes[:, :columns] = np.abs(x)
    largest = sizes.max(axis=1, initial=0)
    lanes = np.zeros((rows, _LANES), np.float32)
    with np.errstate(all="ignore"):
        for part in sizes.reshape(rows, -1, _LANES).swapaxes(0, 1):
            lanes += part
        while lanes.shape[1] > 1:
            lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
        usual = lanes[:, 0] / np.float32(columns) * np.float32(LIMIT)
        fine = np.minimum(usual, largest) / np.float32(MAX_INT8)
        scales = np.maximum(fine, largest / np.float32(LARGEST_NUMBER))
        scales[scales < np.finfo(np.float32).tiny] = 0
        scales[~np.isfinite(largest)] = np.nan
        factors = np.where(scales > 0, 1 / scales, np.float32(0))
        numbers = np.rint(x * factors[:, None])
    numbers[~(scales > 0)] = 0
    return numbers.astype(np.float64), scales


def multiply_int8(x: Array, weight: Array) -> Array:
    """Multiply float32 `x (..., in) @ weight (in, out)` in int8, bit-identical to the kernel."""
    numbers, scales = quantize(x.reshape(-1, x.shape[-1]))
    rows, more, factors = (part.T.astype(np.float64) for part in to_digits(weight.T))
    high = np.floor((numbers + 128) / 256)
    sums = (numbers @ rows + high @ more).astype(np.float32)  # exact before the conversion
    with np.errstate(invalid="ignore"):
        y = sums * scales[:, None] * factors.astype(np.float32)
    return y.reshape(*x.shape[:-1], weight.shape[1])


def to_digits(matrix: Array) -> tuple[Array, Array, Array]:
    """Convert a float32 matrix to int8 rows, their second digits and float32 scales.

    A number of the matrix is about (int8 number + second digit / 256) * scale. If `to_rows`
    represents the matrix exactly, the second digits are 0.

    >>> rows, more, scales = to_digits(np.float32([[0.5, 127]]))
    >>> rows.tolist(), more.tolist(), scales.tolist()
    ([[0, 127]], [[127, 0]], [1.0])
    """
    rows, halves = to_rows(matrix)
    scales = halves.astype(np.float32)
    rest = matrix / np.where(scales, scales, np.float32(np.inf))[:, None] - rows
    more = np.empty_like(rows)  # with the strides of `rows`, as the kernel expects
    more[:] = np.rint(rest * np.float32(256)).clip(-MAX_INT8, MAX_INT8)
    return rows, more, scales


def from_rows(rows: Array, scales: Array) -> Array:
    """Return a float32 matrix: int8 rows (rows, columns) times their scales (rows,).

    >>> from_rows(np.int8([[-127, 64]]), np.float16([0.5]))
    array([[-63.5,  32. ]], dtype=float32)
    """
    return rows * scales.astype(np.float32)[:, None]


def exact_rows(matrix: Array) -> Rows | None:
    """Return int8 rows and scales that represent a matrix exactly, or None if that is impossible.

    The matrix must be finite. The result is also None if the matrix does not have two axes.

    >>> exact_rows(np.float32([[-63.5, 32], [0, 0]]))
    (array([[-127,   64],
           [   0,    0]], dtype=int8), array([0.5, 0. ], dtype=float16))
    """
    if matrix.ndim != 2:
        return None
    rows, scales, exact = _search(matrix)
    return (rows, scales) if exact.all() else None


def to_rows(matrix: Array) -> Rows:
    """Return int8 rows and scales for a matrix of floats between -127 * 65504 and 127 * 65504.

    If int8 numbers and a scale represent a row exactly, the row keeps its values. Other rows are
    rounded. The scale of a rounded row is the row's largest absolute value / 127, in float16. Each
    rounding error is at most half the scale. If the rounded rows are converted again, the int8 rows
    and the scales stay the same.

    >>> rows, scales = to_rows(np.float32([[0.1, -12.7]]))
    >>> rows, scales.round(3)
    (array([[   1, -127]], dtype=int8), array([0.1], dtype=float16))
    """
    rows, scales, exact = _search(matrix)
    if not exact.all():
        # If several very small scales give the same row, `_search` returns the smallest.
        rows[~exact], scales[~exact], _ = _search(_round_to_int8(matrix[~exact]))
    return rows, scales


def _search(matrix: Array) -> tuple[Array, Array, Array]:
    """Return `(rows, scales, exact)`; `exact` is True for rows that do not need rounding.

    If several scales represent a row exactly, choose the smallest.
    """
    matrix = matrix.astype(compute_type(matrix.dtype), copy=False)
    largest = np.abs(matrix).max(axis=1, initial=0)
    rows, scales = np.zeros(matrix.shape, np.int8), np.zeros(len(matrix), np.float16)
    exact = largest == 0
    # Try each scale that makes the largest entry of a row a whole number.
    for number in range(MAX_INT8, 0, -1):
        with np.errstate(over="ignore"):
            halves = (largest / number).astype(np.float16)
        factors = halves.astype(matrix.dtype)
        left = np.flatnonzero(~exact & (factors * number == largest))
        if not left.size:
            continue
        for columns in (slice(_PROBE), slice(None)):
            part, by = matrix[left, columns], factors[left, None]
            whole = np.rint(part / by)
            fits = (whole * by == part).all(axis=1)
            left, whole = left[fits], whole[fits]
        rows[left], scales[left], exact[left] = whole, halves[left], True
        if exact.all():
            break
    return rows, scales, exact


def _round_to_int8(matrix: Array) -> Array:
    """Round a matrix to values that int8 rows and scales can represent; return it as float32."""
    matrix = matrix.astype(compute_type(matrix.dtype), copy=False)
    largest = np.abs(matrix).max(axis=1)
    scales = (largest / MAX_INT8).astype(np.float16)
    # A scale that was rounded down to a subnormal float16 may be too small: use the next float16.
    small = scales.astype(matrix.dtype) * (MAX_INT8 + 0.5) < largest
    scales[small] = np.nextafter(scales[small], np.float16(np.inf))
    factors = scales.astype(matrix.dtype)[:, None]
    return from_rows(np.rint(matrix / factors).clip(-MAX_INT8, MAX_INT8), scales)
