"""Split vectors into heads, join heads, and group the query heads that share a key head."""

from typing import NamedTuple

import numpy as np

from qkv.arrays import Array, DType
from qkv.attend._visibility import Visibility
from qkv.attend.arguments import Call


class Grouped(NamedTuple):
    """A call in the layout of the NumPy code, with query heads grouped by key head.

    Query, key and value have the same dtype, and `lead` has at least one axis.
    """

    query: Array  # (*lead, Hkv, G, L, d).
    key: Array  # (*lead, Hkv, 1, S, d).
    value: Array  # (*lead, Hkv, 1, S, dv).
    visibility: Visibility
    bias: Array | None  # Floats (*lead, Hkv, G, L, S).
    mask: Array | None  # Floats (*lead, Hkv, G, L, S).
    slopes: Array | None  # (Hkv, G, 1, 1).
    sinks: Array | None  # (Hkv, G, 1, n).
    softcap: float | None
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """The query's shape without its last axis: `(*lead, Hkv, G, L)`."""
        return self.query.shape[:-1]

    @property
    def lead(self) -> tuple[int, ...]:
        """The query's dimensions before `(Hkv, G, L, d)`."""
        return self.query.shape[:-4]

    @property
    def keys(self) -> int:
        """S, the number of keys."""
        return self.visibility.keys

    @property
    def kind(self) -> DType:
        """The dtype of the computation."""
        return self.query.dtype


def group_call(call: Call) -> Grouped:
    """Group the query heads of a call by key head; convert query, key and value to one dtype."""
    plan = call.plan
    *lead, kv_heads, group = plan.groups

    def spread(array: Array, heads: int) -> Array:
        shape = (*plan.lead, heads, *array.shape[-2:])
        array = array.astype(plan.kind, copy=False)
        return array if array.shape == shape else np.broadcast_to(array, shape)

    def cells(array: Array | None) -> Array | None:
        if array is None:
            return None
        return plan.group(np.broadcast_to(array, (*plan.rows, plan.keys)))

    def reshape(array: Array | None, *shape: int) -> Array | None:
        return None if array is None else array.reshape(shape)

    bias, mask = cells(call.bias), cells(call.mask)
    allowed = mask if mask is not None and mask.dtype == bool else None
    mask = mask if allowed is None else None
    query = plan.group(spread(call.query, plan.heads))
    key, value = (plan.grouped_keys(spread(x, kv_heads)) for x in (call.key, call.value))
    visibility = Visibility(
        plan.length, plan.keys, np.full(plan.lead, call.offset, np.int64).reshape(lead),
        call.left, call.right, reshape(call.query_lengths, *lead), reshape(call.key_lengths, *lead),
        allowed, tuple(x for x in (mask, bias) if x is not None),
    )  # fmt: skip
    slopes, sinks = (reshape(x, kv_heads, group, 1, -1) for x in (call.slopes, call.sinks))
    rest = (call.softcap, call.scale)
    return Grouped(query, key, value, visibility, bias, mask, slopes, sinks, *rest)


def split_heads(x: Array, num_heads: int) -> Array:
    """View `(..., T, H * d)` as `(..., H, T, d)`: each head gets d consecutive columns.

    >>> split_heads(np.arange(8).reshape(2, 4), 2)
    array([[[0, 1],
            [4, 5]],
    <BLANKLINE>
           [[2, 3],
            [6, 7]]])
    """
    if x.shape[-1] % num_heads:
        raise ValueError(
            f"split_heads: the last axis has {x.shape[-1]} columns, which cannot be split "
            f"into {num_heads} equal heads; choose a number of heads that divides {x.shape[-1]}"
        )
    size = x.shape[-1] // num_heads
    return np.swapaxes(x.reshape(*x.shape[:-1], num_heads, size), -3, -2)


def join_heads(x: Array) -> Array:
    """Reshape `(..., H, T, d)` to `(..., T, H * d)`: the inverse of `split_heads`.

    >>> join_heads(split_heads(np.arange(8).reshape(2, 4), 2))
    array([[0, 1, 2, 3],
           [4, 5, 6, 7]])
    """
    x = np.swapaxes(x, -3, -2)  # (..., T, H, d)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
