"""Tests of lengths: rows after the length are padding, which is never read."""

import numpy as np
import pytest

import qkv
from rows import failing

from .support import FLOATS, agree, qkv_arrays

GARBAGE = [np.nan, np.inf, -np.inf, 60000.0]


def test_lengths_broadcast_to_the_leading_dimensions() -> None:
    arrays = qkv_arrays((2, 3))
    agree(*arrays, key_lengths=[1, 2, 3], query_lengths=[[2], [5]])
    agree(*arrays, key_lengths=[[1, 2, 3], [4, 5, 6]], query_lengths=[4])
    query, key, value = arrays
    agree(query[:, :1], key[:1], value, key_lengths=[[1, 2, 3], [4, 5, 6]])


def test_lengths_for_inputs_without_heads_or_batch() -> None:
    query, key, value = qkv_arrays((), 1)
    agree(query[0], key[0], value[0], key_lengths=4, query_lengths=3)
    agree(query, key, value, key_lengths=np.int64(4), query_lengths=3)


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_garbage_in_the_padding_is_ignored(dtype: np.dtype, garbage: float) -> None:
    query, key, value = qkv_arrays((3,), dtype=dtype)
    key_lengths, query_lengths = [7, 2, 0], [5, 0, 3]
    for row in range(3):
        key[row, :, key_lengths[row] :] = value[row, :, key_lengths[row] :] = garbage
        query[row, :, query_lengths[row] :] = garbage
    lengths = {"key_lengths": key_lengths, "query_lengths": query_lengths}
    for options in (
        {},
        {"softcap": 3.0},
        {"sinks": [0.5, 1.0]},
        {"is_causal": True, "q_offset": 1},
    ):
        expected = agree(query, key, value, **lengths, **options)
        assert np.isfinite(expected.out).all()


@pytest.mark.parametrize("place", ["attn_mask", "bias"])
def test_garbage_in_the_padding_of_a_mask_is_ignored(place: str) -> None:
    query, key, value = qkv_arrays((2,))
    added = np.full((2, 1, 5, 7), 0.5, np.float32)
    added[0, :, :, 4:] = np.nan
    added[1, :, 3:, :] = np.inf
    expected = agree(query, key, value, key_lengths=[4, 7], query_lengths=[5, 3], **{place: added})
    assert np.isfinite(expected.out).all()


def test_wrong_lengths_are_refused() -> None:
    for name, lengths, kind in (
        ("key_lengths", 8, ValueError),
        ("key_lengths", [3, 9], ValueError),
        ("query_lengths", 6, ValueError),
        ("key_lengths", [1, 2, 3], ValueError),
        ("key_lengths", [[1, 2], [3, 4]], ValueError),
        ("key_lengths", 2.0, TypeError),
    ):
        with failing(name, lengths, kind), pytest.raises(kind, match=rf"attention.*{name}"):
            qkv.attention(*qkv_arrays(), **{name: lengths})


def test_the_error_names_both_lengths() -> None:
    with pytest.raises(ValueError, match=r"(?=.*\b12\b)(?=.*\b7\b)"):
        qkv.attention(*qkv_arrays(), key_lengths=[3, 12])


@pytest.mark.parametrize("name", ["query_lengths", "key_lengths", "q_offset"])
def test_two_dimensional_inputs_take_int_lengths_and_offsets(name: str) -> None:
    query, key, value = (x[0] for x in qkv_arrays((), 1))
    qkv.attention(query, key, value, **{name: 2})
    with pytest.raises((TypeError, ValueError), match=name):
        qkv.attention(query, key, value, **{name: np.array([2])})
