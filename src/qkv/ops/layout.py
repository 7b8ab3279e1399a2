"""Arrays as the kernel reads them, and the float types that work is done in."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.ops.kernel import body, kernel
from qkv.ops.threads import get_num_threads

FLOAT32 = np.dtype(np.float32)
CHUNK = 1 << 14  # numbers at a time, so that what lies between two steps stays in the cache


def stays_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of `dtype`, half precision, go from one operation to the next as they are.

    The kernel multiplies bfloat16 as it is, with sums in float32. NumPy widens all half precision.
    """
    return is_bfloat16(dtype) and dtype.isnative and body() is not None


def narrowed(x: Array, weight: Array) -> Array:
    """`x` as a product with `weight` takes it: rounded to bfloat16 where both stay half precision.

    Without it, the product of float32 with bfloat16 is one of float32.
    """
    here, kind = body(), weight.dtype
    if here is None or not stays_bfloat16(kind) or x.dtype == kind:
        return x
    if x.dtype != FLOAT32 or not is_contiguous(x):
        return x.astype(kind)
    y = np.empty(x.shape, kind)
    kernel.narrow(here, x, bits(y), get_num_threads())
    return y


def working(*arrays: Array) -> tuple[Array, ...]:
    """All in the one type that they are computed in: float32 or float64."""
    kind = compute_type(np.result_type(*arrays))
    return tuple(array.astype(kind, copy=False) for array in arrays)


def body_for(*arrays: Array) -> int | None:
    """The kernel's body where it computes these: all are float32."""
    plain = all(array.dtype == FLOAT32 and array.dtype.isnative for array in arrays)
    return body() if plain else None


def as_rows(array: Array, count: int, size: int, kind: np.dtype[Any] = FLOAT32) -> Array:
    """`(..., size)` as `(count, size)` of `kind`, each row contiguous."""
    array = array.astype(kind, copy=False).reshape(count, size)
    if array.strides[1] != array.itemsize or not array.flags.aligned:
        array = contiguous(array)
    return bits(array)


def contiguous(array: Array) -> Array:
    """The array where it is contiguous and aligned, else a copy that is."""
    return np.require(array, None, ["C", "A"])


def is_contiguous(array: Array) -> bool:
    """Whether it is contiguous and aligned."""
    return array.flags.c_contiguous and array.flags.aligned


def bits(array: Array) -> Array:
    """An array as the kernel takes it: bfloat16 by its bits."""
    return array.view(np.uint16) if is_bfloat16(array.dtype) else array


@functools.cache
def bits_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that the kernel knows numbers of `dtype` by."""
    return np.dtype(np.uint16) if is_bfloat16(dtype) else dtype


@functools.cache
def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether it is bfloat16, in any byte order."""
    return dtype.name == "bfloat16"
