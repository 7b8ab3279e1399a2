"""Attention seen without its weights: the largest of each query, the sum for each key."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, whole_number
from qkv.attend import native, tiled
from qkv.attend.call import Call, check_call, rounded
from qkv.attend.grouped import Grouped, grouped
from qkv.attend.options import RETURNS, check_options
from qkv.attend.solve import solve
from qkv.ops.kernel import body
from qkv.ops.threads import run_all

FAR = 1e9  # from 0: in a log-sum-exp beyond, how many keys share the weight is lost to rounding
SHARES = 8  # partial sums of what each key received: a fixed number, joined in order


class AttentionSummary(NamedTuple):
    """What `summarize_attention` gives."""

    out: Array
    lse: Array
    top_indices: Array
    top_weights: Array
    received: Array


def summarize_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, *, top_k: int = 8, **options: Any
) -> AttentionSummary:
    """Attention, and what a reader wants of its weights, in O(L * top_k + S) memory.

    Takes what `qkv.attention` takes, but for `return_weights`, `return_lse` and `out`.

    Args:
        query: `(..., Hq, L, d)`.
        key: `(..., Hkv, S, d)`.
        value: `(..., Hkv, S, dv)`.
        attn_mask: bool, True = may attend, or float.
        top_k: how many of each query's weights to keep.
        **options: the rest of what `qkv.attention` takes.

    Returns:
        `.out` and `.lse` as `qkv.attention` gives them; `.top_indices` and `.top_weights`
        `(..., Hq, L, top_k)`, the largest first, ties to the lower index, padded with -1 and 0
        where fewer keys are visible; `.received (..., Hq, S)`, each key's weight summed over all
        queries.

    >>> words = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    >>> summary = summarize_attention(words, words, words, top_k=2, is_causal=True)
    >>> summary.top_indices
    array([[ 0, -1],
           [ 1,  0],
           [ 2,  0]])
    >>> summary.received.round(2)
    array([1.43, 0.72, 0.85])
    """
    name = "summarize_attention"
    check_options(options, call=name, without=RETURNS)
    kept = whole_number(top_k, call=name, name="top_k", least=1, most=2**31 - 1)
    return summarize_call(check_call(query, key, value, attn_mask, call=name, **options), kept)


def summarize_call(call: Call, kept: int) -> AttentionSummary:
    """The summary of a checked call."""
    plan, chosen = call.plan, body()
    indices = np.full((*plan.rows, kept), -1, np.int64)
    weights = np.zeros((*plan.rows, kept), plan.kind)
    if chosen is not None and plan.is_native:
        out, lse = np.empty(plan.out, plan.dtype), np.empty((*plan.rows, 1))
        received = np.zeros((*plan.rows[:-1], 1, plan.keys))
        native.summarize(chosen, call, out, lse, indices, weights, received)
    else:
        [(out, sums, _)] = solve([call], lse=True)
        assert sums is not None
        lse = sums
        received = _pass_again(grouped(call), *map(plan.grouped, (lse, indices, weights)))
        received = received.reshape(*plan.rows[:-1], 1, plan.keys)
    return AttentionSummary(
        rounded(out, plan.dtype),
        rounded(lse[..., 0], plan.kind),
        indices,
        weights,
        rounded(received[..., 0, :], plan.kind),
    )


def _pass_again(call: Grouped, lse: Array, indices: Array, weights: Array) -> Array:
    """Fill in the largest weights; gives what each key received `(*lead, Hkv, G, S)`."""
    received = np.zeros((SHARES, *call.shape[:-1], call.keys))

    def share(part: tiled.Part) -> tuple[Any, int]:
        return part.index, part.queries.start * SHARES // max(1, call.shape[-1])

    cases = [
        (call, list(parts), lse, indices, weights, received[which])
        for (_, which), parts in groupby(tiled.parts(call), share)
    ]
    run_all(_summarize, cases)
    return np.asarray(received.sum(axis=0))


def _summarize(
    call: Grouped,
    parts: list[tiled.Part],
    lse: Array,
    indices: Array,
    weights: Array,
    received: Array,
) -> None:
    """Pass over the keys again, now that each row's sum is known."""
    kept = indices.shape[-1]
    with np.errstate(all="ignore"):
        for part in parts:
            here = (*part.index, slice(None), part.queries)
            exact = np.where(np.isneginf(lse[here]), 0, lse[here])
            base = exact.astype(call.kind)
            rest = np.exp(base - exact).astype(call.kind)  # what rounding took from it
            far = np.abs(exact) > FAR
            if far.any():
                rest = np.where(far, 1 / _total(call, part, base), rest)
            best, places = weights[here] - 1, indices[here]  # -1: nothing there yet
            for j in tiled.key_blocks(call, part):
                scores, visible = tiled.scores_of(call, part, j)
                shown = np.exp(scores - base) * rest  # (texts, heads, G, l, s)
                if visible is not None:
                    shown = np.where(visible, shown, 0)
                received[(*part.index, slice(None), j)] += shown.sum(axis=-2, dtype=np.float64)
                if visible is not None:
                    shown[~visible] = -1  # hidden: below every weight, so never chosen
                keys = np.broadcast_to(np.arange(j.start, j.stop), shown.shape)
                best, places = _largest(
                    np.concatenate([best, shown], axis=-1),
                    np.concatenate([places, keys], axis=-1),
                    kept,
                )
            nothing = best < 0
            indices[here] = np.where(nothing, -1, places)
            weights[here] = np.where(nothing, 0, best)


def _total(call: Grouped, part: tiled.Part, base: Array) -> Array:
    """The sum of each row's exponentials, seen from `base`, sinks included."""
    total = np.zeros_like(base)
    if call.sinks is not None:
        sinks = call.sinks[part.index[-1]]  # (heads, G, 1, n)
        total = total + np.exp(sinks - base).sum(axis=-1, keepdims=True)
    for j in tiled.key_blocks(call, part):
        scores, _ = tiled.scores_of(call, part, j)
        total += np.exp(scores - base).sum(axis=-1, keepdims=True)
    return total


def _largest(weights: Array, places: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest of each row with their places: argmax takes the first among equals."""
    chosen = np.empty((*weights.shape[:-1], count), np.int64)
    found = np.empty((*weights.shape[:-1], count), weights.dtype)
    for rank in range(count):
        at = weights.argmax(axis=-1)[..., None]
        found[..., rank : rank + 1] = np.take_along_axis(weights, at, axis=-1)
        chosen[..., rank : rank + 1] = np.take_along_axis(places, at, axis=-1)
        np.put_along_axis(weights, at, -2, axis=-1)
    return found, chosen
