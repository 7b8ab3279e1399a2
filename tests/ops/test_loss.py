"""Tests of cross entropy and its gradient, on every backend."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from qkv.ops._training import cross_entropy
from subnormal import has_subnormal, no_subnormal_operand

from .support import Array, close, grown, numbers, slope

pytestmark = pytest.mark.usefixtures("backend")  # run every test on each backend


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_cross_entropy(weighted: bool, dtype: Any, allowed: float) -> None:
    logits = numbers(4, 9).astype(np.float64)
    targets = np.array([0, 8, 3, 3])
    weights = np.array([1.0, 0.5, 0.0, 2.0]) if weighted else np.ones(4)

    def function(logits: Array) -> Array:
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return -np.log(p[np.arange(4), targets]) * weights

    given = weights.astype(dtype) if weighted else None
    losses, grad = cross_entropy(logits.astype(dtype), targets, given)
    close(losses, function(logits), allowed)
    close(grad, slope(function, logits, np.ones(4)), allowed)


def test_logits_of_any_magnitude_give_finite_losses() -> None:
    logits = np.array([[1e4, 0.0], [-1e4, 0.0], [0.0, -np.inf]], np.float32)
    losses, grad = cross_entropy(logits, np.array([1, 0, 0]))
    np.testing.assert_array_equal(losses, np.float32([1e4, 1e4, 0]))
    np.testing.assert_array_equal(grad, [[1, -1], [-1, 1], [0, 0]])


def test_the_gradient_of_distant_logits_is_not_subnormal(backend: str) -> None:
    logits = np.linspace(0, -200, 3 * 2000, dtype=np.float32).reshape(2000, 3).T.copy()
    with nullcontext() if backend == "numpy" else no_subnormal_operand():
        _, grad = cross_entropy(logits, np.array([0, 1, 2]), np.float32([1, 1e-4, 1e-7]))
    assert not has_subnormal(grad)
    assert (grad == 0).any()


@pytest.mark.parametrize("target", [-1, 9])
def test_a_target_outside_is_an_error(target: int) -> None:
    with pytest.raises(ValueError, match=r"^cross_entropy: targets run from .* logits have.*9"):
        cross_entropy(numbers(2, 9), np.array([3, target]))


def test_targets_and_weights_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"weights have shape \(1,\) and targets \(2,\)"):
        cross_entropy(numbers(2, 9), np.array([3, 4]), np.ones(1))
    with pytest.raises(TypeError, match="targets are float64; pass whole numbers"):
        cross_entropy(numbers(2, 9), np.array([3.0, 4.0]))


@pytest.mark.parametrize(("rows", "size"), [(0, 4), (1, 1), (3, 15), (40, 64), (33, 65), (9, 8192)])
def test_cross_entropy_of_any_size(rows: int, size: int) -> None:
    logits = numbers(rows, size) * 5 + 30
    targets = np.random.default_rng(0).integers(0, size, rows).astype(np.int32)
    weights = numbers(rows, seed=3)
    losses, grad = cross_entropy(grown(logits), targets, weights)
    wide = logits.astype(np.float64), targets, weights.astype(np.float64)
    for array, expected in zip((losses, grad), cross_entropy(*wide), strict=True):
        close(array, expected, 2e-6)
