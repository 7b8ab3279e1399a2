"""Attention with a summary of the weights: each query's largest weights and each key's sum."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, whole_number
from qkv.attend import native, tiled
from qkv.attend.call import RETURNS, Call, check_call, check_options, rounded
from qkv.attend.grouped import Grouped, grouped
from qkv.attend.solve import solve
from qkv.ops.kernel import body
from qkv.ops.threads import run_all

FAR = 1e9  # above this log-sum-exp, rounding loses the logarithm of the number of keys
SHARES = 8  # the number of partial sums of each key's weights, which are added in a fixed order


class AttentionSummary(NamedTuple):
    """The result of `summarize_attention`."""

    out: Array
    lse: Array
    top_indices: Array
    top_weights: Array
    received: Array


def summarize_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, *, top_k: int = 8, **options: Any
) -> AttentionSummary:
    """Compute attention and a summary of its weights in O(L * top_k + S) memory.

    The options are those of `qkv.attention`, except `return_weights`, `return_lse` and `out`.

    Args:
        query: `(..., Hq, L, d)`.
        key: `(..., Hkv, S, d)`.
        value: `(..., Hkv, S, dv)`.
        attn_mask: bool, True = may attend, or float.
        top_k: the number of weights to keep for each query.
        **options: the other options of `qkv.attention`.

    Returns:
        `.out` and `.lse` as `qkv.attention` returns them; `.top_indices` and `.top_weights`
        `(..., Hq, L, top_k)`, the largest weights first, equal weights in the order of their keys,
        and -1 and 0 where fewer keys are visible; `.received (..., Hq, S)`, the sum of each key's
        weights over all queries.

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
    """Summarize a checked call."""
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
    """Write the largest weights; return the sum of each key's weights `(*lead, Hkv, G, S)`."""
    received = np.zeros((SHARES, *call.shape[:-1], call.keys))

    def share(tile: tiled.Tile) -> tuple[Any, int]:
        return tile.index, tile.queries.start * SHARES // max(1, call.shape[-1])

    def summarize(tiles: list[tiled.Tile], sums: Array) -> None:
        """Read the keys again, now that each row's sum is known."""
        kept = indices.shape[-1]
        with np.errstate(all="ignore"):
            for tile in tiles:
                exact = np.where(np.isneginf(lse[tile.at]), 0, lse[tile.at])
                base = exact.astype(call.kind)
                rest = np.exp(base - exact).astype(call.kind)  # the part that rounding removed
                far = np.abs(exact) > FAR
                if far.any():
                    rest = np.where(far, 1 / tiled.exp_sums(call, tile, base), rest)
                best, positions = weights[tile.at] - 1, indices[tile.at]  # -1: no key yet
                for j in tiled.key_blocks(call, tile):
                    scores, visible = tiled.scores_of(call, tile, j)
                    block = np.exp(scores - base) * rest  # (texts, heads, G, l, s)
                    if visible is not None:
                        block = np.where(visible, block, 0)
                    sums[(*tile.index, slice(None), j)] += block.sum(axis=-2, dtype=np.float64)
                    if visible is not None:
                        block[~visible] = -1  # masked: below every weight, so never chosen
                    keys = np.broadcast_to(np.arange(j.start, j.stop), block.shape)
                    best, positions = _largest(
                        np.concatenate([best, block], axis=-1),
                        np.concatenate([positions, keys], axis=-1),
                        kept,
                    )
                indices[tile.at] = np.where(best < 0, -1, positions)
                weights[tile.at] = np.where(best < 0, 0, best)

    shares = groupby(tiled.tiles(call), share)
    run_all(summarize, [(list(tiles), received[number]) for (_, number), tiles in shares])
    return np.asarray(received.sum(axis=0))


def _largest(weights: Array, positions: Array, count: int) -> tuple[Array, Array]:
    """Return the `count` largest numbers of each row, and their positions.

    Of equal numbers, argmax takes the first.
    """
    largest = np.empty((*weights.shape[:-1], count), weights.dtype)
    chosen = np.empty(largest.shape, np.int64)
    for rank in range(count):
        at = weights.argmax(axis=-1)[..., None]
        largest[..., rank : rank + 1] = np.take_along_axis(weights, at, axis=-1)
        chosen[..., rank : rank + 1] = np.take_along_axis(positions, at, axis=-1)
        np.put_along_axis(weights, at, -2, axis=-1)
    return largest, chosen
