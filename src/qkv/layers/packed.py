"""Packed rows, texts end to end without padding: their options and their padded form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend import call as formula
from qkv.trace.recorder import padded, unpadded

PADDED = ("attn_mask", "bias")  # with these options packed rows are padded
PACKED = (*PADDED, *formula.PACKED)


def check_options(
    options: Mapping[str, Any], *, packed: bool, call: str, returns: bool = True
) -> None:
    """Raise for an unknown option, an option that packed rows lack, or one that returns weights."""
    without = () if returns else formula.RETURNS
    formula.check_options(options, call=call, without=without, why=": use trace()")
    for name, value in options.items():
        if packed and name not in PACKED and value is not None and value is not False:
            raise ValueError(
                f"{call}: {name} does not go with cu_lengths: choose from {', '.join(PACKED)}"
            )


def settings(options: Mapping[str, Any], cu: Array | None) -> dict[str, Any]:
    """Return the options with which `qkv.attention` computes a traced attention again."""
    kept = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in options.items()
        if name not in formula.RETURNS and value is not None
    }
    if cu is not None:
        kept |= {"query_lengths": np.diff(cu), "key_lengths": np.diff(cu)}
    return kept


def starts_of(lengths: Iterable[int]) -> Array:
    """Return where each text of these lengths begins and the last one ends, `(B + 1,)`."""
    return np.concatenate([[0], np.cumsum(list(lengths))]).astype(np.int64)


def padded_heads(parts: Sequence[Array], cu: Array) -> list[Array]:
    """Return packed arrays `(H, total, d)` with padding, as `(B, H, T, d)`."""
    return [np.swapaxes(padded(np.swapaxes(part, 0, 1), cu), 1, 2) for part in parts]


def unpadded_heads(whole: Array, cu: Array) -> Array:
    """Return `(B, H, T, d)` without the padding, as `(H, total, d)`."""
    return np.swapaxes(unpadded(np.swapaxes(whole, 1, 2), cu), 0, 1)
