"""Tests of the formula: results by hand, shapes, scales, and calls that span several blocks."""

import math

import numpy as np
import pytest

import qkv

from .support import (
    agree,
    numbers,
    qkv_arrays,
)


def test_two_keys_by_hand() -> None:
    query = np.array([[1.0, 0.0]])
    key = np.array([[math.sqrt(2), 5.0], [0.0, 7.0]])
    value = np.array([[1.0, 0.0, 3.0], [10.0, 0.0, -3.0]])
    out, weights, lse = qkv.attention(query, key, value, return_weights=True, return_lse=True)
    # The scores are sqrt(2) / sqrt(2) = 1, and 0.
    e = math.e
    np.testing.assert_allclose(weights, [[e / (e + 1), 1 / (e + 1)]], rtol=1e-14)
    np.testing.assert_allclose(
        out, [[(e + 10) / (e + 1), 0, 3 * (e - 1) / (e + 1)]], rtol=1e-14, atol=1e-15
    )
    np.testing.assert_allclose(lse, [math.log(e + 1)], rtol=1e-14)


@pytest.mark.parametrize("dv", [1, 4, 9, 0])
def test_the_value_size_may_differ(dv: int) -> None:
    agree(*qkv_arrays(d=4, dv=dv))


@pytest.mark.parametrize("scale", [1.0, 0.3, -0.7, 3, 0.0])
def test_scale(scale: float) -> None:
    agree(*qkv_arrays(), scale=scale)


def test_a_numpy_scale_does_not_change_the_type() -> None:
    query, key, value = qkv_arrays()
    agree(query, key, value, scale=np.float64(0.5), softcap=np.float64(3.0))


def test_inputs_may_be_one_and_the_same_array() -> None:
    x = numbers((2, 6, 4))
    agree(x, x, x, is_causal=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_scores_of_ten_thousand(size: float, dtype: type) -> None:
    key = np.array([[1.0], [1.0005], [0.9], [1.0]], dtype)
    query = np.array([[size], [1.0], [-size]], dtype)
    value = numbers((4, 3), dtype=dtype)
    expected = agree(query, key, value, scale=1.0)
    assert expected.largest_score > 9999
    agree(query, key, value, np.full((3, 4), -3e4, dtype), scale=1.0)


def test_halves_are_summed_in_float32() -> None:
    for dtype in ("float16", "bfloat16"):
        query, key, value = (numbers((3000, 4), i).astype(_dtype(dtype)) for i in range(3))
        value = np.ones_like(value)
        out = qkv.attention(np.zeros_like(query[:2]), key, value)
        assert (out == 1).all(), "a sum of 3,000 equal weights in half precision would stop growing"
        # Each dot product is 5.8e6, and the largest float16 is 65504.
        big = np.full((2, 64), 300).astype(_dtype(dtype))
        small = np.array([[1.0], [3.0]]).astype(_dtype(dtype))
        assert (qkv.attention(big, big, small) == 2).all()


def _dtype(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))
