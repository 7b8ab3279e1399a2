"""Test boolean masks, and the float masks and biases that qkv adds to the scores."""

import warnings

import ml_dtypes
import numpy as np
import pytest

import qkv

from .support import FLOATS, agree, numbers, qkv_arrays

SHAPES = [
    (2, 2, 5, 7),
    (2, 1, 5, 7),
    (1, 2, 5, 7),
    (2, 5, 7),
    (5, 7),
    (1, 7),
    (7,),
    (5, 1),
    (1,),
    (),
]
SHAPES += [(2, 1, 1, 7), (2, 2, 5, 1)]


def test_true_means_may_attend() -> None:
    value = np.array([[1.0], [10.0], [100.0]])
    x = np.zeros((3, 2))
    out = qkv.attention(x[:1], x, value, np.array([[True, False, True]]))
    assert out.tolist() == [[50.5]]


@pytest.mark.parametrize("place", ["attn_mask", "bias"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_minus_infinity_masks_in_every_float_type(dtype: np.dtype, place: str) -> None:
    added = numbers((5, 7), 4)
    added[added < -0.3] = -np.inf
    added[2] = -np.inf
    for inputs in FLOATS:
        expected = agree(*qkv_arrays(dtype=inputs), **{place: added.astype(dtype)})
        assert not expected.visible[:, :, 2].any()


@pytest.mark.parametrize("place", ["attn_mask", "bias"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_finite_float64_numbers_beyond_float32_mask_no_key(dtype: type, place: str) -> None:
    # -1e300 is finite in float64, and would become -infinity in float32.
    query, key, value = (x.astype(dtype) for x in qkv_arrays((), 1))
    far = np.zeros(7)
    far[3], far[5] = -1e300, -np.inf
    agree(query, key, value, **{place: far})
    for spoiled in (key, value):
        kept = spoiled[:, 5].copy()
        spoiled[:, 5] = np.nan
        agree(query, key, value, **{place: far})
        spoiled[:, 5] = kept
    value[:, 3] = np.nan  # weight 0, but visible
    assert np.isnan(qkv.attention(query, key, value, **{place: far})).all()


def test_a_row_of_huge_negative_finite_numbers_is_not_fully_masked() -> None:
    query, key, value = qkv_arrays((), 1)
    value[:] = 1
    for options in ({"attn_mask": np.full((5, 7), -1e300)}, {"bias": np.full((5, 7), -1e300)}):
        # Any mean of ones is 1; a query that sees no key would have the output 0.
        np.testing.assert_allclose(qkv.attention(query, key, value, **options), 1, rtol=2e-6)


@pytest.mark.parametrize("place", ["attn_mask", "bias"])
def test_plus_infinity_masks_no_key(place: str) -> None:
    query, key, value = qkv_arrays((), 1)
    added = np.full((5, 7), 0.5)
    added[2, 3] = np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        out = qkv.attention(query, key, value, **{place: added})
    # The key with +infinity has all the weight, or the row is NaN; other rows do not change.
    assert np.isnan(out[0, 2]).all() or np.allclose(out[0, 2], value[0, 3])
    added[2, 3] = -np.inf
    others = np.arange(5) != 2
    expected = qkv.attention(query, key, value, **{place: added})
    np.testing.assert_allclose(out[:, others], expected[:, others], atol=4e-6)


def test_the_lowest_float32_masks_no_key() -> None:
    query, key, value = qkv_arrays((), 1)
    mask = np.full((5, 7), np.finfo(np.float32).min)
    mask[:3, 2:] = 0.5
    expected = agree(query, key, value, mask)
    assert expected.visible.all()
    out = qkv.attention(query, key, value, mask)
    mean = value.mean(axis=-2)
    np.testing.assert_allclose(out[0, 3:], np.broadcast_to(mean, (2, 3)), atol=2e-6)


def test_minus_infinity_masks_whatever_the_mask_or_bias_adds() -> None:
    query, key, value = qkv_arrays((), 1)
    for first, second in [("attn_mask", "bias"), ("bias", "attn_mask")]:
        for other in (np.inf, np.nan, 1e38, -np.inf):
            options = {first: np.zeros(7) + 0.5, second: np.zeros(7) + 0.5}
            options[first][3] = -np.inf
            options[second][3] = other
            assert np.isfinite(agree(query, key, value, **options).out).all()


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8])
def test_an_integer_mask_is_refused(dtype: type) -> None:
    with pytest.raises(TypeError, match=r"(?s)(?=.*attention)(?=.*bool)(?=.*float)") as caught:
        qkv.attention(*qkv_arrays(), np.ones((5, 7), dtype))
    assert np.dtype(dtype).name in str(caught.value)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_float_mask_of_zeros_and_ones_draws_a_warning(dtype: np.dtype) -> None:
    mask = (np.random.default_rng(2).random((5, 7)) < 0.5).astype(dtype)
    with pytest.warns(UserWarning, match="bool"):
        out = qkv.attention(*qkv_arrays(), mask)
    # The call raises no error: it warns and adds the mask to the scores, as the contract says.
    expected = qkv.attention(*qkv_arrays(), bias=mask)
    np.testing.assert_allclose(out, expected, atol=4e-6)


@pytest.mark.parametrize(
    "numbers_of_mask",
    [(0.0, -np.inf), (0.0, 1.0, 2.0), (0.0, 1.0, -np.inf), (0.5, 1.0), (0.0, -1.0), (0.0, np.nan)],
)
def test_other_float_masks_draw_no_warning(numbers_of_mask: tuple[float, ...]) -> None:
    mask = np.resize(np.array(numbers_of_mask), (5, 7))
    qkv.attention(*qkv_arrays(), mask)  # pytest turns a warning into an error


def test_a_bias_of_zeros_and_ones_draws_no_warning() -> None:
    agree(*qkv_arrays(), bias=np.eye(5, 7))


def test_an_empty_float_mask_draws_no_warning() -> None:
    query, key, value = qkv_arrays(S=0)
    agree(query, key, value, np.zeros((5, 0)))


@pytest.mark.parametrize("is_causal", ["no", np.array([True, False]), 1.0, None])
def test_is_causal_is_true_or_false(is_causal: object) -> None:
    query, key, value = qkv_arrays()
    with pytest.raises(TypeError, match=r"^attention: is_causal is .*; pass True or False"):
        qkv.attention(query, key, value, is_causal=is_causal)
