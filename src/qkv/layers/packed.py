"""Packed rows, texts laid end to end without padding: their options and their padded form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend import options as formula
from qkv.trace.recorder import padded, unpadded

PADDED = ("attn_mask", "bias")  # with one of these packed rows are padded again
PACKED = (*PADDED, *formula.PACKED)


def check_options(options: Mapping[str, Any], *, packed: bool, call: str) -> None:
    """One clear error for an option that there is not, or not for packed rows."""
    formula.check_options(options, call=call)
    for name, value in options.items():
        if packed and name not in PACKED and value is not None and value is not False:
            raise ValueError(
                f"{call}: {name} does not go with cu_lengths: choose from {', '.join(PACKED)}"
            )


def settings(options: Mapping[str, Any], cu: Array | None) -> dict[str, Any]:
    """What `qkv.attention` needs beside its inputs to run a traced attention again."""
    kept = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in options.items()
        if name not in formula.RETURNS and value is not None
    }
    if cu is not None:
        kept |= {"query_lengths": np.diff(cu), "key_lengths": np.diff(cu)}
    return kept


def starts_of(lengths: Iterable[int]) -> Array:
    """Where each text of these lengths begins and the last one ends, `(B + 1,)`."""
    return np.concatenate([[0], np.cumsum(list(lengths))]).astype(np.int64)


def padded_heads(parts: Sequence[Array], cu: Array) -> list[Array]:
    """Each of packed `(H, total, d)` as `(B, H, T, d)`."""
    return [np.swapaxes(padded(np.swapaxes(part, 0, 1), cu), 1, 2) for part in parts]


def unpadded_heads(whole: Array, cu: Array) -> Array:
    """`(B, H, T, d)` as `(H, total, d)`, without the padding."""
    return np.swapaxes(unpadded(np.swapaxes(whole, 1, 2), cu), 0, 1)
