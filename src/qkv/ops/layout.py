"""Conversions of arrays for the kernel, and the float types of computation."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.ops.kernel import body, get_num_threads, kernel

FLOAT32 = np.dtype(np.float32)
CHUNK = 1 << 14  # the numbers in a chunk, so few that intermediate results stay in the cache


def stays_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Return whether results of half precision stay in `dtype` between operations.

    The kernel multiplies bfloat16 directly, with sums in float32. NumPy code converts all half
    precision to float32.
    """
    return is_bfloat16(dtype) and dtype.isnative and body() is not None


def narrowed(x: Array, weight: Array) -> Array:
    """Round `x` to bfloat16 if `weight` is bfloat16 and the kernel multiplies bfloat16 directly.

    Without rounding, a product of float32 and bfloat16 would be computed in float32.
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
    """Convert all arrays to the type of their computation, which is float32 or float64."""
    kind = compute_type(np.result_type(*arrays))
    return tuple(array.astype(kind, copy=False) for array in arrays)


def body_for(*arrays: Array) -> int | None:
    """Return the kernel's body if all arrays are float32, which the kernel computes; else None."""
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
    """View a bfloat16 array as integers, as the kernel reads it; return other arrays unchanged."""
    return array.view(np.uint16) if is_bfloat16(array.dtype) else array


@functools.cache
def bits_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which the kernel reads numbers of `dtype`."""
    return np.dtype(np.uint16) if is_bfloat16(dtype) else dtype


@functools.cache
def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Return whether `dtype` is bfloat16, in any byte order."""
    return dtype.name == "bfloat16"
