"""Numbers as a page holds them: a type that is small, in base64."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from qkv.arrays import Array

_PER = 40000  # two for each half of the fourth digit


def pack_numbers(values: Any) -> dict[str, Any]:
    """Numbers as they are, in float32: what a page shows is rounded there, once.

    >>> pack_numbers(np.array([0.0, 1.0]))
    {'b64': 'AAAAAAAAgD8=', 'shape': [2]}
    """
    with np.errstate(over="ignore"):
        data = np.asarray(values).astype("<f4")
    return {"b64": _text(data.tobytes()), "shape": list(data.shape)}


def pack_halves(values: Array) -> dict[str, Any]:
    """Numbers rounded to float16.

    >>> pack_halves(np.array([0.0, 1.0]))
    {'b64': 'AAAAPA==', 'shape': [2], 'float': 16}
    """
    with np.errstate(over="ignore"):
        data = values.astype("<f2")
    return {"b64": _text(data.tobytes()), "shape": list(data.shape), "float": 16}


def pack_rows(rows: Array, scales: Array) -> dict[str, Any]:
    """Rows of int8 (R, C) that are each multiplied by a float16 of their own (R,).

    >>> pack_rows(np.int8([[1, -1]]), np.float16([1]))
    {'b64': 'Af8=', 'shape': [1, 2], 'int': 8, 'scale': 'ADw='}
    """
    packed = {"b64": _text(rows.tobytes()), "shape": list(rows.shape), "int": 8}
    return packed | {"scale": pack_halves(scales)["b64"]}


def pack_shares(weights: Array) -> dict[str, Any]:
    """Weights in 16 bits, `n / per`, that show as the weights do in four digits or fewer.

    Whoever rounds `n / per` gets what rounding the weight gives: n is even where it is exact, and
    else the odd number between those around it, which no rounding to four digits is in doubt about.

    >>> pack_shares(np.array([0.125, 0.12501]))
    {'b64': 'iBOJEw==', 'bits': 16, 'shape': [2], 'per': 40000}
    """
    exact = np.clip(np.nan_to_num(weights.astype(np.float64)), 0, 1) * _PER
    whole = np.floor(exact).astype(np.int64)
    return _packed(whole | (exact != whole), 16) | {"per": _PER}


def pack_bits(flags: Array) -> dict[str, Any]:
    """Flags, eight to a byte, the first in the highest bit.

    >>> pack_bits(np.array([True, False, True]))
    {'b64': 'oA==', 'bits': 8, 'shape': [3]}
    """
    data = np.packbits(flags.reshape(-1)).tobytes()
    return {"b64": _text(data), "bits": 8, "shape": list(flags.shape)}


def pack_flags(flags: Array) -> dict[str, Any] | None:
    """Flags `(layers, heads, L, S)`, an axis along which they are all the same cut to 1."""
    if not flags.any():
        return None
    for axis in (1, 0):
        first = flags.take([0], axis=axis)
        if (flags == first).all():
            flags = first
    return pack_bits(flags)


def pack_indices(indices: Array, limit: int) -> dict[str, Any]:
    """Places below `limit` in 16 bits, or 32 where they do not fit; -1 becomes all ones.

    >>> pack_indices(np.array([1, -1]), 10)
    {'b64': 'AQD//w==', 'bits': 16, 'shape': [2]}
    """
    return _packed(indices, 16 if limit <= 65535 else 32)


def _packed(whole: Array, bits: int) -> dict[str, Any]:
    data = whole.astype(np.int64).astype(f"<u{bits // 8}").tobytes()
    return {"b64": _text(data), "bits": bits, "shape": list(whole.shape)}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
