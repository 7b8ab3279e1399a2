"""Random numbers, slopes and comparisons for the tests of the operations of layers."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def slope(function: Callable[[Array], Array], at: Array, grad_out: Array) -> Array:
    """Compute the gradient of `(function(at) * grad_out).sum()` by central differences."""
    found = np.empty(at.shape)
    for index in np.ndindex(at.shape):
        step = 1e-6
        one, other = at.copy(), at.copy()
        one[index] += step
        other[index] -= step
        found[index] = ((function(one) - function(other)) * grad_out).sum() / (2 * step)
    return found


def close(found: Array, expected: Array, allowed: float) -> None:
    assert found.shape == expected.shape
    error = np.abs(found.astype(np.float64) - expected).max(initial=0)
    assert error <= allowed * max(1.0, np.abs(expected).max(initial=0)), error


def grown(array: Array) -> Array:
    """Return a view of the same numbers inside a larger array of NaN."""
    around = np.full((len(array) + 2, array.shape[1] + 3), np.nan, array.dtype)
    around[1:-1, 1:-2] = array
    return around[1:-1, 1:-2]
