"""Tests of the gradients of LayerNorm and RMSNorm, on every backend."""

from typing import Any

import numpy as np
import pytest

from qkv.ops._norm import norm_grad

from .support import Array, close, grown, numbers, slope

pytestmark = pytest.mark.usefixtures("backend")  # run every test on each backend


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_norm_gradients(centred: bool, dtype: Any, allowed: float) -> None:
    x, weight, grad = numbers(2, 3, 7), numbers(7, seed=1), numbers(2, 3, 7, seed=2)
    x, weight, grad = (a.astype(np.float64) for a in (x, weight, grad))

    def scale(x: Array) -> Array:
        shifted = x - x.mean(-1, keepdims=True) * centred
        return np.sqrt((shifted**2).mean(-1, keepdims=True) + 0.1)

    def function(x: Array, weight: Array) -> Array:
        return (x - x.mean(-1, keepdims=True) * centred) / scale(x) * weight

    given = (a.astype(dtype) for a in (x, weight, scale(x), grad))
    found = norm_grad(*given, centred=centred, bias=True)
    close(found[0], slope(lambda it: function(it, weight), x, grad), allowed)
    close(found[1], slope(lambda it: function(x, it), weight, grad), allowed)
    close(found[2], grad.sum((0, 1)), allowed)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    ("rows", "size"), [(0, 5), (1, 1), (3, 17), (300, 33), (700, 192), (5, 9000)]
)
def test_norm_gradients_of_any_size(rows: int, size: int, centred: bool) -> None:
    x, weight, grad = numbers(rows, size) + 3, numbers(size, seed=1), numbers(rows, size, seed=2)
    scale = np.sqrt(
        np.square(x - x.mean(-1, keepdims=True) * centred).mean(-1, keepdims=True) + 0.1
    )
    given = (grown(x), weight, scale, grown(grad))
    found = norm_grad(*given, centred=centred, bias=True)
    exact = norm_grad(*(a.astype(np.float64) for a in given), centred=centred, bias=True)
    for array, expected in zip(found, exact, strict=True):
        close(array, expected, 2e-6)
    assert norm_grad(*given, centred=centred, bias=False)[2] is None
