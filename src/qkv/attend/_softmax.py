"""Softmax, and the merge of two attention results over different keys."""

from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, as_array, compute_type, is_float, native, quote, without_tiny


@public_call("softmax")
def softmax(x: Any, axis: int | tuple[int, ...] | None = -1) -> Array:
    """Compute `exp(x) / exp(x).sum(axis)` without overflow.

    To avoid overflow, the largest number is subtracted from all numbers first. The weight of -inf
    is 0. If all numbers are -inf, all weights are 0.

    Args:
        x: an array of any shape; integers become float64.
        axis: the axis or axes over which the weights sum to 1; None for all axes.

    >>> softmax([1.0, 2.0, 3.0]).round(3)
    array([0.09 , 0.245, 0.665])
    >>> softmax([1000.0, 1000.0, -np.inf])
    array([0.5, 0.5, 0. ])
    """
    array = as_array(x, name="x")
    if array.dtype.kind in "biu":
        array = array.astype(np.float64)
    if not is_float(array.dtype):
        raise type_error(f"x is {array.dtype}: convert it to float16, bfloat16, float32 or float64")
    wide = array.astype(compute_type(array.dtype), copy=False)
    try:
        np.empty_like(wide, shape=[1] * wide.ndim).sum(axis=axis)
    except (TypeError, ValueError, OverflowError):
        raise value_error(
            f"x has shape {array.shape} and axis is {quote(axis)}; "
            "pass one axis of x, several axes, or None for all"
        ) from None
    with np.errstate(all="ignore"):
        top = wide.max(axis=axis, keepdims=True, initial=-np.inf)
        exps = np.exp(wide - np.where(np.isneginf(top), 0, top))
        total = exps.sum(axis=axis, keepdims=True)
        weights = without_tiny(np.asarray(exps / np.where(np.isneginf(top), 1, total)))
    return np.asarray(weights, native(array.dtype))


@public_call("merge_attention")
def merge_attention(out1: Any, lse1: Any, out2: Any, lse2: Any) -> tuple[Array, Array]:
    """Merge two attention results over different keys into the result over all keys.

    The merged output is the mean of both outputs, weighted by `exp(lse)`. For a query that sees no
    key, an attention call without sinks returns `(0, -inf)`, and the merged result equals the other
    call's result. Pass the sinks to only one of the two calls, because the merged softmax must
    contain them only once. Source: the combination step of FlashAttention (Dao et al. 2022, section
    3.1).

    Args:
        out1: the first call's output, `(..., L, dv)`.
        lse1: the first call's log-sum-exp, `(..., L)`.
        out2: the second call's output.
        lse2: the second call's log-sum-exp.

    Returns:
        `(out, lse)`, with the dtypes of the inputs.

    >>> q, k = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> from qkv import attention
    >>> first = attention(q, k[:1], k[:1], return_lse=True)
    >>> rest = attention(q, k[1:], k[1:], return_lse=True)
    >>> out, lse = merge_attention(*first, *rest)
    >>> bool(np.allclose(out, attention(q, k, k)))
    True
    """
    arguments = {"out1": out1, "lse1": lse1, "out2": out2, "lse2": lse2}
    arrays = {name: as_array(x, name=name) for name, x in arguments.items()}
    a, lse_a, b, lse_b = arrays.values()
    for first, second in (("out1", "out2"), ("lse1", "lse2")):
        x, y = arrays[first], arrays[second]
        if x.shape != y.shape or native(x.dtype) != native(y.dtype) or not is_float(x.dtype):
            raise (value_error if x.shape != y.shape else type_error)(
                f"{first} is {x.shape} {x.dtype} and {second} is {y.shape} "
                f"{y.dtype}: both parts must have the same shape and the same float type"
            )
    if a.shape[:-1] != lse_a.shape or a.ndim < 1:
        raise value_error(
            f"out1 has shape {a.shape} and lse1 {lse_a.shape}: "
            "lse1 must have the shape of out1 without the last axis"
        )
    kind = compute_type(a.dtype)
    with np.errstate(all="ignore"):
        top = np.maximum(lse_a, lse_b)
        base = np.where(np.isneginf(top), 0, top)
        parts = [np.exp(lse - base) for lse in (lse_a, lse_b)]
        total = parts[0] + parts[1]
        lse = base + np.log(total)
        out = np.zeros(a.shape, kind)
        for part, part_lse, part_out in zip(parts, (lse_a, lse_b), (a, b), strict=True):
            share = without_tiny(np.asarray(part / total, kind))[..., None]
            saw_nothing = np.isneginf(part_lse)[..., None]
            out += np.where(saw_nothing, 0, share * part_out.astype(kind, copy=False))
    return out.astype(native(a.dtype), copy=False), lse.astype(native(lse_a.dtype), copy=False)
