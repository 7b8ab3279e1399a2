"""The formula in O(L + S) memory: blocks of keys pass by a running maximum and sum, NumPy only.

The running softmax is that of Milakov and Gimelshein 2018, by blocks as in FlashAttention (Dao et
al. 2022). How the work is cut depends on shapes and rules alone, never on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend.call import Call, narrow
from qkv.attend.formula import weigh

QUERIES = 256  # rows of a block: queries, of all the heads that share a key head
KEYS = 512  # columns of a block
CELLS = QUERIES * KEYS  # of a block; smaller problems put several heads and texts into one


@dataclass(frozen=True)
class Part:
    """A piece of the work: some rows, some key heads, and one block of queries."""

    rows: tuple[Any, ...]  # index into (*lead,)
    index: tuple[Any, ...]  # index into (*lead, Hkv)
    queries: slice


def parts(call: Call, keys: int = KEYS) -> Iterator[Part]:
    """Cut the work into parts that meet at most `keys` keys at a time."""
    *lead, kv_heads, group, length = call.shape
    rows_per_block = min(length, max(1, QUERIES // max(group, 1)))
    cells = max(1, group * rows_per_block * min(call.keys, keys))
    heads = max(1, min(kv_heads, CELLS // cells))
    texts = max(1, min(lead[-1], CELLS // (cells * heads))) if heads == kv_heads else 1
    for outer in np.ndindex(*lead[:-1]):
        for text, head, query in product(
            range(0, lead[-1], texts),
            range(0, kv_heads, heads),
            range(0, length, max(1, rows_per_block)),
        ):
            rows = (*outer, slice(text, text + texts))
            index = (*rows, slice(head, head + heads))
            yield Part(rows, index, slice(query, min(length, query + rows_per_block)))


def scores_of(call: Call, part: Part, keys: slice) -> tuple[Array, Array | None]:
    """The masked scores of one block `(texts, heads, G, queries, keys)`, and what is visible."""
    i, j = part.queries, keys
    key = call.key[part.index][..., j, :]
    scores: Array = call.query[part.index][..., i, :] @ np.swapaxes(key, -1, -2)
    scores *= call.scale
    if call.softcap is not None:
        scores = (call.softcap * np.tanh(scores / call.softcap)).astype(call.kind, copy=False)
    if call.bias is not None:
        scores += narrow(call.bias[part.index][..., i, j], scores.dtype)
    if call.slopes is not None:
        distance = call.visibility.distance(part.rows, i, j).astype(scores.dtype)
        scores -= call.slopes[part.index[-1]] * distance
    if call.mask is not None:
        scores += narrow(call.mask[part.index][..., i, j], scores.dtype)
    visible = call.visibility.block(part.index, part.rows, i, j)
    if visible is not None:
        visible = np.broadcast_to(visible, scores.shape)
        np.copyto(scores, -np.inf, where=~visible)
    return scores, visible


def key_blocks(call: Call, part: Part, keys: int = KEYS) -> Iterator[slice]:
    """The blocks of keys that some query of the part may see."""
    start, stop = call.visibility.key_range(part.rows, part.queries)
    for j in range(start, stop, keys):
        yield slice(j, min(stop, j + keys))


def attend(call: Call, part: Part, out: Array, lse: Array | None, weights: Array | None) -> None:
    """Compute one part into `out (*lead, Hkv, G, L, dv)`.

    Where wanted also into `lse (*lead, Hkv, G, L)` and `weights (*lead, Hkv, G, L, S)`, which must
    hold zeros.
    """
    here = (*part.index, slice(None), part.queries)  # into (*lead, Hkv, G, L)
    with np.errstate(all="ignore"):  # NaN and infinity are for the caller to see
        context, sums = _pass_over_keys(call, part, weights)
        if lse is not None:
            lse[here] = sums
        if not np.isfinite(context).all():  # the sum of values can be too large, not their mean
            again, _ = _pass_over_keys(call, part, None, unit=2.0**64)
            context = np.where(np.isfinite(context), context, again)
    out[here] = context


def _pass_over_keys(
    call: Call, part: Part, weights: Array | None, unit: float = 1.0
) -> tuple[Array, Array]:
    """Context and log-sum-exp of one part, by a running maximum and sum over blocks of keys.

    With `weights` all keys pass in one block. Values are counted in units of `unit`.
    """
    here = (*part.index, slice(None), part.queries)
    rows = (*call.query[here].shape[:-1], 1)
    top = np.full(rows, -np.inf, call.kind)
    total = np.zeros(rows, call.kind)
    context = np.zeros((*rows[:-1], call.value.shape[-1]), call.kind)
    seen = np.zeros(rows, bool)
    if call.sinks is not None:
        sinks = call.sinks[part.index[-1]]  # (heads, G, 1, n)
        top = np.maximum(top, sinks.max(axis=-1, keepdims=True))
        total = total + np.exp(sinks - _finite_from_below(top)).sum(axis=-1, keepdims=True)
    for j in key_blocks(call, part, KEYS if weights is None else max(1, call.keys)):
        scores, visible = scores_of(call, part, j)
        higher = np.maximum(top, scores.max(axis=-1, keepdims=True))
        base = _finite_from_below(higher)
        scores -= base
        exps = np.exp(scores, out=scores)
        faded = np.exp(top - base)  # what is summed so far, seen from the new maximum
        top = higher
        total *= faded
        total += exps.sum(axis=-1, keepdims=True)
        context *= faded
        value = call.value[part.index][..., j, :]
        context += weigh(exps, value if unit == 1 else value / unit, visible)
        seen |= True if visible is None else visible.any(axis=-1, keepdims=True)
        if weights is not None:
            shown = exps / total
            weights[(*here, j)] = shown if visible is None else np.where(visible, shown, 0)
    context /= total / unit
    context[~np.broadcast_to(seen, context.shape)] = 0
    lse = _finite_from_below(top).astype(np.float64) + np.log(total, dtype=np.float64)
    return context, lse[..., 0]


def _finite_from_below(top: Array) -> Array:
    """A maximum to subtract: 0 in place of -inf, so that exp(-inf - 0) is 0 and not NaN."""
    return np.where(np.isneginf(top), np.zeros((), top.dtype), top)
