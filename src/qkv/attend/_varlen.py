"""Attention over sequences of different lengths, packed end to end without padding."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, value_error
from qkv.arrays import Array, as_array
from qkv.attend import _native
from qkv.attend._visibility import check_flag, check_offset, check_per_row
from qkv.attend.arguments import Call, Packed, check_call, round_to
from qkv.attend.attention import solve
from qkv.ops.kernel import variant


@public_call("varlen_attention")
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
    """Compute attention within each of several sequences that are packed end to end.

    Args:
        query: `(total queries, Hq, d)`.
        key: `(total keys, Hkv, d)`.
        value: `(total keys, Hkv, dv)`.
        cu_query_lengths: `(B + 1,)`, the index of each sequence's first query row, then the total
            number of query rows.
        cu_key_lengths: `(B + 1,)`, like `cu_query_lengths`, but for the rows of key and value.
        is_causal: as in `qkv.attention`.
        q_offset: as in `qkv.attention`, one number for all sequences or one per sequence. `"end"`
            means each sequence's number of keys minus its number of queries.
        window: `(left, right)`, as in `qkv.attention`.
        softcap: as in `qkv.attention`.
        alibi_slopes: `(Hq,)`, as in `qkv.attention`.
        sinks: `(Hq,)` or `(Hq, n)`, as in `qkv.attention`.
        scale: as in `qkv.attention`; the default is `1 / sqrt(d)`.
        return_lse: also return the log-sum-exp `(total queries, Hq)`.

    Returns:
        `out (total queries, Hq, dv)`, or `(out, lse)`.

    >>> x = np.array([[1.0], [2.0], [5.0]])[:, None, :]  # three rows, one head of size 1
    >>> varlen_attention(x, x, x, [0, 2, 3], [0, 2, 3]).ravel().round(2)
    array([1.73, 1.88, 5.  ])
    """
    check_flag("return_lse", return_lse)
    packed = check_packed(
        (query, key, value), (cu_query_lengths, cu_key_lengths), q_offset,
        is_causal=is_causal, window=window, softcap=softcap, alibi_slopes=alibi_slopes,
        sinks=sinks, scale=scale,
    )  # fmt: skip
    out, sums = attend_rows(packed, lse=return_lse)
    return out if sums is None else (out, sums)


def check_packed(
    rows: Sequence[Any], cu: Sequence[Any], q_offset: Any = None, **options: Any
) -> Packed:
    """Check the arguments of `varlen_attention`.

    `rows` contains query, key and value. `cu` contains `cu_query_lengths` and `cu_key_lengths`.
    """
    arrays = []
    for name, part in zip(("query", "key", "value"), rows, strict=True):
        array = as_array(part, name=name)
        if array.ndim != 3:
            raise value_error(
                f"{name} has shape {array.shape}; pass packed rows (total, heads, size)"
            )
        arrays.append(array.swapaxes(0, 1))
    whole = check_call(*arrays, q_offset=0, **options)
    starts = check_starts("cu_query_lengths", cu[0], "query", whole.plan.length)
    key_starts = check_starts("cu_key_lengths", cu[1], "key", whole.plan.keys)
    if len(starts) != len(key_starts):
        raise value_error(
            f"cu_query_lengths has {len(starts) - 1} sequences and cu_key_lengths "
            f"{len(key_starts) - 1}: both must have the same number of sequences"
        )
    ranged = any(rule is not None for rule in (whole.slopes, whole.left, whole.right))
    offsets = _offsets(q_offset, np.diff(starts), np.diff(key_starts), ranged)
    return Packed(whole, starts, key_starts, offsets)


def attend_rows(packed: Packed, *, lse: bool, exact: bool = False) -> tuple[Array, Array | None]:
    """Return `(out, lse)`: the output `(total, Hq, dv)` and the log-sum-exp `(total, Hq)` or None.

    The output has the dtype `plan.dtype`, and `lse` has the dtype `plan.kind`. If `exact` is true,
    the output has the dtype `plan.kind`, and `lse` is float64 with the shape `(total, Hq, 1)`.
    """
    plan = packed.call.plan
    chosen = variant() if plan.is_native else None
    shape = (plan.length, plan.heads)
    out = np.empty((*shape, plan.out[-1]), plan.kind if exact or chosen is None else plan.dtype)
    sums = np.empty((*shape, 1), np.float64) if lse else None
    if chosen is not None:
        _native.attend_packed(chosen, packed, out, sums)
    else:
        runs = equal_runs(packed)
        calls = [as_call(packed, *run) for run in runs]
        for run, result in zip(runs, solve(calls, lse=lse), strict=True):
            as_batch(out, packed.starts, *run)[...] = result.out
            if sums is not None and result.lse is not None:
                as_batch(sums, packed.starts, *run)[...] = result.lse
    if exact:
        return out, sums
    out = out if out.dtype == plan.dtype else round_to(out, plan.dtype)
    return out, None if sums is None else round_to(sums[..., 0], plan.kind)


def equal_runs(packed: Packed) -> list[tuple[int, int]]:
    """Return `(first, end)` for each group of consecutive sequences with equal lengths."""
    lengths, keys = np.diff(packed.starts), np.diff(packed.key_starts)
    changes = (np.diff(lengths) != 0) | (np.diff(keys) != 0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(lengths)]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def as_call(packed: Packed, first: int, last: int) -> Call:
    """Return a `Call` that computes consecutive sequences of equal length as a batch."""
    starts = (packed.starts, packed.key_starts, packed.key_starts)
    arrays = (as_batch(x, edges, first, last) for x, edges in zip(packed.rows, starts, strict=True))
    return packed.call.of(*arrays)._replace(offset=packed.offsets[first:last])


def as_batch(rows: Array, starts: Array, first: int, last: int) -> Array:
    """View the rows `(total, H, n)` of sequences of equal length L as `(texts, H, L, n)`."""
    part = rows[starts[first] : starts[last]]
    texts = last - first
    return np.swapaxes(part.reshape(texts, len(part) // texts, *part.shape[1:]), 1, 2)


def check_starts(name: str, value: Any, packed: str, total: int) -> Array:
    """Check `cu_query_lengths` or a similar argument; return it as an array `(B + 1,)`."""
    cu = as_array(value, name=name)
    if cu.ndim != 1 or cu.size == 0:
        raise value_error(f"{name} has shape {cu.shape}: for B sequences, it must be (B + 1,)")
    cu = check_per_row(name, cu, cu.shape)
    if cu[0] != 0 or cu[-1] != total:
        raise value_error(
            f"{name} runs from {cu[0]} to {cu[-1]}, but {packed} has {total} rows: {name} must "
            f"begin with 0 and end with {total}"
        )
    falls = np.flatnonzero(np.diff(cu) < 0)
    if falls.size:
        raise value_error(
            f"{name} decreases from {cu[falls[0]]} to {cu[falls[0] + 1]}: it must not decrease"
        )
    return cu


def _offsets(q_offset: Any, lengths: Array, key_lengths: Array, needed: bool) -> Array:
    """Return the position of each sequence's query 0 among the sequence's keys, `(B,)`."""
    if isinstance(q_offset, str) and q_offset == "end":
        return key_lengths - lengths
    unlike = np.flatnonzero(lengths != key_lengths)
    at = unlike[0] if unlike.size else 0
    both = (int(lengths[at]), int(key_lengths[at])) if lengths.size else (0, 0)
    offset = check_offset(q_offset, *both, lengths.shape, needed=needed)
    return np.full(lengths.shape, offset, np.int64)
