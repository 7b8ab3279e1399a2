"""The formula in float64 with NumPy arrays, for cases that are too large for `loops.py`.

This module also marks each number for which the contract allows several results. For example, if a
query sees a value that contains infinity, the output may be infinity or NaN.
"""

from typing import Any, NamedTuple

import numpy as np

from .loops import Array, Loops

# Each expected number has a certainty. The certainty says which results are right:
# - NEAR: a number near the expected number
# - NEAR_OR_NAN: a number near the expected number, or NaN
# - NOT_FINITE: NaN or an infinity
# - ANYTHING: any result
NEAR, NEAR_OR_NAN, NOT_FINITE, ANYTHING = range(4)
HIDES = 1e30  # scores below -HIDES get weight 0, so tolerances ignore them


class Exact(NamedTuple):
    """The expected results of one call, and one of the four certainties for each number."""

    loops: Loops
    out: Array  # one of NEAR, NEAR_OR_NAN, NOT_FINITE and ANYTHING for each number in loops.out
    # NEAR, NEAR_OR_NAN or ANYTHING for each query of each head: the constant holds for the
    # query's log-sum-exp and for its weights
    rows: Array


def visible(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Any = None,
    *,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    bias: Any = None,
    query_lengths: Any = None,
    key_lengths: Any = None,
    **_: Any,
) -> Array:
    """Return the keys that each query may see, as booleans `(..., Hq, L, S)`."""
    lead = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    L, S = query.shape[-2], key.shape[-2]
    cells = (*lead, *query.shape[-3:-2], L, S)
    i, j = np.arange(L)[:, None], np.arange(S)
    position = i + _of_rows(q_offset, L, S, cells)

    seen = np.ones(cells, bool)
    if is_causal:
        seen &= j <= position
    left, right = (None, None) if window is None else window
    if left is not None:
        seen &= j >= position - left
    if right is not None:
        seen &= j <= position + right
    if query_lengths is not None:
        seen &= i < _of_rows(query_lengths, L, S, cells)
    if key_lengths is not None:
        seen &= j < _of_rows(key_lengths, L, S, cells)
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        seen &= mask if mask.dtype == bool else mask.astype(float) != -np.inf
    if bias is not None:
        seen &= np.asarray(bias).astype(float) != -np.inf
    return seen


@np.errstate(all="ignore")
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    *,
    q_offset: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    scale: float | None = None,
    **rules: Any,
) -> Exact:
    """Return expected results like those of `loops.attention`, for all queries.

    For each number, the function also returns a constant: NEAR, NEAR_OR_NAN, NOT_FINITE or
    ANYTHING. The constant says which results of a tested function are right.
    """
    query, key, value = (np.asarray(x).astype(np.float64) for x in (query, key, value))
    seen = visible(query, key, value, attn_mask, q_offset=q_offset, bias=bias, **rules)
    heads, L, S = (1, 1, 1, *seen.shape)[-3:] if query.ndim > 2 else (1, *seen.shape)
    group = heads // max(1, key.shape[-3]) if query.ndim > 2 else 1
    if query.ndim > 2:
        key, value = (np.repeat(x, group, axis=-3) for x in (key, value))

    scores = query @ np.swapaxes(key, -1, -2)
    scores *= 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    scores = np.array(np.broadcast_to(scores, seen.shape))
    steps = _Steps(seen)
    steps.note(scores)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
        steps.note(scores)
    if bias is not None:
        scores += np.asarray(bias).astype(np.float64)
    if alibi_slopes is not None:
        position = np.arange(L)[:, None] + _of_rows(q_offset, L, S, seen.shape)
        slopes = np.asarray(alibi_slopes).astype(np.float64)
        slopes = slopes[:, None, None] if query.ndim > 2 else slopes[0]
        scores -= slopes * np.abs(position - np.arange(S)).astype(np.float64)
    steps.note(scores)
    if attn_mask is not None and np.asarray(attn_mask).dtype != bool:
        scores += np.asarray(attn_mask).astype(np.float64)
        steps.note(scores)
    scores[~seen] = -np.inf

    extra = np.zeros((heads, 0))
    if sinks is not None:
        extra = np.asarray(sinks).astype(np.float64).reshape(heads, -1)
    extra = extra if query.ndim > 2 else extra[0]
    top = scores.max(axis=-1, initial=-np.inf)
    top = np.maximum(top, extra.max(axis=-1, initial=-np.inf)[..., None])  # (..., Hq, L)
    base = np.where(np.isfinite(top), top, 0)[..., None]
    total = np.exp(scores - base).sum(axis=-1)
    total = total + np.exp(extra[..., None, :] - base).sum(axis=-1)
    lse = base[..., 0] + np.log(total)
    # Divide by the total: in exp(scores - lse), a large lse would round log(total) away.
    weights = np.exp(scores - base) / total[..., None]
    weights[~seen] = 0

    # The output of a query is 0 if it sees no key, and NaN if it sees a NaN in a value.
    any_seen = seen.any(axis=-1)
    finite = np.isfinite(value)
    out = weights @ np.where(finite, value, 0)
    out = np.where(any_seen[..., None], out, 0)
    sees_nan = seen.astype(float) @ np.isnan(value).astype(float) > 0
    sees_infinity = seen.astype(float) @ np.isinf(value).astype(float) > 0
    out[sees_nan] = np.nan

    row = np.full(lse.shape, NEAR)
    doubtful = steps.infinite | np.isinf(extra).any(axis=-1)[..., None]
    nan = (seen & np.isnan(scores)).any(axis=-1)
    row[doubtful & ~nan] = ANYTHING
    row[doubtful & np.isfinite(lse) & ~nan] = NEAR_OR_NAN
    cells = np.broadcast_to(row[..., None], out.shape).copy()
    cells[sees_infinity & ~sees_nan & (cells == NEAR) & np.isfinite(out)] = NOT_FINITE
    cells[sees_infinity & ~sees_nan & (cells != NOT_FINITE)] = ANYTHING
    cells[nan | ~any_seen] = NEAR

    used = seen.any(axis=-2)[..., None] & finite  # by query head
    largest = np.abs(np.where(used, value, 0)).max(initial=0)
    return Exact(
        Loops(out, weights, lse, seen, {"scores": scores}, steps.largest, float(largest)),
        cells,
        row,
    )


class _Steps:
    """The largest visible score of all steps, and the rows that had an infinity in any step."""

    def __init__(self, seen: Array) -> None:
        self.seen = seen
        self.largest = 0.0
        self.infinite = np.zeros(seen.shape[:-1], bool)

    def note(self, scores: Array) -> None:
        size = np.abs(scores)
        size[~self.seen] = 0
        self.infinite |= np.isinf(size).any(axis=-1)
        size[~(size < HIDES)] = 0
        self.largest = max(self.largest, float(size.max(initial=0)))


def _of_rows(given: Any, L: int, S: int, cells: tuple[int, ...]) -> Array:
    """Return an argument such as `q_offset` as integers that broadcast to `(..., Hq, L, S)`."""
    if given is None or isinstance(given, str):
        given = S - L if given == "end" else 0
    numbers = np.asarray(given, np.int64)
    return numbers[..., None, None, None] if len(cells) > 2 else numbers


def settled(actual: Array, expected: Array, certainty: Array) -> Array:
    """Return `actual`, but with the expected number wherever the contract lets the two differ.

    The caller can then compare all numbers with `expected`. Where `certainty` is NOT_FINITE, only
    NaN or an infinity is right, although `expected` holds a finite number. A finite number of
    `actual` is replaced by NaN there, so that the comparison fails.
    """
    actual = np.asarray(actual).astype(np.float64)
    free = (
        (certainty == ANYTHING)
        | ((certainty == NEAR_OR_NAN) & np.isnan(actual))
        | ((certainty == NOT_FINITE) & ~np.isfinite(actual))
    )
    return np.where(free, expected, np.where(certainty == NOT_FINITE, np.nan, actual))
