"""Packed rows, which are texts end to end without padding: options, padding and unpadding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend import call as formula
from qkv.trace.recorder import padded, unpadded

PADDED = ("attn_mask", "bias")  # packed rows are padded if these options are given
PACKED = (*PADDED, *formula.PACKED)


def check_options(
    options: Mapping[str, Any], *, packed: bool, call: str, returns: bool = True
) -> None:
    """Raise an error if an option is unknown, or not supported here.

    With `packed`, options that packed rows lack are not supported. Without `returns`, options that
    select results are not supported.
    """
    without = () if returns else formula.RETURNS
    formula.check_options(options, call=call, without=without, why=": use trace()")
    for name, value in options.items():
        if packed and name not in PACKED and value is not None and value is not False:
            raise ValueError(
                f"{call}: {name} cannot be used with cu_lengths: choose from {', '.join(PACKED)}"
            )


def settings(options: Mapping[str, Any], cu: Array | None) -> dict[str, Any]:
    """Return the options for `qkv.attention` to compute a traced attention again."""
    kept = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in options.items()
        if name not in formula.RETURNS and value is not None
    }
    if cu is not None:
        kept |= {"query_lengths": np.diff(cu), "key_lengths": np.diff(cu)}
    return kept


def starts_of(lengths: Iterable[int]) -> Array:
    """Return the first row of each text and the end of the last, `(B + 1,)`, from lengths."""
    return np.concatenate([[0], np.cumsum(list(lengths))]).astype(np.int64)


def padded_heads(parts: Sequence[Array], cu: Array) -> list[Array]:
    """Pad packed arrays `(H, total, d)` to `(B, H, T, d)`."""
    return [np.swapaxes(padded(np.swapaxes(part, 0, 1), cu), 1, 2) for part in parts]


def unpadded_heads(whole: Array, cu: Array) -> Array:
    """Remove the padding of `(B, H, T, d)`, and return packed rows `(H, total, d)`."""
    return np.swapaxes(unpadded(np.swapaxes(whole, 1, 2), cu), 0, 1)
