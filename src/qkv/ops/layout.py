"""Arrays as the kernel reads them, and the float types of computation."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.ops.kernel import body, get_num_threads, kernel

FLOAT32 = np.dtype(np.float32)
CHUNK = 1 << 14  # numbers at a time, so that intermediate results stay in the cache


def stays_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Return whether operations pass numbers of `dtype`, half precision, to each other unchanged.

    The kernel multiplies bfloat16 as it is, with sums in float32. NumPy widens all half precision.
    """
    return is_bfloat16(dtype) and dtype.isnative and body() is not None


def narrowed(x: Array, weight: Array) -> Array:
    """Round `x` to bfloat16 if `weight` is bfloat16 and the kernel multiplies it as it is.

    Otherwise the product of float32 with bfloat16 would be computed in float32.
    """
    chosen, kind = body(), weight.dtype
    if chosen is None or not stays_bfloat16(kind) or x.dtype == kind:
        return x
    if x.dtype != FLOAT32 or not is_contiguous(x):
        return x.astype(kind)
    y = np.empty(x.shape, kind)
    kernel.narrow(chosen, x, bits(y), get_num_threads())
    return y


def working(*arrays: Array) -> tuple[Array, ...]:
    """Convert all arrays to the one type that computes them: float32 or float64."""
    kind = compute_type(np.result_type(*arrays))
    return tuple(array.astype(kind, copy=False) for array in arrays)


def body_for(*arrays: Array) -> int | None:
    """Return the kernel's body if it computes these arrays (all float32); else None."""
    plain = all(array.dtype == FLOAT32 and array.dtype.isnative for array in arrays)
    return body() if plain else None


def as_rows(array: Array, count: int, size: int, kind: np.dtype[Any] = FLOAT32) -> Array:
    """Reshape `(..., size)` to `(count, size)` of `kind`, each row contiguous."""
    array = array.astype(kind, copy=False).reshape(count, size)
    if array.strides[1] != array.itemsize or not array.flags.aligned:
        array = contiguous(array)
    return bits(array)


def contiguous(array: Array) -> Array:
    """Return the array if it is contiguous and aligned, else a copy that is."""
    return np.require(array, None, ["C", "A"])


def is_contiguous(array: Array) -> bool:
    """Return whether the array is contiguous and aligned."""
    return array.flags.c_contiguous and array.flags.aligned


def bits(array: Array) -> Array:
    """View a bfloat16 array by its bits, as the kernel takes it; return others unchanged."""
    return array.view(np.uint16) if is_bfloat16(array.dtype) else array


@functools.cache
def bits_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type by which the kernel knows numbers of `dtype`."""
    return np.dtype(np.uint16) if is_bfloat16(dtype) else dtype


@functools.cache
def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Return whether `dtype` is bfloat16, in any byte order."""
    return dtype.name == "bfloat16"
