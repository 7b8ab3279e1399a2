"""Gradients of what layers compute, and AdamW, on every backend."""

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qkv.activations import ACTIVATIONS, activate
from qkv.backend import BACKENDS
from qkv.backward import activation_grad, adamw, cross_entropy, linear_grad, norm, norm_grad

Array = np.ndarray[Any, Any]

module = sys.modules["qkv.backend"]


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("QKV_BACKEND", request.param)
    monkeypatch.setattr(module, "_threads", None)
    return request.param


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def slope(function: Callable[[Array], Array], at: Array, above: Array) -> Array:
    """The gradient of `(function(at) * above).sum()` by central differences, in float64."""
    found = np.empty(at.shape)
    for index in np.ndindex(at.shape):
        step = 1e-6
        one, other = at.copy(), at.copy()
        one[index] += step
        other[index] -= step
        found[index] = ((function(one) - function(other)) * above).sum() / (2 * step)
    return found


def close(found: Array, expected: Array, allowed: float) -> None:
    assert found.shape == expected.shape
    error = np.abs(found.astype(np.float64) - expected).max(initial=0)
    assert error <= allowed * max(1.0, np.abs(expected).max(initial=0)), error


@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_linear_gradients(dtype: Any, allowed: float) -> None:
    x, weight, grad = (numbers(*s, seed=i) for i, s in enumerate([(2, 5, 3), (3, 4), (2, 5, 4)]))
    wide = [a.astype(np.float64) for a in (x, weight, grad)]
    found = linear_grad(x.astype(dtype), weight.astype(dtype), grad.astype(dtype), bias=True)
    close(found[0], slope(lambda it: it @ wide[1], wide[0], wide[2]), allowed)
    close(found[1], slope(lambda it: wide[0] @ it, wide[1], wide[2]), allowed)
    close(found[2], wide[2].sum((0, 1)), allowed)
    assert {a.dtype for a in found} == {np.dtype(dtype)}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_activation_gradients(name: str, dtype: Any, allowed: float) -> None:
    x = np.linspace(-9, 9, 350).astype(np.float32).astype(np.float64)
    above = numbers(350).astype(np.float64)
    expected = slope(lambda it: activate(it, name), x, above)
    close(activation_grad(x.astype(dtype), above.astype(dtype), name), expected, allowed)


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


def test_logits_of_any_size_give_finite_losses() -> None:
    logits = np.array([[1e4, 0.0], [-1e4, 0.0], [0.0, -np.inf]], np.float32)
    losses, grad = cross_entropy(logits, np.array([1, 0, 0]))
    np.testing.assert_array_equal(losses, np.float32([1e4, 1e4, 0]))
    np.testing.assert_array_equal(grad, [[1, -1], [-1, 1], [0, 0]])


@pytest.mark.parametrize("target", [-1, 9])
def test_a_target_outside_is_an_error(target: int) -> None:
    with pytest.raises(
        ValueError, match=r"^cross_entropy: targets run from .* there are 9 columns"
    ):
        cross_entropy(numbers(2, 9), np.array([3, target]))


@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-12), (np.float32, 2e-6)])
@pytest.mark.parametrize("each", [False, True])
def test_adamw_by_its_formula(each: bool, dtype: Any, allowed: float) -> None:
    parameters = numbers(11).astype(dtype)
    mean, square = np.zeros(11, dtype), np.zeros(11, dtype)
    decay = np.where(np.arange(11) < 5, 0.1, 0.0).astype(dtype) if each else 0.1
    p, m, v = parameters.astype(np.float64), np.zeros(11), np.zeros(11)
    for step in range(1, 8):
        gradient = numbers(11, seed=step).astype(dtype)
        adamw(
            parameters, gradient, mean, square,
            rate=0.05, betas=(0.9, 0.98), eps=1e-3, decay=decay, step=step, factor=0.5,
        )  # fmt: skip
        g = gradient.astype(np.float64) / 2
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        p = p * (1 - 0.05 * decay)
        p = p - 0.05 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.98**step)) + 1e-3)
    close(parameters, p, allowed)
    close(mean, m, allowed)
    close(square, v, allowed)


def test_norm_of_everything() -> None:
    x = numbers(300, 401)
    assert math.isclose(norm(x), math.sqrt((x.astype(np.float64) ** 2).sum()), rel_tol=1e-12)
    assert norm(np.zeros(0, np.float32)) == 0
