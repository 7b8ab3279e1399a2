"""From the vectors of a text's tokens to one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qkv.arrays import Array
from qkv.ops.linear import multiply


def _mean_sqrt(rows: Array) -> Array:
    """The sum, divided by the root of how many there are."""
    pooled: Array = rows.sum(0) / np.sqrt(rows.dtype.type(len(rows)))
    return pooled


def _weighted_mean(rows: Array, first: int) -> Array:
    """The mean, weighted by the place of a token in its text: 1 for the first one, then 2."""
    weights = np.arange(first + 1, first + len(rows) + 1, dtype=rows.dtype)
    pooled: Array = multiply(weights, rows) / weights.sum()
    return pooled


# They are given a text's vectors, and how many at its beginning belong to a prompt and are not to
# be read. In the order in which files of old name them, where there are several.
POOLING: Mapping[str, Callable[[Array, int], Array]] = {
    "cls": lambda rows, unread: rows[unread],
    "max": lambda rows, unread: rows[unread:].max(0),
    "mean": lambda rows, unread: rows[unread:].mean(0),
    "mean_sqrt_len_tokens": lambda rows, unread: _mean_sqrt(rows[unread:]),
    "weightedmean": lambda rows, unread: _weighted_mean(rows[unread:], unread),
    "lasttoken": lambda rows, unread: rows[-1],
}
