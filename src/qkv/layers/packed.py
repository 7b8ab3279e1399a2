"""Texts laid end to end without padding: their limits, and back to one row per text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from qkv.arrays import Array
from qkv.trace.recorder import of_heads, of_rows, padded, places, unpadded

__all__ = [
    "of_heads",
    "of_rows",
    "padded",
    "padded_heads",
    "places",
    "starts_of",
    "unpadded",
    "unpadded_heads",
]


def starts_of(lengths: Iterable[int]) -> Array:
    """Where each text of these lengths begins and the last one ends, `(B + 1,)`."""
    return np.concatenate([[0], np.cumsum(list(lengths))]).astype(np.int64)


def padded_heads(parts: Sequence[Array], cu: Array) -> list[Array]:
    """Each of packed `(H, total, d)` as `(B, H, T, d)`."""
    return [np.swapaxes(padded(np.swapaxes(part, 0, 1), cu), 1, 2) for part in parts]


def unpadded_heads(whole: Array, cu: Array) -> Array:
    """`(B, H, T, d)` as `(H, total, d)`, without the padding."""
    return np.swapaxes(unpadded(np.swapaxes(whole, 1, 2), cu), 0, 1)
