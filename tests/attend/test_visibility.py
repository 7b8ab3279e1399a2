"""Tests of causal masks, windows and ALiBi, which depend on the positions of queries and keys."""

from itertools import product

import numpy as np
import pytest

import qkv
from rows import failing

from .support import agree, qkv_arrays

USERS = {
    "causal": {"is_causal": True},
    "window": {"window": (2, 1)},
    "alibi": {"alibi_slopes": [0.5, 0.1]},
}
OFFSETS = ["start", "end", 0, 3, 100, -2, -100, np.int32(2)]


SIZES = [(5, 7), (7, 5), (6, 6), (1, 8), (8, 1)]


def test_offsets() -> None:
    for (L, S), offset, user in product(SIZES, OFFSETS, USERS):
        with failing(L, S, offset, user):
            agree(*qkv_arrays(L=L, S=S), q_offset=offset, **USERS[user])


@pytest.mark.parametrize("user", USERS)
def test_offsets_per_row(user: str) -> None:
    arrays = qkv_arrays((4,))
    agree(*arrays, q_offset=np.array([0, 2, -3, 9]), **USERS[user])
    agree(*arrays, q_offset=np.array([2]), **USERS[user])
    agree(*arrays, q_offset=[1, 1, 0, 2], **USERS[user])
    agree(*arrays, q_offset=np.array(3, np.int8), **USERS[user])


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("lead", [(), (2,)])
def test_different_query_and_key_lengths_need_an_offset(user: str, lead: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"attention.*") as caught:
        qkv.attention(*qkv_arrays(lead, L=5, S=79), **USERS[user])
    message = str(caught.value)
    for word in ("5", "79", "start", "end", "q_offset"):
        assert word in message


def test_an_offset_that_no_rule_uses_changes_nothing() -> None:
    arrays = qkv_arrays((2,))
    plain = qkv.attention(*arrays)
    for offset in ("start", "end", 3, -3, [4, 5]):
        assert (qkv.attention(*arrays, q_offset=offset) == plain).all()


@pytest.mark.parametrize("user", [{}, *USERS.values()])
@pytest.mark.parametrize(
    ("offset", "kind"),
    [
        ("middle", ValueError),
        ([1, 2, 3], ValueError),
        ([[1], [2]], ValueError),
        (1.5, TypeError),
        ([1.0, 2.0], TypeError),
    ],
)
def test_a_wrong_offset_is_refused_even_if_unused(offset: object, kind: type, user: dict) -> None:
    with pytest.raises(kind, match="q_offset"):
        qkv.attention(*qkv_arrays((2,)), q_offset=offset, **user)


@pytest.mark.parametrize("left", [0, 1, 2, 10, None])
@pytest.mark.parametrize("right", [0, 1, 2, 10, None])
def test_window_edges_are_inclusive(left: int | None, right: int | None) -> None:
    query = key = np.zeros((9, 1))
    _, weights = qkv.attention(
        query, key, np.zeros((9, 1)), window=(left, right), q_offset=1, return_weights=True
    )
    for i in range(9):
        first = 0 if left is None else max(0, i + 1 - left)
        last = 8 if right is None else min(8, i + 1 + right)
        seen = [first <= j <= last for j in range(9)]
        assert (weights[i] > 0).tolist() == seen, (i, left, right)


def test_a_wrong_window_is_refused() -> None:
    for window, kind in (
        ((-1, 0), ValueError),
        ((0, -1), ValueError),
        ((1, 2, 3), (TypeError, ValueError)),
        (3, (TypeError, ValueError)),
        ((1.5, 0), (TypeError, ValueError)),
        ("ab", (TypeError, ValueError)),
    ):
        with failing(window, kind), pytest.raises(kind, match="window"):
            qkv.attention(*qkv_arrays(L=5, S=5), window=window)


def test_alibi_by_hand() -> None:
    query, key = np.zeros((2, 1, 1)), np.zeros((2, 4, 1))
    _, weights = qkv.attention(
        query, key, key, alibi_slopes=[1.0, -0.5], q_offset=2, return_weights=True
    )
    for head, slope in enumerate([1.0, -0.5]):
        row = np.exp([-slope * 2, -slope, 0, -slope])  # |i + q_offset - j|, on both sides
        np.testing.assert_allclose(weights[head, 0], row / row.sum(), rtol=1e-14)


@pytest.mark.parametrize("offset", [10**6, -(10**6), 2**45, -(2**45)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_very_large_positive_and_negative_offsets(dtype: type, offset: int) -> None:
    arrays = qkv_arrays((), dtype=dtype)
    agree(*arrays, alibi_slopes=[0.5, 0.1], q_offset=offset)
    agree(*arrays, is_causal=True, q_offset=offset)
    agree(*arrays, window=(abs(offset), 0), q_offset=offset)
    agree(*arrays, window=(0, abs(offset)), q_offset=offset)


@pytest.mark.parametrize("slopes", [[0.5], [0.1, 0.2, 0.3], 0.5, [[0.1, 0.2]]])
def test_slopes_of_a_wrong_shape_are_refused(slopes: object) -> None:
    with pytest.raises(ValueError, match="alibi_slopes"):
        qkv.attention(*qkv_arrays(), alibi_slopes=slopes, q_offset=0)


def test_decoding_from_a_buffer_padded_with_nan() -> None:
    query, key, value = qkv_arrays((2,), L=7, S=7)
    full = agree(query, key, value, is_causal=True)
    keys, values = (np.full_like(np.repeat(x, 3, axis=-2), np.nan) for x in (key, value))
    for i in range(7):
        keys[..., i, :], values[..., i, :] = key[..., i, :], value[..., i, :]
        options = {"is_causal": True, "q_offset": i}
        for more in ({}, {"key_lengths": i + 1}):
            piece = qkv.attention(query[..., i : i + 1, :], keys, values, **options, **more)
            np.testing.assert_allclose(piece, full.out[..., i : i + 1, :], atol=4e-6)


def test_offset_end_refers_to_the_array_and_not_the_lengths() -> None:
    query, key, value = qkv_arrays((2,), L=2, S=7)
    expected = agree(
        query, key, value, is_causal=True, q_offset="end", key_lengths=[7, 6], query_lengths=[1, 2]
    )
    same = qkv.attention(
        query, key, value, is_causal=True, q_offset=5, key_lengths=[7, 6], query_lengths=[1, 2]
    )
    np.testing.assert_allclose(same, expected.out, atol=4e-6)
