"""The formula in O(L + S) memory, with NumPy: blocks of keys, a running maximum and a running sum.

The running softmax comes from Milakov and Gimelshein 2018, and the blocks from FlashAttention (Dao
et al. 2022). The tiles depend only on shapes and options, not on the number of threads.
"""

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from qkv.arrays import Array, DType, without_tiny
from qkv.attend._grouped import Grouped
from qkv.attend.arguments import Call, clamp
from qkv.attend.formula import weigh
from qkv.ops.threads import go_on, matmul_alone

QUERIES = 256  # The maximum number of queries in a block, counted over all heads of a group.
KEYS = 512  # The maximum number of keys in a block.
CELLS = QUERIES * KEYS  # The maximum number of scores in a block, which may have several heads.
FEW = 16  # If there are fewer queries than FEW, `_products` scales the scores instead of the keys.
NEAR = 8.0  # If a head's scores lie between -NEAR and NEAR, no maximum is subtracted from them.


@dataclass(frozen=True)
class Tile:
    """A part of a call: some rows of the batch, some key heads, and one block of queries."""

    # `array[rows]` selects the tile's batch rows from an array (*lead,).
    rows: tuple[Any, ...]
    # `array[index]` selects the tile's batch rows and key heads from an array (*lead, Hkv).
    index: tuple[Any, ...]
    queries: slice

    @property
    def at(self) -> tuple[Any, ...]:
        """The tile's index into an array `(*lead, Hkv, G, L, ...)`."""
        return (*self.index, slice(None), self.queries)


def tiles(call: Grouped, keys: int = KEYS) -> Iterator[Tile]:
    """Cut the work into tiles that read at most `keys` keys at a time."""
    *lead, kv_heads, group, length = call.shape
    rows_per_block = min(length, max(1, QUERIES // max(group, 1)))
    cells = max(1, group * rows_per_block * min(call.keys, keys))
    heads = _even(kv_heads, max(1, CELLS // cells))
    texts = max(1, min(lead[-1], CELLS // (cells * heads))) if heads == kv_heads else 1
    for outer in product(*map(range, lead[:-1])):
        for text, head, query in product(
            range(0, lead[-1], texts),
            range(0, kv_heads, heads),
            range(0, length, max(1, rows_per_block)),
        ):
            rows = (*outer, slice(text, text + texts))
            index = (*rows, slice(head, head + heads))
            yield Tile(rows, index, slice(query, min(length, query + rows_per_block)))


def _even(count: int, most: int) -> int:
    """Return the size of the largest part if `count` items are split evenly.

    The items are split into as few parts as possible, and no part has more than `most` items.
    `_even(9, 8)` is 5, because 9 is split into 5 + 4.
    """
    return -(-count // max(1, -(-count // most)))


def scores_of(call: Grouped, tile: Tile, keys: slice) -> tuple[Array, Array | None]:
    """Return the masked scores `(texts, heads, G, queries, keys)` of a block, and the mask."""
    return apply_mask(call, tile, keys, capped_of(call, tile, keys))


def capped_of(call: Grouped, tile: Tile, keys: slice) -> Array:
    """Return the scores of one block before bias, ALiBi and mask."""
    query, key = call.query[tile.index][..., tile.queries, :], call.key[tile.index][..., keys, :]
    scores = _products(query, key, call.scale)
    if call.softcap is not None:
        scores = (call.softcap * np.tanh(scores / call.softcap)).astype(call.kind, copy=False)
    return scores


def apply_mask(call: Grouped, tile: Tile, keys: slice, scores: Array) -> tuple[Array, Array | None]:
    """Add bias, ALiBi and mask to the scores of one block in place; return scores and mask."""
    i, j = tile.queries, keys
    if call.bias is not None:
        scores += clamp(call.bias[tile.index][..., i, j], scores.dtype)
    if call.slopes is not None:
        distance = call.visibility.distance(tile.rows, i, j).astype(scores.dtype)
        scores -= call.slopes[tile.index[-1]] * distance
    if call.mask is not None:
        scores += clamp(call.mask[tile.index][..., i, j], scores.dtype)
    visible = call.visibility.block(tile.index, tile.rows, i, j)
    if visible is not None:
        visible = np.broadcast_to(visible, scores.shape)
        np.copyto(scores, -np.inf, where=~visible)
    return scores, visible


def _products(query: Array, key: Array, scale: float) -> Array:
    """Compute `query (..., l, d) @ key.T (..., d, s) * scale` in a buffer of this thread."""
    *heads, keys, size = key.shape
    shape = (*query.shape[:-1], keys)
    if query.shape[-2] < FEW or not 1e-3 < abs(scale) < 1e3:
        scores = _scratch("scores", shape, query.dtype)
        matmul_alone(query, key.swapaxes(-1, -2), out=scores)
        scores *= scale
        return scores
    # Transposing and scaling the keys first is faster than scaling all scores.
    transposed = _scratch("keys", (*heads, size, keys), key.dtype)
    np.multiply(key.swapaxes(-1, -2), scale, out=transposed)
    return matmul_alone(query, transposed, out=_scratch("scores", shape, query.dtype))


def _scratch(name: str, shape: tuple[int, ...], kind: DType) -> Array:
    """Return a view of this thread's scratch buffer, which the next block overwrites.

    Allocating new memory takes longer than computing a small block.
    """
    count = math.prod(shape)
    if count > CELLS:
        return np.empty(shape, kind)
    if not hasattr(_buffers, name):
        setattr(_buffers, name, np.empty(CELLS, np.float64))
    scratch: Array = getattr(_buffers, name).view(kind)[:count].reshape(shape)
    return scratch


# State: each thread's scratch buffers, at most two blocks in size. Other threads do not read them.
_buffers = threading.local()


def key_blocks(call: Grouped, tile: Tile, keys: int = KEYS) -> Iterator[slice]:
    """Yield the blocks of keys that at least one query of the tile may see."""
    start, stop = call.visibility.key_range(tile.rows, tile.queries)
    for j in range(start, stop, keys):
        go_on()
        yield slice(j, min(stop, j + keys))


def is_one_block(call: Call) -> bool:
    """Return True if a call has no options except `scale` and its scores fit in one block."""
    plan, (query, key, value) = call.plan, (call.query, call.key, call.value)
    return (
        plan.length <= QUERIES
        and plan.keys <= KEYS
        and 0 < plan.keys * math.prod(plan.rows) <= CELLS // 2
        and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        and query.dtype == key.dtype == value.dtype == plan.kind
        and call.left is call.right is call.softcap is None
        and call.mask is call.bias is call.slopes is call.sinks is None
        and call.query_lengths is call.key_lengths is None
    )


def attend_one_block(call: Call, out: Array, lse: Array | None) -> bool:
    """Compute a call for which `is_one_block` is true.

    The result is bit-identical to the result of `attend`. `lse` is `(..., L, 1)` or None. Return
    False if numbers overflow; the caller then calls `attend`.
    """
    with np.errstate(all="ignore"):
        scores = _products(call.query, call.key, call.scale)
        base = _base(scores)
        exps = _exps(scores, base)
        total = _sums(exps)
        matmul_alone(exps, call.value, out=out)
        out /= total
        if lse is not None:
            lse[...] = (0 if base is None else base) + np.log(total, dtype=np.float64)
        return _all_finite(out)


def attend(call: Grouped, tile: Tile, out: Array, lse: Array | None, weights: Array | None) -> None:
    """Compute one tile, and write it to `out (*lead, Hkv, G, L, dv)`.

    `lse (*lead, Hkv, G, L, 1)` and `weights (*lead, Hkv, G, L, S)` may be None. If either is given,
    the function writes the tile's part of it too. Before the call, every entry of `weights` must be
    0.
    """
    context = out[tile.at]
    with np.errstate(all="ignore"):  # do not warn about NaN and infinity
        base, total = _pass_over_keys(call, tile, context, weights)
        if not _all_finite(context):  # a sum of values may overflow even if their mean is finite
            again = np.empty_like(context)
            _pass_over_keys(call, tile, again, None, unit=2.0**64)
            np.copyto(context, again, where=~np.isfinite(context))
        if lse is not None:
            bases = 0 if base is None else _finite_from_below(base)
            lse[tile.at] = bases + np.log(total, dtype=np.float64)


def log_sums(call: Grouped) -> tuple[Array, Array]:
    """Return two arrays `(*lead, Hkv, G, L, 1)`, whose sum is the log-sum-exp of each row.

    The first array is usually the largest score of each row. If a single array held the sum,
    rounding could lose the second term: for eight keys with a score of -3e38, the log-sum-exp is
    -3e38 + log(8), which rounds to -3e38.
    """
    bases, logs = (np.zeros((*call.shape, 1)) for _ in range(2))
    with np.errstate(all="ignore"):
        for tile in tiles(call):
            context = np.empty((*bases[tile.at].shape[:-1], call.value.shape[-1]), call.kind)
            base, total = _pass_over_keys(call, tile, context, None)
            bases[tile.at] = 0 if base is None else _finite_from_below(base)
            logs[tile.at] = np.log(total, dtype=np.float64)
    return bases, logs


def exp_sums(call: Grouped, tile: Tile, base: Array) -> Array:
    """Return each row's sum of `exp(score - base)` `(..., l, 1)`, including the sinks."""
    total = np.zeros_like(base)
    if call.sinks is not None:
        total += np.exp(call.sinks[tile.index[-1]] - base).sum(-1, keepdims=True)
    for j in key_blocks(call, tile):
        total += np.exp(scores_of(call, tile, j)[0] - base).sum(-1, keepdims=True)
    return total


def _pass_over_keys(
    call: Grouped, tile: Tile, context: Array, weights: Array | None, unit: float = 1.0
) -> tuple[Array | None, Array]:
    """Compute one tile's `context`; return each row's base and its sum of `exp(score - base)`.

    The base is subtracted from a row's scores, so that `exp` does not overflow. A base of None
    means 0 for all rows. Keys are read block by block. If a later block needs a larger base, the
    sums of the earlier blocks are scaled down. If `weights` is given, all keys form one block.
    Before the sum over keys, each value is divided by `unit`, so that large values do not overflow.
    At the end, the sum is multiplied by `unit`, which undoes the division.
    """
    base: Array | None = None
    total = np.zeros((), call.kind)
    seen: Any = False
    fresh, empty = True, True  # `total` contains no sum yet; `context` contains no values yet
    if call.sinks is not None:
        sinks = call.sinks[tile.index[-1]]  # (heads, G, 1, n)
        base = sinks.max(axis=-1, keepdims=True)
        total = np.exp(sinks - _finite_from_below(base)).sum(axis=-1, keepdims=True)
        fresh = False
    for j in key_blocks(call, tile, KEYS if weights is None else max(1, call.keys)):
        scores, visible = scores_of(call, tile, j)
        block = _base(scores)
        faded: Any = 1
        if fresh:
            base = block
        elif not (base is block is None):
            before = 0 if base is None else base
            base = np.maximum(before, 0 if block is None else block)
            # the factor for the earlier sums
            faded = without_tiny(np.exp(before - _finite_from_below(base)))
        exps = _exps(scores, None if base is None else _finite_from_below(base))
        total = total * faded + _sums(exps)
        value = call.value[tile.index][..., j, :]
        if unit != 1:
            value = value / unit
        added = matmul_alone(exps, value, out=context if empty else None)
        if visible is not None and not _all_finite(added):
            added = weigh(exps, value, visible, matmul_alone)
        if not empty:
            context *= faded
            context += added
        elif added is not context:
            context[...] = added
        fresh = empty = False
        if visible is None:
            seen = True
        elif seen is not True:
            seen = np.logical_or(seen, visible.any(axis=-1, keepdims=True))
        if weights is not None:
            pattern = without_tiny(exps / total)
            weights[(*tile.at, j)] = pattern if visible is None else np.where(visible, pattern, 0)
    if not empty:
        context /= total if unit == 1 else total / unit
    if seen is not True:
        np.copyto(context, 0, where=np.logical_not(seen))
    return base, total


def _base(scores: Array) -> Array | None:
    """Return the base of each row, a number to subtract from the row's scores before `exp`.

    The base is the largest score of the row. For a head whose scores all lie between -NEAR and
    NEAR, the base is 0. If the base is 0 for all heads, return None.
    """
    if scores.max() <= NEAR and scores.min() >= -NEAR:
        return None
    lowest = scores.min(axis=(-2, -1), keepdims=True)
    highest = scores.max(axis=(-2, -1), keepdims=True)
    near = (lowest >= -NEAR) & (highest <= NEAR)
    return np.where(near, np.zeros((), scores.dtype), scores.max(axis=-1, keepdims=True))


def _exps(scores: Array, base: Array | None) -> Array:
    """Replace scores with `exp(score - base)`, and return them."""
    if base is None:
        return np.exp(scores, out=scores)
    scores -= base
    return without_tiny(np.exp(scores, out=scores), 100)


def _sums(exps: Array) -> Array:
    """Sum each row with `einsum`, which is much faster than NumPy's `sum`."""
    return np.asarray(np.einsum("...k->...", exps))[..., None]


def _all_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _finite_from_below(top: Array) -> Array:
    """Replace -inf with 0 in an array of maxima, because -inf - (-inf) would be NaN."""
    return np.where(top == -np.inf, np.zeros((), top.dtype), top)
