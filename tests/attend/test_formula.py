"""Tests of the formula: results by hand, shapes, scales, and calls that span several blocks."""

import math

import numpy as np
import pytest

import qkv

from . import loops
from .support import (
    ON_ONE_BACKEND,
    agree,
    assert_lse,
    assert_out,
    assert_weights,
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


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3)])
def test_leading_dimensions(lead: tuple[int, ...]) -> None:
    agree(*qkv_arrays(lead))


def test_two_dimensions_are_one_head() -> None:
    query, key, value = (x[0, 0] for x in qkv_arrays((1,), 1))
    expected = agree(query, key, value)
    assert expected.out.shape == (5, 3)
    assert expected.weights.shape == (5, 7)
    assert expected.lse.shape == (5,)


@pytest.mark.parametrize("dv", [1, 4, 9, 0])
def test_the_value_size_may_differ(dv: int) -> None:
    agree(*qkv_arrays(d=4, dv=dv))


@pytest.mark.parametrize("scale", [1.0, 0.3, -0.7, 3])
def test_scale(scale: float) -> None:
    agree(*qkv_arrays(), scale=scale)


def test_a_scale_of_zero_gives_the_mean() -> None:
    query, key, value = qkv_arrays()
    out = qkv.attention(query, key, value, scale=0.0)
    np.testing.assert_allclose(
        out, np.broadcast_to(value.mean(axis=-2, keepdims=True), out.shape), atol=2e-6
    )


def test_a_numpy_scale_does_not_change_the_type() -> None:
    query, key, value = qkv_arrays()
    agree(query, key, value, scale=np.float64(0.5), softcap=np.float64(3.0))


def test_results_are_returned_in_a_fixed_order() -> None:
    query, key, value = qkv_arrays()
    out = qkv.attention(query, key, value)
    assert isinstance(out, np.ndarray)
    assert out.shape == (2, 2, 5, 3)
    pair = qkv.attention(query, key, value, return_weights=True)
    assert [x.shape for x in pair] == [(2, 2, 5, 3), (2, 2, 5, 7)]
    pair = qkv.attention(query, key, value, return_lse=True)
    assert [x.shape for x in pair] == [(2, 2, 5, 3), (2, 2, 5)]
    triple = qkv.attention(query, key, value, return_lse=True, return_weights=True)
    assert [x.shape for x in triple] == [(2, 2, 5, 3), (2, 2, 5, 7), (2, 2, 5)]


def test_weights_are_exp_of_score_minus_lse_and_sum_to_one() -> None:
    query, key, value = qkv_arrays(dtype=np.float64)
    _, weights, lse = qkv.attention(query, key, value, return_weights=True, return_lse=True)
    scores = np.einsum("bhld,bhsd->bhls", query, key) / 2
    np.testing.assert_allclose(weights, np.exp(scores - lse[..., None]), atol=1e-14)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-14)


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


def test_scores_of_ten_thousand_in_every_block() -> None:
    # For the first query, the scores rise, so each block scales the earlier sums down to almost 0.
    key = np.linspace(-1, 1, 1500, dtype=np.float32)[:, None]
    query = np.array([[1e4], [-1e4]], np.float32)
    agree(query, key, numbers((1500, 2)), scale=1.0)


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


EVERYTHING = {
    "plain": {},
    "causal": {"is_causal": True},
    "causal with offset end": {"is_causal": True, "q_offset": "end"},
    "causal with negative offset": {"is_causal": True, "q_offset": -300},
    "window": {"window": (40, 3), "q_offset": 100},
    "wide window": {"window": (700, None), "q_offset": "end"},
    "lengths": {"query_lengths": 600, "key_lengths": 513},
    "alibi": {"alibi_slopes": np.array([0.01, 0.5]), "q_offset": 77},
    "softcap and sinks": {"softcap": 2.0, "sinks": np.array([3.0, -1.0])},
    "bool mask": {"attn_mask": np.arange(1400) % 3 != 1},
    "float mask": {"attn_mask": np.where(np.arange(1400) < 1000, -np.inf, 0.25)},
    "bias": {"bias": np.linspace(-4, 9, 1400, dtype=np.float32)},
    "together": {
        "is_causal": True,
        "q_offset": 500,
        "window": (350, None),
        "key_lengths": 1250,
        "softcap": 20.0,
        "sinks": np.array([[0.5, 1.0], [-4.0, 0.0]]),
        "alibi_slopes": np.array([0.02, 0.001]),
        "attn_mask": np.arange(1400) % 7 != 0,
    },
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_sizes_that_are_cut_into_blocks(name: str) -> None:
    _agree_in_some_rows(name, np.float32)


@pytest.mark.attack
@ON_ONE_BACKEND
@pytest.mark.parametrize("name", EVERYTHING)
def test_sizes_that_are_cut_into_blocks_in_float64(name: str) -> None:
    _agree_in_some_rows(name, np.float64)


def _agree_in_some_rows(name: str, dtype: type) -> None:
    # The 1,100 x 1,400 scores in float32 take several MB, which is more than any block, and the
    # last block is not full. The loops compute only some rows. Padding holds NaN.
    options = dict(EVERYTHING[name])
    key_lengths = options.get("key_lengths", 1400)
    L, S = (1400, 1400) if name == "causal" else (1100, 1400)
    query, key, value = qkv_arrays((), 2, L=L, S=S, d=3, dv=2, dtype=dtype)
    key[:, key_lengths:] = value[:, key_lengths:] = np.nan
    query[:, options.get("query_lengths", L) :] = np.nan
    mask = options.pop("attn_mask", None)

    rows = [0, 1, 63, 64, 127, 128, 255, 256, 299, 300, 511, 512, 599, 600, 801, 1023, 1024, L - 1]
    expected = loops.attention(query, key, value, mask, **options, rows=rows)
    out, lse = qkv.attention(query, key, value, mask, **options, return_lse=True)
    assert_out(out[:, rows], expected, np.dtype(dtype))
    assert_lse(lse[:, rows], expected, np.dtype(dtype))
    out, weights = qkv.attention(query, key, value, mask, **options, return_weights=True)
    assert_out(out[:, rows], expected, np.dtype(dtype))
    assert_weights(weights[:, rows], expected, np.dtype(dtype))


def test_many_heads_and_texts_each_get_their_own_result() -> None:
    query, key, value = qkv_arrays((3, 5), 4, 2, L=9, S=11, d=2, dv=2)
    agree(query, key, value, is_causal=True, q_offset="end")
