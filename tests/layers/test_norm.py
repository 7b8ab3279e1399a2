"""Tests of LayerNorm and RMSNorm, against manual and exact arithmetic."""

import functools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkv.layers import LayerNorm, RMSNorm
from rows import failing

from .support import numbers


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_layer_norm_without_parameters(dtype: Any) -> None:
    norm = LayerNorm(4, eps=0.5, affine=False)
    assert norm.parameters == {}
    found = norm(np.array([2.0, 3.0, 4.0, 7.0], dtype))
    assert found.dtype == dtype
    assert found.tolist() == [-1, -0.5, 0, 1.5]


@functools.cache  # the tests of all backends use the same results
def exact(row: tuple[float, ...], eps: float, centre: bool) -> list[float]:
    """Compute the norm with fractions, which are exact up to the root."""
    fractions = [Fraction(float(value)) for value in row]
    mean = sum(fractions) / len(fractions) if centre else 0
    centred = [value - mean for value in fractions]
    variance = sum(value * value for value in centred) / len(centred)
    return [float(value) / math.sqrt(variance + Fraction(eps)) for value in centred]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("centre", "bias"), [(True, True), (True, False), (False, False)])
def test_each_size_of_rows_and_vectors(centre: bool, bias: bool) -> None:
    for size in (*range(1, 70), 129, 384, 1000):
        weight, shift = numbers(2, size, seed=1, dtype=np.float32)
        parameters = {"weight": weight, "bias": shift} if bias else {"weight": weight}
        layer = (LayerNorm if centre else RMSNorm).from_parameters(parameters, eps=1e-3)
        around = np.full((2 + size % 5, size + 40), np.nan, np.float32)
        x = around[:, 20:-20]
        x[...] = numbers(*x.shape, seed=size)
        expected = np.array([exact(tuple(row.tolist()), 1e-3, centre) for row in x]) * weight
        if bias:
            expected += shift
        np.testing.assert_allclose(layer(x), expected, atol=1e-6, rtol=1e-6)
        np.testing.assert_array_equal(layer(x[None, ::-1])[0, ::-1], layer(x))
        np.testing.assert_array_equal(layer(x[0]), layer(x)[0])
    assert layer(np.zeros((3, 0, 1000), np.float32)).shape == (3, 0, 1000)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("mean", [0.0, 3.0, 1e3])
def test_float32_rows_keep_their_digits(centre: bool, mean: float, backend: str) -> None:
    x = (numbers(4, 384, seed=3) + mean).astype(np.float32)
    layer = LayerNorm(384, eps=1e-12) if centre else RMSNorm(384, eps=1e-12)
    out = layer(x)
    assert out.dtype == np.float32
    expected = np.array([exact(tuple(row.tolist()), 1e-12, centre) for row in x])
    # Rounding a mean of 1e3 to float32 causes an error of up to 3e-5. NumPy subtracts the rounded
    # mean from each number.
    allowed = 1e-4 if backend == "numpy" and centre and mean > 10 else 1e-6
    np.testing.assert_allclose(out, expected, atol=allowed, rtol=1e-6)


def test_a_constant_row_becomes_the_bias() -> None:
    norm = LayerNorm(3)
    norm.parameters["bias"][:] = [1, 2, 3]
    np.testing.assert_array_equal(norm(np.full((2, 3), 7.0, np.float32)), [[1, 2, 3]] * 2)


@pytest.mark.parametrize("size", [1, 5, 16, 33, 200])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.usefixtures("backend")
def test_bfloat16_is_rounded_once(kind: Any, size: int) -> None:
    layer, x = kind(size, dtype="bfloat16"), numbers(7, size).astype(ml_dtypes.bfloat16)
    layer.parameters["weight"][:] = numbers(size, seed=1)
    out = layer(x[:, ::-1])
    assert out.dtype == ml_dtypes.bfloat16
    wide = {name: array.astype(np.float64) for name, array in layer.parameters.items()}
    expected = kind.from_parameters(wide)(x[:, ::-1].astype(np.float64))
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=2.0**-8 * 1.01, atol=2e-6)


@pytest.mark.parametrize("layer", [LayerNorm(4), RMSNorm(4)])
def test_halves_are_computed_in_float32(layer: Any) -> None:
    x = np.array([[300.0, -200.0, 100.0, 50.0]], np.float16)  # their squares overflow in float16
    half = type(layer)(4, dtype=np.float16)
    out = half(x)
    assert out.dtype == np.float16
    np.testing.assert_allclose(out, layer(x.astype(np.float32)), rtol=2.0**-10)


@pytest.mark.parametrize(
    ("x", "weight", "result"),
    [
        (np.float32, np.float32, np.float32),
        (np.float64, np.float32, np.float64),
        (np.float32, np.float64, np.float64),
        (np.int64, np.float32, np.float32),
        (np.uint8, np.float64, np.float64),
        (np.float16, np.float32, np.float32),
        (ml_dtypes.bfloat16, np.float32, np.float32),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        (np.int32, ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        (">f4", np.float32, np.float32),
    ],
)
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_types_promote(kind: Any, x: Any, weight: Any, result: Any) -> None:
    out = kind(2, dtype=weight)(np.array([[1, 3]]).astype(x))
    assert out.dtype == np.dtype(result)
    assert out.dtype.isnative


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_infinite_rows_draw_no_warning_and_do_not_affect_other_rows(kind: Any) -> None:
    x = np.array([[1.0, 2.0], [np.inf, -np.inf], [1.0, 2.0]])
    out = kind(2, dtype=np.float64)(x)
    assert np.isfinite(out[[0, 2]]).all()
    assert np.isnan(out[1]).any()


def test_bad_input() -> None:
    for make, error, message in (
        (lambda: LayerNorm(0), ValueError, "dim is 0"),
        (lambda: LayerNorm(4, eps=-1.0), ValueError, "eps is -1.0"),
        (lambda: LayerNorm(4, dtype=np.int32), TypeError, "dtype is int32: choose float16"),
        (lambda: LayerNorm(4)(np.ones((2, 3))), ValueError, r"\(2, 3\).* \(\.\.\., 4\)"),
        (lambda: RMSNorm(4)(np.float64(3)), ValueError, r"x has shape \(\)"),
        (lambda: LayerNorm(4)(np.ones((2, 4), bool)), TypeError, "x is bool; pass floats"),
        (lambda: LayerNorm.from_parameters({}), ValueError, "none; pass weight and bias"),
        (lambda: RMSNorm.from_parameters({"weight": np.ones((2, 2))}), ValueError, r"\(D,\)"),
        (
            lambda: LayerNorm.from_parameters({"weight": np.ones(3), "bias": np.ones(4)}),
            ValueError,
            r"bias has shape \(4,\), but must have \(3,\)",
        ),
        (
            lambda: RMSNorm.from_parameters({"weight": np.ones(3), "bias": np.ones(3)}),
            ValueError,
            "the parameters are bias, weight; pass weight",
        ),
        (
            lambda: LayerNorm.from_parameters({"weight": np.ones(3, int)}),
            TypeError,
            r"weight is int64, but .* weight\.astype",
        ),
    ):
        with failing(make, error, message), pytest.raises(error, match=message):
            make()


def test_traces_hold_the_scale_and_the_normalized_rows() -> None:
    x = np.array([[1.0, 7.0]])
    trace = LayerNorm(2, eps=0.0).trace(x)
    np.testing.assert_allclose(trace["hook_scale"], [[3.0]])  # the standard deviation
    np.testing.assert_allclose(trace["hook_normalized"], [[-1.0, 1.0]])
    trace = RMSNorm(2, eps=0.0).trace(x)
    np.testing.assert_allclose(trace["hook_scale"], [[5.0]])  # the root of (1 + 49) / 2
    np.testing.assert_allclose(trace["hook_normalized"], [[0.2, 1.4]])
