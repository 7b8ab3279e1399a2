"""Tests of merge_attention, which joins two partial results over different keys."""

import numpy as np
import pytest

import qkv
from rows import failing

from . import loops
from .support import FLOATS, numbers, qkv_arrays


def test_three_parts_in_any_order() -> None:
    query, key, value = qkv_arrays(dtype=np.float64)
    expected = loops.attention(query, key, value)
    parts = [
        qkv.attention(query, key[..., cut, :], value[..., cut, :], return_lse=True)
        for cut in (slice(0, 2), slice(2, 6), slice(6, 7))
    ]
    for a, b, c in [(0, 1, 2), (2, 0, 1), (1, 2, 0)]:
        out, lse = qkv.merge_attention(*qkv.merge_attention(*parts[a], *parts[b]), *parts[c])
        np.testing.assert_allclose(out, expected.out, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(lse, expected.lse, rtol=1e-13)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zero_and_minus_infinity_are_the_identity(dtype: np.dtype) -> None:
    out, lse = qkv.attention(*qkv_arrays(dtype=dtype), return_lse=True)
    nothing = np.zeros_like(out), np.full_like(lse, -np.inf)
    for parts in [(out, lse, *nothing), (*nothing, out, lse)]:
        merged = qkv.merge_attention(*parts)
        np.testing.assert_array_equal(merged[0], out)
        np.testing.assert_array_equal(merged[1], lse)
        assert merged[0].dtype == dtype


def test_merging_two_fully_masked_parts_gives_zeros() -> None:
    nothing = np.zeros((2, 5, 3), np.float32), np.full((2, 5), -np.inf, np.float32)
    out, lse = qkv.merge_attention(*nothing, *nothing)
    assert (out == 0).all()
    assert (lse == -np.inf).all()


def test_by_hand() -> None:
    out, lse = qkv.merge_attention(
        np.array([[2.0, 0.0]]), np.array([np.log(3.0)]), np.array([[6.0, 8.0]]), np.array([0.0])
    )
    np.testing.assert_allclose(out, [[3.0, 2.0]])  # the parts weigh 3/4 and 1/4
    np.testing.assert_allclose(lse, [np.log(4.0)])


def test_parts_with_log_sum_exps_far_apart() -> None:
    one, two = np.ones((1, 2)), np.full((1, 2), 5.0)
    for far in (1e4, 1e300):
        out, lse = qkv.merge_attention(one, np.array([far]), two, np.array([-far]))
        assert (out == 1).all()
        assert lse.tolist() == [far]


def test_a_nan_shows() -> None:
    out, lse = np.ones((3, 2)), np.zeros(3)
    spoiled = out.copy()
    spoiled[1] = np.nan
    merged, _ = qkv.merge_attention(out, lse, spoiled, lse)
    assert (np.isnan(merged).all(axis=-1) == [False, True, False]).all()
    merged, _ = qkv.merge_attention(out, lse, spoiled, lse - 1000)  # its weight underflows to 0
    assert (np.isnan(merged).all(axis=-1) == [False, True, False]).all()
    merged, total = qkv.merge_attention(out, lse, out, np.array([0.0, np.nan, 0.0]))
    assert (np.isnan(merged).all(axis=-1) == [False, True, False]).all()
    assert (np.isnan(total) == [False, True, False]).all()


def test_the_parts_are_not_written_to() -> None:
    parts = [numbers((2, 5, 3), 0), numbers((2, 5), 1), numbers((2, 5, 3), 2), numbers((2, 5), 3)]
    before = [x.copy() for x in parts]
    for x in parts:
        x.flags.writeable = False
    qkv.merge_attention(*parts)
    for x, kept in zip(parts, before, strict=True):
        np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("row", ["heads", "strided"])
def test_views(row: str) -> None:
    parts = [numbers((2, 5, 3), 0), numbers((2, 5), 1), numbers((2, 5, 3), 2), numbers((2, 5), 3)]
    expected = qkv.merge_attention(*parts)
    views = [np.asfortranarray(x) if row == "heads" else np.repeat(x, 2, 0)[::2] for x in parts]
    for got, right in zip(qkv.merge_attention(*views), expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-6)


def test_shapes_that_do_not_fit_are_refused() -> None:
    for shapes in (
        [(5, 3), (5,), (4, 3), (4,)],
        [(5, 3), (5,), (5, 2), (5,)],
        [(5, 3), (5, 1), (5, 3), (5, 1)],
    ):
        with failing(shapes), pytest.raises(ValueError, match="merge_attention"):
            qkv.merge_attention(*(numbers(shape) for shape in shapes))


def test_mixed_types_are_refused() -> None:
    with pytest.raises(TypeError, match="merge_attention"):
        qkv.merge_attention(np.ones((2, 1)), np.ones(2), np.ones((2, 1), np.float32), np.ones(2))
