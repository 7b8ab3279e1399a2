"""Sequences of different lengths packed one behind the other: no padding is computed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, compute_type
from qkv.attend import native
from qkv.attend.call import check_call, check_heads, check_types
from qkv.attend.solve import solve
from qkv.attend.visibility import check_offset, check_per_row, check_window
from qkv.backend import body


def varlen_attention(
    query: Any,
    key: Any,
    value: Any,
    cu_query_lengths: Any,
    cu_key_lengths: Any,
    *,
    is_causal: bool = False,
    q_offset: Any = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention within each of several sequences, their rows packed one behind the other.

    Args:
        query: `(total queries, Hq, d)`.
        key: `(total keys, Hkv, d)`.
        value: `(total keys, Hkv, dv)`.
        cu_query_lengths: `(B + 1,)` whole numbers from 0 up to the total: sequence b owns the rows
            from `cu[b]` to `cu[b + 1]`.
        cu_key_lengths: the same for key and value.
        q_offset: as for `qkv.attention`, one number or one for each sequence; `"end"` means the
            sequence's own lengths.
        is_causal: as for `qkv.attention`, and so are the next five.
        window: `(left, right)`.
        softcap: above 0.
        alibi_slopes: `(Hq,)`.
        sinks: `(Hq,)` or `(Hq, n)`.
        scale: `1 / sqrt(d)` unless given.
        return_lse: also give the log-sum-exp `(total queries, Hq)`.

    Returns:
        `out (total queries, Hq, dv)`, or `(out, lse)`.

    >>> x = np.array([[1.0], [2.0], [5.0]])[:, None, :]  # three rows, one head of size 1
    >>> varlen_attention(x, x, x, [0, 2, 3], [0, 2, 3]).ravel().round(2)
    array([1.73, 1.88, 5.  ])
    """
    call = "varlen_attention"
    given = {"query": query, "key": key, "value": value}
    q, k, v = arrays = [as_array(x, call=call, name=name) for name, x in given.items()]
    dtype = check_types(call, dict(zip(given, arrays, strict=True)))
    for name, array in zip(given, arrays, strict=True):
        if array.ndim != 3:
            raise ValueError(
                f"{call}: {name} has shape {array.shape}: packed rows are (total, heads, size)"
            )
    if len(k) != len(v):
        raise ValueError(
            f"{call}: key has {len(k)} rows and value has {len(v)}: each key needs its value"
        )
    heads, _ = check_heads(call, q.shape[1], k.shape[1], v.shape[1])
    starts = check_starts(call, "cu_query_lengths", cu_query_lengths, "query", len(q))
    key_starts = check_starts(call, "cu_key_lengths", cu_key_lengths, "key", len(k))
    if len(starts) != len(key_starts):
        raise ValueError(
            f"{call}: cu_query_lengths counts {len(starts) - 1} sequences and cu_key_lengths "
            f"{len(key_starts) - 1}: they must be the same sequences"
        )
    lengths, key_lengths = np.diff(starts), np.diff(key_starts)
    ranged = (
        is_causal or alibi_slopes is not None or check_window(call, window, False) != (None, None)
    )
    offsets = _offsets(call, q_offset, lengths, key_lengths, needed=ranged)

    options: dict[str, Any] = {
        "is_causal": is_causal,
        "window": window,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "scale": scale,
    }
    whole = check_call(*(np.swapaxes(x, 0, 1) for x in arrays), q_offset=0, call=call, **options)
    chosen = body()
    if chosen is not None and native.takes(whole):
        out, lse = native.attend_packed(
            chosen, whole, q, k, v, starts, key_starts, offsets, lse=return_lse
        )
        return out if lse is None else (out, lse.astype(whole.kind))

    calls, places = [], []
    for first, last in _runs(lengths, key_lengths):
        rows = slice(starts[first], starts[last])
        keys = slice(key_starts[first], key_starts[last])
        batch = (
            _as_batch(array[part], last - first)
            for array, part in ((q, rows), (k, keys), (v, keys))
        )
        calls.append(check_call(*batch, q_offset=offsets[first:last], call=call, **options))
        places.append(rows)
    out = np.empty((len(q), heads, v.shape[2]), dtype)
    sums = np.empty((len(q), heads), compute_type(dtype))
    for one, place, solved in zip(calls, places, solve(calls, lse=return_lse), strict=True):
        out[place] = _as_rows(one.result(solved.context))
        if solved.lse is not None:
            sums[place] = _as_rows(one.result(solved.lse[..., None]))[..., 0]
    return (out, sums) if return_lse else out


def check_starts(call: str, name: str, given: Any, packed: str, total: int) -> Array:
    """Where each packed sequence begins and the last one ends, `(B + 1,)`, of `total` rows."""
    cu = as_array(given, call=call, name=name)
    if cu.ndim != 1 or cu.size == 0:
        raise ValueError(f"{call}: {name} has shape {cu.shape}: it must be (B + 1,)")
    cu = check_per_row(call, name, cu, cu.shape)
    if cu[0] != 0 or cu[-1] != total:
        raise ValueError(
            f"{call}: {name} runs from {cu[0]} to {cu[-1]} and {packed} has {total} rows: "
            f"it must begin with 0 and end with {total}"
        )
    falls = np.flatnonzero(np.diff(cu) < 0)
    if falls.size:
        raise ValueError(
            f"{call}: {name} falls from {cu[falls[0]]} to {cu[falls[0] + 1]}: it must never fall"
        )
    return cu


def _offsets(
    call: str, q_offset: Any, lengths: Array, key_lengths: Array, *, needed: bool
) -> Array:
    if isinstance(q_offset, str) and q_offset == "end":
        return key_lengths - lengths
    unlike = np.flatnonzero(lengths != key_lengths)
    at = unlike[0] if unlike.size else 0
    both = (int(lengths[at]), int(key_lengths[at])) if lengths.size else (0, 0)
    return check_offset(call, q_offset, *both, lengths.shape, needed=needed)


def _runs(lengths: Array, key_lengths: Array) -> list[tuple[int, int]]:
    """Neighbours of the same lengths, which can be seen as one batch without copying."""
    changes = (np.diff(lengths) != 0) | (np.diff(key_lengths) != 0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(lengths)]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def _as_batch(rows: Array, texts: int) -> Array:
    """`(texts * L, H, d)` seen as `(texts, H, L, d)`."""
    return np.swapaxes(rows.reshape(texts, len(rows) // texts, *rows.shape[1:]), 1, 2)


def _as_rows(batch: Array) -> Array:
    """`(texts, H, L, n)` back to `(texts * L, H, n)`."""
    batch = np.swapaxes(batch, 1, 2)
    return batch.reshape(batch.shape[0] * batch.shape[1], *batch.shape[2:])
