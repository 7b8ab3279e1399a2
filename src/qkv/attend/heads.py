"""Heads: splitting a vector into them, joining them again, and queries that share keys."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array


def split_heads(x: Array, num_heads: int) -> Array:
    """`(..., T, H * d)` to `(..., H, T, d)`, a view: each head gets its own run of columns.

    >>> split_heads(np.arange(8).reshape(2, 4), 2)
    array([[[0, 1],
            [4, 5]],
    <BLANKLINE>
           [[2, 3],
            [6, 7]]])
    """
    if x.shape[-1] % num_heads:
        raise ValueError(
            f"split_heads: the last axis has {x.shape[-1]} columns for {num_heads} heads: "
            "the columns must divide by the heads"
        )
    size = x.shape[-1] // num_heads
    return np.swapaxes(x.reshape(*x.shape[:-1], num_heads, size), -3, -2)


def join_heads(x: Array) -> Array:
    """`(..., H, T, d)` to `(..., T, H * d)`: what `split_heads` took apart.

    >>> join_heads(split_heads(np.arange(8).reshape(2, 4), 2))
    array([[0, 1, 2, 3],
           [4, 5, 6, 7]])
    """
    x = np.swapaxes(x, -3, -2)  # (..., T, H, d)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def group_queries(x: Array, num_kv_heads: int) -> Array:
    """`(..., Hq, L, n)` to `(..., Hkv, G, L, n)`, a view: query head h sits at `divmod(h, G)`.

    The queries of one group read the same key head `h // G` (grouped-query attention, Ainslie et
    al. 2023), so a key seen as `(..., Hkv, 1, S, d)` meets them by broadcasting.
    """
    group = x.shape[-3] // max(num_kv_heads, 1)
    return x.reshape(*x.shape[:-3], num_kv_heads, group, *x.shape[-2:])
