"""Sequences of different lengths packed one behind the other: no padding is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array
from qkv.attend import native
from qkv.attend.call import Call, check_call, check_heads, check_types, rounded
from qkv.attend.solve import solve
from qkv.attend.visibility import check_flag, check_offset, check_per_row, check_window
from qkv.ops.kernel import body


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
    check_flag("varlen_attention", "return_lse", return_lse)
    packed = check_packed(
        query,
        key,
        value,
        cu_query_lengths,
        cu_key_lengths,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        scale=scale,
        call="varlen_attention",
    )
    out, lse = attend_rows(packed, lse=return_lse)
    out = rounded(out, packed.whole.dtype)
    return out if lse is None else (out, rounded(lse, packed.whole.kind))


@dataclass(frozen=True)
class Packed:
    """Everything that a call about packed rows was asked, checked.

    Arrays are `(total, heads, size)`; sequence b owns the query rows from `starts[b]` to
    `starts[b + 1]`, and the key rows likewise.
    """

    query: Array
    key: Array
    value: Array
    starts: Array  # (B + 1,)
    key_starts: Array  # (B + 1,)
    offsets: Array  # (B,)
    options: Mapping[str, Any]  # all other rules
    whole: Call  # the same rules and heads, seen as if all rows were one sequence
    call: str  # the name that errors give

    def runs(self) -> list[tuple[int, int]]:
        """Neighbours of the same lengths, which can be seen as one batch without copying."""
        lengths, keys = np.diff(self.starts), np.diff(self.key_starts)
        changes = (np.diff(lengths) != 0) | (np.diff(keys) != 0)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(lengths)]
        return [(a, b) for a, b in pairwise(edges) if a < b]

    def batch(self, first: int, last: int) -> Call:
        """The sequences of one run as a call."""
        arrays = (
            as_batch(self.query, self.starts, first, last),
            as_batch(self.key, self.key_starts, first, last),
            as_batch(self.value, self.key_starts, first, last),
        )
        return check_call(
            *arrays, q_offset=self.offsets[first:last], call=self.call, **self.options
        )


def check_packed(
    query: Any,
    key: Any,
    value: Any,
    cu_query_lengths: Any,
    cu_key_lengths: Any,
    *,
    q_offset: Any,
    call: str,
    **options: Any,
) -> Packed:
    """Check the arguments of `varlen_attention`; `call` is the name that errors give."""
    given = {"query": query, "key": key, "value": value}
    q, k, v = arrays = [as_array(x, call=call, name=name) for name, x in given.items()]
    check_types(call, dict(zip(given, arrays, strict=True)))
    for name, array in zip(given, arrays, strict=True):
        if array.ndim != 3:
            raise ValueError(
                f"{call}: {name} has shape {array.shape}: packed rows are (total, heads, size)"
            )
    if len(k) != len(v):
        raise ValueError(
            f"{call}: key has {len(k)} rows and value has {len(v)}: each key needs its value"
        )
    check_heads(call, q.shape[1], k.shape[1], v.shape[1])
    starts = check_starts(call, "cu_query_lengths", cu_query_lengths, "query", len(q))
    key_starts = check_starts(call, "cu_key_lengths", cu_key_lengths, "key", len(k))
    if len(starts) != len(key_starts):
        raise ValueError(
            f"{call}: cu_query_lengths counts {len(starts) - 1} sequences and cu_key_lengths "
            f"{len(key_starts) - 1}: they must be the same sequences"
        )
    sides = check_window(call, options["window"], options["is_causal"])
    ranged = options["alibi_slopes"] is not None or sides != (None, None)
    lengths, key_lengths = np.diff(starts), np.diff(key_starts)
    offsets = _offsets(call, q_offset, lengths, key_lengths, needed=ranged)
    whole = check_call(*(np.swapaxes(x, 0, 1) for x in arrays), q_offset=0, call=call, **options)
    return Packed(q, k, v, starts, key_starts, offsets, options, whole, call)


def attend_rows(packed: Packed, *, lse: bool) -> tuple[Array, Array | None]:
    """The output `(total, Hq, dv)`, in its type or a wider one, and the log-sum-exp, float64."""
    chosen = body()
    if chosen is not None and native.takes(packed.whole):
        return native.attend_packed(
            chosen,
            packed.whole,
            packed.query,
            packed.key,
            packed.value,
            packed.starts,
            packed.key_starts,
            packed.offsets,
            lse=lse,
        )
    runs = packed.runs()
    calls = [packed.batch(*run) for run in runs]
    rows, heads = packed.query.shape[:2]
    out = np.empty((rows, heads, packed.value.shape[2]), packed.whole.kind)
    sums = np.empty((rows, heads, 1), np.float64) if lse else None
    for run, one, solved in zip(runs, calls, solve(calls, lse=lse), strict=True):
        as_batch(out, packed.starts, *run)[...] = one.result(solved.context)
        if sums is not None and solved.lse is not None:
            as_batch(sums, packed.starts, *run)[...] = one.result(solved.lse[..., None])
    return out, None if sums is None else sums[..., 0]


def as_batch(rows: Array, starts: Array, first: int, last: int) -> Array:
    """Sequences of one length L among packed rows `(total, H, n)`, seen as `(texts, H, L, n)`."""
    part = rows[starts[first] : starts[last]]
    texts = last - first
    return np.swapaxes(part.reshape(texts, len(part) // texts, *part.shape[1:]), 1, 2)


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
