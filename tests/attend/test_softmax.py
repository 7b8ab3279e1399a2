"""Tests of softmax, with large numbers and with -infinity."""

import math
from typing import Any

import numpy as np
import pytest

import qkv

from .support import FLOATS, numbers


def test_by_hand() -> None:
    e = math.e
    np.testing.assert_allclose(qkv.softmax(np.array([1.0, 0.0])), [e / (e + 1), 1 / (e + 1)])
    np.testing.assert_allclose(qkv.softmax(np.log([1.0, 2.0, 5.0])), [1 / 8, 2 / 8, 5 / 8])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_against_plain_exponentials(dtype: np.dtype, axis: int) -> None:
    x = numbers((3, 4, 5), 1).astype(dtype)
    exponentials = np.exp(x.astype(np.float64))
    expected = exponentials / exponentials.sum(axis=axis, keepdims=True)
    weights = qkv.softmax(x, axis=axis)
    assert weights.dtype == dtype
    rounding = {2: float(np.finfo(np.float16).eps), 4: 1e-6, 8: 1e-14}[dtype.itemsize]
    rounding = 2.0**-8 if dtype.name == "bfloat16" else rounding
    np.testing.assert_allclose(weights.astype(float), expected, atol=rounding)


def test_the_last_axis_is_the_default() -> None:
    x = numbers((3, 4), 1, np.float64)
    np.testing.assert_allclose(qkv.softmax(x).sum(axis=-1), 1, rtol=1e-14)


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4, 1e30, -1e30])
def test_large_numbers(shift: float) -> None:
    np.testing.assert_array_equal(
        qkv.softmax(np.array([shift, shift], np.float32)), np.array([0.5, 0.5], np.float32)
    )
    np.testing.assert_array_equal(qkv.softmax(np.array([1e30, -1e30])), [1, 0])


def test_minus_infinity_gets_weight_0() -> None:
    weights = qkv.softmax(np.array([[0.0, -np.inf, 0.0], [-np.inf, -np.inf, 3.0]]))
    assert weights.tolist() == [[0.5, 0, 0.5], [0, 0, 1]]


@pytest.mark.parametrize("axis", [0, -1])
def test_all_minus_infinity_gives_zeros(axis: int) -> None:
    x = np.zeros((3, 3))
    x[1] = -np.inf
    x = x if axis == -1 else x.T
    weights = qkv.softmax(x, axis=axis)
    weights = weights if axis == -1 else weights.T
    assert weights[1].tolist() == [0, 0, 0]
    np.testing.assert_allclose(weights[[0, 2]], 1 / 3)


def test_a_nan_shows_in_its_row() -> None:
    weights = qkv.softmax(np.array([[0.0, np.nan, -np.inf], [0.0, 0.0, -np.inf]]))
    assert np.isnan(weights[0, :2]).all()
    assert weights[1].tolist() == [0.5, 0.5, 0]


def test_empty() -> None:
    assert qkv.softmax(np.zeros((3, 0))).shape == (3, 0)
    assert qkv.softmax(np.zeros((0, 3))).shape == (0, 3)


def test_the_input_is_not_written_to() -> None:
    x = numbers((3, 4), 1)
    before = x.copy()
    x.flags.writeable = False
    qkv.softmax(x)
    np.testing.assert_array_equal(x, before)


def test_views_and_byte_order() -> None:
    x = numbers((4, 6), 1)
    expected = qkv.softmax(x.T)
    np.testing.assert_allclose(qkv.softmax(x, axis=0).T, expected, rtol=1e-6)
    swapped = qkv.softmax(x.astype(">f4"))
    assert swapped.dtype.isnative
    np.testing.assert_array_equal(swapped, qkv.softmax(x))
    np.testing.assert_allclose(qkv.softmax(x[::-1, ::-2]), qkv.softmax(x[::-1, ::-2].copy()))


def test_an_axis_out_of_range_is_refused() -> None:
    with pytest.raises((ValueError, IndexError)):
        qkv.softmax(np.zeros((3, 4)), axis=2)


@pytest.mark.parametrize("axis", [5, -3, "rows", (0, 0)])
def test_the_error_for_an_invalid_axis_names_softmax(axis: Any) -> None:
    with pytest.raises(ValueError, match=r"^softmax: x has shape \(2, 3\) and "):
        qkv.softmax(np.zeros((2, 3)), axis=axis)
