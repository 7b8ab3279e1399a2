"""Calls so plain that nothing in them can be wrong: a small one would take longest to check."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.attend import native, tiled
from qkv.attend.call import rounded
from qkv.ops.kernel import body


def quick_attention(
    query: Any, key: Any, value: Any, is_causal: bool, scale: float | None, *, lse: bool
) -> tuple[Array, Array | None] | None:
    """Out and, where wanted, log-sum-exp of arrays that can be computed with as they stand.

    Nothing is refused here: None sends whatever is not plain the long way, which has the errors.
    """
    chosen = body()
    if not (
        type(query) is type(key) is type(value) is np.ndarray
        and query.ndim == key.ndim == value.ndim >= 2
        and query.shape[:-3] == key.shape[:-3]
        and key.shape[:-1] == value.shape[:-1]
        and 0 < query.shape[-1] == key.shape[-1]
        and (query.ndim == 2 or (key.shape[-3] and query.shape[-3] % key.shape[-3] == 0))
        and (is_causal is False or (is_causal is True and query.shape[-2] == key.shape[-2]))
        and (scale is None or (type(scale) is float and math.isfinite(scale)))
        and query.dtype == key.dtype == value.dtype
        and native.stands(query)
        and native.stands(key)
        and native.stands(value)
    ):
        return None
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if chosen is not None and native.takes_size(query.dtype, query.shape[-1]):
        found = native.attend_plain(chosen, query, key, value, is_causal, factor, lse=lse)
    elif is_causal or query.shape[:-2] != key.shape[:-2] or not tiled.takes_at_once(query, key):
        return None
    else:
        at_once = tiled.attend_at_once(query, key, value, factor, lse=lse)
        if at_once is None:
            return None
        found = at_once
    out, sums = found
    return out, None if sums is None else rounded(sums, compute_type(out.dtype))
