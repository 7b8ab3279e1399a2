"""What attention in tiles of keys computes if a step of the running softmax is wrong."""

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
    """For each key, return what its score loses if a tile's weights and the sums differ in maximum.

    A running maximum that grows by at most `most` is kept for the sums, but the tile that makes it
    grow subtracts the new maximum.
    """
    kept, extra = np.full((*s.shape[:-1], 1), -np.inf), np.zeros_like(s)
    for j in range(0, s.shape[-1], tile):
        new = np.maximum(kept, s[..., j : j + tile].max(-1, keepdims=True))
        before = np.where(new - kept <= most, kept, new)
        extra[..., j : j + tile] = np.where(new == before, 0, new - before)
        kept = before
    return extra + np.where(kept == -np.inf, 0, kept)


def skipped_rescaling(s: Array, tile: int, least: float) -> Array:
    """For each key, return the sum of the later rises of the running maximum up to `least`."""
    best, skipped = running_maximum(s, tile), np.zeros_like(s)
    for j in range(tile, s.shape[-1], tile):
        rise = best[..., j : j + 1] - best[..., j - 1 : j]
        skipped[..., :j] += np.where(rise <= least, rise, 0)
    return skipped


def count_idle_tiles(seen: Array, tile: int) -> Array:
    """Return the number of tiles after the first of which a row sees no key: (..., 1)."""
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
