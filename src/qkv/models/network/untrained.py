"""Whether attention is made with random numbers: of a model that has not been trained."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type

# A matrix of random numbers reaches 1 and, being small, up to 1.08; what has learned more than 1.3.
LEARNED = 1.2
_STEPS = 20


def is_untrained(layers: Iterable[Any]) -> bool:
    """Whether no W_Q and no W_K of these layers differs from a matrix of random numbers.

    Learning adds directions to a matrix that it stretches vectors along, further than random
    numbers do. False where no layer has such matrices.
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
    """How far a matrix (n, m) stretches a vector, where 1 is what random numbers do.

    That is its largest singular value over `rms * (sqrt(n) + sqrt(m))`, found by power iteration
    from a fixed start, and so at most that; infinity where numbers are not finite.

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
