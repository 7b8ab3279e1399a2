"""Compute attention tile by tile, with a deliberate mistake in the running softmax."""

import numpy as np

from qkv.arrays import Array


def running_maximum(s: Array, tile: int, sinks: Array | None = None) -> Array:
    """For each key, return the running maximum at the end of the key's tile.

    The maximum covers all sinks, and the scores from the first key to the end of the tile.
    """
    best = np.maximum.accumulate(s, axis=-1)
    ends = np.minimum((np.arange(s.shape[-1]) // tile + 1) * tile, s.shape[-1]) - 1
    best = best[..., ends]
    if sinks is not None:
        best = np.maximum(best, sinks.max(-1, keepdims=True))
    return np.where(best == -np.inf, 0, best)


def lagging_maximum(s: Array, tile: int, most: float) -> Array:
    """For each key, return the number that a defective kernel subtracts from the key's score.

    If the running maximum grows by at most `most`, the sums keep the old maximum, but the tile in
    which it grows subtracts the new maximum.
    """
    kept, extra = np.full((*s.shape[:-1], 1), -np.inf), np.zeros_like(s)
    for j in range(0, s.shape[-1], tile):
        new = np.maximum(kept, s[..., j : j + tile].max(-1, keepdims=True))
        before = np.where(new - kept <= most, kept, new)
        extra[..., j : j + tile] = np.where(new == before, 0, new - before)
        kept = before
    return extra + np.where(kept == -np.inf, 0, kept)


def kept_maximum(s: Array, tile: int, most: float) -> Array:
    """For each key, return a running maximum that is kept if it would rise by at most `most`."""
    best = np.zeros_like(s)
    kept = np.full((*s.shape[:-1], 1), -np.inf)
    for j in range(0, s.shape[-1], tile):
        new = np.maximum(kept, s[..., j : j + tile].max(-1, keepdims=True))
        kept = np.where((new - kept <= most) | (new == -np.inf), kept, new)
        best[..., j : j + tile] = np.where(kept == -np.inf, 0, kept)
    return best


def join_in_base_2(s: Array, parts: Array) -> tuple[Array, Array]:
    """Join the weights and LSE of parts of the keys by 2 ** LSE, although the LSE is in base e."""
    return _join(s, parts, 1.0, np.logaddexp2, np.exp2)


def join_in_base_e(s: Array, parts: Array) -> tuple[Array, Array]:
    """Join the weights and LSE of parts of the keys by e ** LSE, although the LSE is in base 2."""
    return _join(s, parts, float(np.log2(np.e)), np.logaddexp, np.exp)


def _join(
    s: Array, parts: Array, factor: float, add: np.ufunc, power: np.ufunc
) -> tuple[Array, Array]:
    """Join parts by `power(LSE)`, although the LSE is in base e times `factor`."""
    own, each = np.full_like(s, -np.inf), []
    for part in np.unique(parts):
        each.append(np.logaddexp.reduce(s[..., parts == part], axis=-1, keepdims=True))
        own[..., parts == part] = each[-1]
    joint = add.reduce([np.full((*s.shape[:-1], 1), -np.inf), *(factor * lse for lse in each)])
    weights = np.where(s == -np.inf, 0, np.exp(s - own) * power(factor * own - joint))
    return weights, joint[..., 0]


def skipped_rescaling(s: Array, tile: int, least: float) -> Array:
    """For each key, sum the later rises of the running maximum that are at most `least`."""
    best, skipped = running_maximum(s, tile), np.zeros_like(s)
    for j in range(tile, s.shape[-1], tile):
        rise = best[..., j : j + 1] - best[..., j - 1 : j]
        skipped[..., :j] += np.where(rise <= least, rise, 0)
    return skipped


def count_idle_tiles(seen: Array, tile: int) -> Array:
    """For each row, count the tiles after the first in which the row sees no key: (..., 1)."""
    count = np.zeros((*seen.shape[:-1], 1))
    for j in range(tile, seen.shape[-1], tile):
        count += ~seen[..., j : j + tile].any(-1, keepdims=True)
    return count


def tile_maximum(s: Array, tile: int) -> Array:
    """For each key, return the largest score in its tile."""
    top = np.empty_like(s)
    for j in range(0, s.shape[-1], tile):
        top[..., j : j + tile] = s[..., j : j + tile].max(-1, keepdims=True)
    return np.where(top == -np.inf, 0, top)


def divide_each_tile(s: Array, tile: int) -> Array:
    """For each key, return the product of the running sums from the key's tile to the last tile."""
    best, product = running_maximum(s, tile), np.ones_like(s)
    for j in range(0, s.shape[-1], tile):
        total = np.exp(s[..., : j + tile] - best[..., j : j + 1]).sum(-1, keepdims=True)
        product[..., : j + tile] *= total
    return product


def average_tiles(e: Array, v: Array, tile: int) -> Array:
    """Compute a separate output for each tile of keys, and return the mean of these outputs."""
    parts = [slice(j, j + tile) for j in range(0, e.shape[-1], tile)]
    outs = [e[..., p] @ v[..., p, :] / e[..., p].sum(-1, keepdims=True) for p in parts]
    return np.mean(outs, axis=0) if outs else e @ v
