"""Inputs for the tests of the layers, and attention in plain loops."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attend.loops import attention

Array = NDArray[Any]


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Array:
    """Draw an array of normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def dot(row: Any, weight: Array, bias: Any = None) -> list[float]:
    """Apply a linear layer to one row."""
    columns = range(weight.shape[1])
    sums = [math.fsum(float(a) * float(weight[i, c]) for i, a in enumerate(row)) for c in columns]
    return sums if bias is None else [s + float(b) for s, b in zip(sums, bias, strict=True)]


def loops(
    x: Array,
    context: Array,
    parameters: Mapping[str, Array],
    heads: int,
    kv_heads: int | None = None,
    causal: bool = False,
) -> tuple[Array, Array]:
    """Compute the output (L, E) and the weights (heads, L, S) for one text in plain loops."""

    def through(name: str, rows: Array) -> Array:
        weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
        return np.array([dot(row, weight, bias) for row in rows])

    def split(name: str, rows: Array, count: int | None) -> Array:
        return through(name, rows).reshape(len(rows), count or heads, -1).swapaxes(0, 1)

    query, key = split("q_proj", x, heads), split("k_proj", context, kv_heads)
    found = attention(query, key, split("v_proj", context, kv_heads), is_causal=causal)
    joined = found.out.swapaxes(0, 1).reshape(len(x), -1)
    return through("out_proj", joined) if "out_proj.weight" in parameters else joined, found.weights
