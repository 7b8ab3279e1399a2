"""Texts laid end to end without padding: their limits, and back to one row per text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from qkv.arrays import Array
from qkv.trace import Recorder


def starts_of(lengths: Iterable[int]) -> Array:
    """Where each text of these lengths begins and the last one ends, `(B + 1,)`."""
    return np.concatenate([[0], np.cumsum(list(lengths))]).astype(np.int64)


def places(cu: Array) -> tuple[Array, Array]:
    """For each row the number of its text and its place in it, both `(total,)`."""
    lengths = np.diff(cu)
    text = np.repeat(np.arange(len(lengths)), lengths)
    return text, np.arange(cu[-1]) - cu[:-1][text]


def padded(rows: Array, cu: Array) -> Array:
    """Rows `(total, ...)` as `(B, T, ...)`, T the longest text, 0 in the padding."""
    lengths = np.diff(cu)
    shape = len(lengths), lengths.max(initial=0), *rows.shape[1:]
    if _alike(cu):
        return rows.reshape(shape).copy()
    out = np.zeros(shape, rows.dtype)
    out[places(cu)] = rows
    return out


def padded_heads(parts: Sequence[Array], cu: Array) -> list[Array]:
    """Each of packed `(H, total, d)` as `(B, H, T, d)`."""
    return [np.swapaxes(padded(np.swapaxes(part, 0, 1), cu), 1, 2) for part in parts]


def unpadded(whole: Array, cu: Array) -> Array:
    """`(B, T, ...)` as rows `(total, ...)`, without the padding."""
    if _alike(cu):
        return whole.reshape(-1, *whole.shape[2:])
    return whole[places(cu)]


def unpadded_heads(whole: Array, cu: Array) -> Array:
    """`(B, H, T, d)` as `(H, total, d)`, without the padding."""
    return np.swapaxes(unpadded(np.swapaxes(whole, 1, 2), cu), 0, 1)


def _alike(cu: Array) -> bool:
    """Whether all texts have the same length, so that there is no padding."""
    lengths = np.diff(cu)
    return len(lengths) > 0 and lengths.min() == lengths.max() > 0


def of_rows(record: Recorder | None, cu: Array | None) -> Recorder | None:
    """What is given packed rows `(total, ...)` and keeps them as `(B, T, ...)`."""
    if record is None or cu is None:
        return record
    return record.under("", partial(padded, cu=cu), partial(unpadded, cu=cu))


def of_heads(record: Recorder | None, cu: Array | None) -> Recorder | None:
    """What is given heads `(..., H, T, d)`, packed `(H, total, d)`, and keeps `(..., T, H, d)`."""
    if record is None:
        return None
    if cu is None:
        return record.under("", _heads_last, _heads_last)
    return record.under(
        "",
        lambda heads: padded(_heads_last(heads), cu),
        lambda whole: _heads_last(unpadded(whole, cu)),
    )


def _heads_last(heads: Array) -> Array:
    """`(..., H, T, d)` as `(..., T, H, d)`, and back."""
    return np.swapaxes(heads, -3, -2)
