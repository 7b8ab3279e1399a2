"""The activations, on every backend."""

import math

import numpy as np
import pytest

from qkv.ops.activation import activate

pytestmark = pytest.mark.usefixtures("backend")  # every test, on each of them

XS = np.concatenate([np.linspace(-8, 8, 40001), [0.0, -0.0, 1e-30, -1e-4, 30.0, -30.0, 200.0]])

EXACT = {
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
    "gelu_bloom": lambda x: x / 2 * (1 + math.tanh(0.79788456 * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 3e-7), (np.float64, 5e-16)])
def test_activations_by_the_math_module(name: str, dtype: type, bound: float) -> None:
    x = XS.astype(dtype)
    got = activate(x, name)
    assert got.dtype == dtype
    expected = np.array([EXACT[name](float(number)) for number in x])
    assert (np.abs(got - expected) <= bound * np.maximum(1, np.abs(x))).all()


@pytest.mark.parametrize("name", EXACT)
def test_activations_end_at_nothing_and_at_x(name: str) -> None:
    x = np.array([-1e4, -60.0, 60.0, 1e4], np.float32)
    np.testing.assert_allclose(activate(x, name), np.maximum(x, 0), rtol=1e-7, atol=1e-24)


@pytest.mark.parametrize("name", EXACT)
def test_activations_of_infinities_and_nan(name: str) -> None:
    got = activate(np.array([np.inf, np.nan], np.float32), name)
    assert got[0] == np.inf
    assert np.isnan(got[1])


def test_an_activation_leaves_its_input_and_keeps_its_shape() -> None:
    x = np.asfortranarray(np.arange(-6.0, 6).reshape(3, 4))
    before = x.copy()
    np.testing.assert_array_equal(activate(x, "relu"), np.maximum(before, 0))
    np.testing.assert_array_equal(x, before)
    assert activate(np.zeros((0, 3)), "gelu").shape == (0, 3)


def test_an_unknown_activation_is_told_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'swish'.*gelu, gelu_tanh, silu, relu"):
        activate(np.zeros(2), "swish")
