"""Softmax alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, compute_type, is_float, native, shown


def softmax(x: Any, axis: int | tuple[int, ...] | None = -1) -> Array:
    """Compute `exp(x) / exp(x).sum(axis)` without overflow.

    The largest number is subtracted first, which does not change the result but avoids overflow.
    The weight of -inf is 0; if all numbers are -inf, all weights are 0. NaN stays NaN.

    Args:
        x: numbers of any shape; whole numbers become float64.
        axis: the axis whose weights sum to 1, several axes, or None for all.

    >>> softmax([1.0, 2.0, 3.0]).round(3)
    array([0.09 , 0.245, 0.665])
    >>> softmax([1000.0, 1000.0, -np.inf])
    array([0.5, 0.5, 0. ])
    """
    array = as_array(x, call="softmax", name="x")
    if array.dtype.kind in "biu":
        array = array.astype(np.float64)
    if not is_float(array.dtype):
        raise TypeError(
            f"softmax: x is {array.dtype}: convert it to float16, bfloat16, float32 or float64"
        )
    wide = array.astype(compute_type(array.dtype), copy=False)
    try:
        np.empty_like(wide, shape=[1] * wide.ndim).sum(axis=axis)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"softmax: x has shape {array.shape} and axis is {shown(axis)}: "
            "give one axis of x, several axes, or None for all"
        ) from None
    with np.errstate(all="ignore"):
        top = wide.max(axis=axis, keepdims=True, initial=-np.inf)
        exps = np.exp(wide - np.where(np.isneginf(top), 0, top))
        total = exps.sum(axis=axis, keepdims=True)
        weights = exps / np.where(np.isneginf(top), 1, total)
    return np.asarray(weights, native(array.dtype))
