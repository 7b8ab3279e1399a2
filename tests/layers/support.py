"""Inputs for the tests of the layers, and attention in plain loops."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    visible: Callable[[int, int], bool] = lambda i, j: True,
) -> tuple[Array, Array]:
    """Compute the output (L, E) and the weights (heads, L, S) for one text in plain loops."""
    kv_heads = heads if kv_heads is None else kv_heads

    def through(name: str, rows: Any) -> list[list[float]]:
        weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
        return [dot(row, weight, bias) for row in rows]

    queries, keys, values = (
        through(f"{name}_proj", rows)
        for name, rows in zip("qkv", (x, context, context), strict=True)
    )
    d, dv = len(queries[0]) // heads, len(values[0]) // kv_heads
    weights = np.zeros((heads, len(x), len(context)))
    joined: list[list[float]] = [[] for _ in x]
    for head in range(heads):
        shared = head * kv_heads // heads
        for i, query in enumerate(queries):
            positions = [j for j in range(len(context)) if visible(i, j)]
            mine = query[head * d : (head + 1) * d]
            powers = []
            for j in positions:
                other = keys[j][shared * d : (shared + 1) * d]
                score = math.fsum(a * b for a, b in zip(mine, other, strict=True))
                powers.append(math.exp(score / math.sqrt(d)))
            for j, power in zip(positions, powers, strict=True):
                weights[head, i, j] = power / math.fsum(powers)
            for c in range(shared * dv, (shared + 1) * dv):
                joined[i].append(math.fsum(weights[head, i, j] * values[j][c] for j in positions))
    out = through("out_proj", joined) if "out_proj.weight" in parameters else joined
    return np.array(out), weights
