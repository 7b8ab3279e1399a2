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
    if len(lengths) == 1:  # there is no padding
        return rows[None].copy()
    out = np.zeros((len(lengths), lengths.max(initial=0), *rows.shape[1:]), rows.dtype)
    out[places(cu)] = rows
    return out


def padded_heads(parts: Sequence[Array], cu: Array) -> list[Array]:
    """Each of packed `(H, total, d)` as `(B, H, T, d)`."""
    return [np.swapaxes(padded(np.swapaxes(part, 0, 1), cu), 1, 2) for part in parts]


def inside(record: Recorder | None, part: str, cu: Array | None) -> Recorder | None:
    """What a part records to, under its name; of packed rows as `(B, T, ...)`."""
    if record is None:
        return None
    return record.under(f"{part}.", None if cu is None else partial(padded, cu=cu))


def keep(record: Recorder | None, name: str, array: Array, cu: Array | None) -> None:
    """Record an array, of packed rows as `(B, T, ...)`, if anybody wants it."""
    if record is not None and record.wants(name):
        record(name, array if cu is None else padded(array, cu))
