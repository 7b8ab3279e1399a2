"""Detect untrained attention, which has random weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type

# The stretch of a random matrix is about 1 (up to 1.08 if it is small); after training, above 1.3.
LEARNED = 1.2
_STEPS = 20


def is_untrained(layers: Iterable[Any]) -> bool:
    """Return whether every W_Q and W_K of these layers looks like a matrix of random numbers.

    In some directions, a trained matrix stretches vectors more than a random matrix does. The
    result is False if no layer has such matrices.
    """
    weights = [
        layer.attn.parameters[f"{name}_proj.weight"]
        for layer in layers
        for name in "qk"
        if f"{name}_proj.weight" in getattr(getattr(layer, "attn", None), "parameters", {})
    ]
    return bool(weights) and all(stretch(weight) < LEARNED for weight in weights)


@np.errstate(over="ignore", invalid="ignore")
def stretch(weight: Array) -> float:
    """Return how far a matrix (n, m) stretches a vector, relative to random numbers.

    This is its largest singular value over `rms * (sqrt(n) + sqrt(m))`, estimated from below by
    power iteration from a fixed start; infinity if numbers are not finite.

    Source:
        Marchenko and Pastur 1967; Martin and Mahoney 2021, "Implicit Self-Regularization in Deep
        Neural Networks", of what training does to it.

    >>> rng = np.random.default_rng(0)
    >>> random = rng.standard_normal((64, 32))
    >>> 0.9 < stretch(random) < 1.1, stretch(np.ones((64, 32))) > 2
    (True, True)
    """
    matrix = weight.astype(compute_type(weight.dtype), copy=False)
    rms = float(np.sqrt(np.square(matrix, dtype=np.float64).mean()))
    edge = rms * sum(map(math.sqrt, matrix.shape))
    if not np.isfinite(edge) or not edge:
        return float("inf") if edge else 0.0
    vector: Array = np.random.default_rng(0).standard_normal(matrix.shape[1:]).astype(matrix.dtype)
    for _ in range(_STEPS):
        vector = matrix.T @ (matrix @ (vector / np.linalg.norm(vector)))
    return math.sqrt(float(np.linalg.norm(vector))) / edge
