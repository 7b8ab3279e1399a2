"""Tests of `apply_rotary` against loops over complex numbers."""

import cmath

import ml_dtypes
import numpy as np
import pytest

from qkv.embed import apply_rotary
from rows import failing

RNG = np.random.default_rng(20)
HALVES = [np.float16, ml_dtypes.bfloat16]


def rotated(x, positions, *, base=10000.0, interleaved=False, dims=None) -> np.ndarray:
    """Multiply each pair of x (L, d), as a complex number, by exp(i * angle)."""
    out, dims = np.array(x, dtype=np.float64), dims or np.shape(x)[-1]
    for row, position in enumerate(positions):
        for pair in range(dims // 2):
            a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + dims // 2)
            angle = float(position) / base ** (2 * pair / dims)
            turned = complex(x[row][a], x[row][b]) * cmath.exp(1j * angle)
            out[row, a], out[row, b] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [None, 2, 6, 8])
@pytest.mark.parametrize("base", [10000.0, 7])
@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4], [7, 3, -2, 100, 3], [0.5, 1.25, 0, 9.9, 2]])
def test_against_complex_numbers(interleaved, dims, base, positions) -> None:
    x = RNG.standard_normal((5, 8))
    before = x.copy()
    out = apply_rotary(x, positions, base=base, interleaved=interleaved, dims=dims)
    expected = rotated(x, positions, base=base, interleaved=interleaved, dims=dims)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(x, before)
    if dims is not None:
        np.testing.assert_array_equal(out[:, dims:], x[:, dims:])


def test_positions_broadcast() -> None:
    x = RNG.standard_normal((2, 3, 5, 4))  # (B, H, L, d)
    whole = apply_rotary(x, np.arange(5))
    for text in range(2):
        for head in range(3):
            alone = rotated(x[text, head], range(5))
            np.testing.assert_allclose(whole[text, head], alone, atol=1e-14)
    per_text = np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    out = apply_rotary(x, per_text[:, None])
    alone = rotated(x[1, 2], per_text[1])
    np.testing.assert_allclose(out[1, 2], alone, atol=1e-14)
    packed = RNG.standard_normal((5, 3, 4))  # (total, H, d)
    out = apply_rotary(packed, per_text[1][:, None])
    alone = rotated(packed[:, 1], per_text[1])
    np.testing.assert_allclose(out[:, 1], alone, atol=1e-14)


def test_float32_at_far_positions() -> None:
    # angles in float32 would be wrong by 0.004 here
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    positions = np.array([100_000, 123_457, 131_071, 99_999])
    out = apply_rotary(x, positions)
    assert out.dtype == np.float32
    expected = rotated(x, positions)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_halves_are_rounded_once(dtype, interleaved: bool) -> None:
    x = RNG.standard_normal((50, 16)).astype(dtype)
    out = apply_rotary(x, np.arange(50), interleaved=interleaved)
    assert out.dtype == dtype
    expected = rotated(x.astype(np.float64), range(50), interleaved=interleaved)
    # half a unit in the last place, plus the error of float32
    step = np.abs(expected) * float(ml_dtypes.finfo(dtype).eps) / 2 + 1e-6
    assert (np.abs(out.astype(np.float64) - expected) <= step).all()


def test_strides_and_byte_order() -> None:
    x = RNG.standard_normal((5, 3, 8)).transpose(1, 0, 2)[..., ::-1]
    expected = apply_rotary(np.ascontiguousarray(x), np.arange(5))
    np.testing.assert_array_equal(apply_rotary(x, np.arange(5)), expected)
    swapped = apply_rotary(x.astype(">f8"), np.arange(5))
    assert swapped.dtype == np.float64
    assert swapped.dtype.isnative
    np.testing.assert_array_equal(swapped, expected)


def test_no_rows() -> None:
    assert apply_rotary(np.zeros((2, 0, 4)), []).shape == (2, 0, 4)
    assert apply_rotary(np.zeros((0, 3, 4)), np.arange(3)).shape == (0, 3, 4)


def test_infinite_and_nan_values_affect_only_their_pair() -> None:
    x = np.array([[np.nan, 1.0, 2.0, 3.0], [1.0, np.inf, 2.0, 3.0]])
    out = apply_rotary(x, [0, 1])
    assert np.isnan(out[0, [0, 2]]).all()
    assert out[0, [1, 3]].tolist() == [1.0, 3.0]
    assert np.isinf(out[1, [1, 3]]).all()
    assert np.isfinite(out[1, [0, 2]]).all()


def test_float16_overflow_gives_infinity() -> None:
    x = np.array([[60000.0, 60000.0]], dtype=np.float16)
    assert apply_rotary(x, [-np.pi / 4]).tolist()[0][0] == np.inf


def test_refused() -> None:
    for x, positions, options, error, match in (
        (np.zeros((2, 3)), [0, 1], {}, ValueError, "size 3, whose entries cannot be paired"),
        (np.zeros((2, 0)), [0, 1], {}, ValueError, "rows of size 0"),
        (np.zeros((2, 4)), [0, 1], {"dims": 3}, ValueError, "dims is 3 and x has rows of size 4"),
        (np.zeros((2, 4)), [0, 1], {"dims": 6}, ValueError, "dims is 6 and x has rows of size 4"),
        (np.zeros((2, 4)), [0, 1], {"dims": 0}, ValueError, "dims is 0: it must be 2 or more"),
        (np.zeros((2, 4)), [0, 1], {"dims": 2.0}, TypeError, "dims is 2.0"),
        (np.zeros((2, 4)), [0, 1, 2], {}, ValueError, r"shape \(3,\) and x has \(2,\)"),
        (np.zeros((2, 4)), [0, np.nan], {}, ValueError, "not all finite"),
        (np.zeros((2, 4)), [True, False], {}, TypeError, "positions are bool"),
        (np.zeros((2, 4)), [0, 1], {"base": 0}, ValueError, "base is 0.0"),
        (np.zeros((2, 4)), [0, 1], {"base": None}, TypeError, "base is None"),
        (np.zeros((2, 4), dtype=int), [0, 1], {}, TypeError, "x is int64; pass float16"),
        (np.zeros((2, 4), dtype=complex), [0, 1], {}, TypeError, "x is complex128"),
        (1.0, 0, {}, ValueError, "x is a single number"),
    ):
        with failing(x), pytest.raises(error, match=f"^apply_rotary: .*{match}"):
            apply_rotary(x, positions, **options)
