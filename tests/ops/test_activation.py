"""Tests of the activations, on every backend."""

from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest

from activations import FORMULAS
from qkv.ops.activation import ACTIVATIONS, activate, activation_grad
from qkv.ops.kernel import variant
from qkv.ops.linear import linear
from qkv.ops.packing import Prepared
from rows import failing
from subnormal import has_subnormal, no_subnormal_operand

from .support import close, numbers, slope

pytestmark = pytest.mark.usefixtures("backend")  # run every test on each backend

XS = np.concatenate([np.linspace(-8, 8, 40001), [0.0, -0.0, 1e-30, -1e-4, 30.0, -30.0, 200.0]])


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 3e-7), (np.float64, 5e-16)])
def test_activations_by_the_math_module(name: str, dtype: type, bound: float) -> None:
    x = XS.astype(dtype)
    got = activate(x, name)
    assert got.dtype == dtype
    expected = np.array([FORMULAS[name](float(number)) for number in x])
    assert (np.abs(got - expected) <= bound * np.maximum(1, np.abs(x))).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_numbers_of_any_size_are_not_subnormal(name: str, backend: str) -> None:
    x = np.concatenate([np.linspace(-300, 300, 60001), [-1e30, -1e4, 1e4, 1e30]]).astype(np.float32)
    with nullcontext() if backend == "numpy" else no_subnormal_operand():
        found = activate(x, name), activation_grad(x, np.full_like(x, 0.5), name)
    assert not any(map(has_subnormal, found))


def test_an_activation_keeps_the_shape_and_does_not_change_its_input() -> None:
    x = np.asfortranarray(np.arange(-6.0, 6).reshape(3, 4))
    before = x.copy()
    np.testing.assert_array_equal(activate(x, "relu"), np.maximum(before, 0))
    np.testing.assert_array_equal(x, before)
    assert activate(np.zeros((0, 3)), "gelu").shape == (0, 3)


def test_an_unknown_activation_error_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'swish'.*gelu, gelu_tanh, silu, relu"):
        activate(np.zeros(2), "swish")


# Gradients


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_activation_gradients(name: str, dtype: Any, allowed: float) -> None:
    x = np.linspace(-9, 9, 350).astype(np.float32).astype(np.float64)
    grad_out = numbers(350).astype(np.float64)
    expected = slope(lambda it: activate(it, name), x, grad_out)
    close(activation_grad(x.astype(dtype), grad_out.astype(dtype), name), expected, allowed)


def test_activations_of_any_size() -> None:
    for size, name in product([0, 1, 15, 16, 63, 64, 65, 16383, 16385, 40000], ACTIVATIONS):
        x, grad_out = numbers(size + 1)[1:] * 3, numbers(size, seed=1)
        wide, ones = x.astype(np.float64), grad_out.astype(np.float64)
        with failing(size, name):
            close(activate(x, name), activate(wide, name), 1e-6)
            close(activation_grad(x, grad_out, name), activation_grad(wide, ones, name), 2e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_and_gradients_at_extreme_inputs(name: str, dtype: Any) -> None:
    x = np.array([-1e4, -200, -60, 60, 200, 1e4, 1e30, np.inf, -np.inf, -1e30, np.nan], dtype)
    slopes = activation_grad(x, np.full(11, 2, dtype), name)
    np.testing.assert_allclose(slopes[:10], 2 * (x[:10] > 0), rtol=1e-6, atol=1e-19)
    assert np.isnan(slopes[10]) or name == "relu"
    np.testing.assert_allclose(activate(x[:8], name), np.maximum(x[:8], 0), 1e-7, 1e-24)
    assert np.isnan(activate(x[-1:], name)).all()
    assert np.isnan(activation_grad(np.full(2, 3, dtype), np.full(2, np.nan, dtype), name)).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_after_a_product_have_the_bits_of_those_in_it(name: str) -> None:
    if (chosen := variant()) is None:
        pytest.skip("NumPy computes no activations in products")
    x = numbers(3, 40) * np.float32([[0.1], [1], [20]])
    gate, up, bias = numbers(40, 75), numbers(40, 75, seed=1), numbers(75, seed=2)
    joined = np.concatenate([linear(x, gate, bias), linear(x, up)], axis=1)
    found = Prepared(chosen, x.dtype, 2).activate(name)(joined[:, :75]) * joined[:, 75:]
    expected = linear(x, up, gate=linear(x, gate, bias, activation=name))
    np.testing.assert_array_equal(found, expected)
