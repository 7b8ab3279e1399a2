"""Tests of KVCache: decoding in pieces gives the results of one causal call."""

from itertools import product

import numpy as np
import pytest

import qkv
from qkv.attend.cache import keep_rows, shorten
from rows import failing

from . import loops
from .support import FLOATS, qkv_arrays, tolerances


def decode(cache: qkv.KVCache, arrays: tuple, pieces: list[int], **options: object) -> np.ndarray:
    """Compute attention piece by piece, and join the outputs."""
    query, key, value = arrays
    outs, start = [], 0
    for size in pieces:
        new = slice(start, start + size)
        arguments = cache.append(key[..., new, :], value[..., new, :])
        outs.append(qkv.attention(query[..., new, :], is_causal=True, **arguments, **options))
        start += size
    assert start == key.shape[-2]
    return np.concatenate(outs, axis=-2)


PIECES = [[1] * 9, [9], [4, 1, 1, 3], [1, 0, 5, 3], [2, 7]]


WINDOWS = [None, (3, 0), (0, 0), (2, None), (None, 1), (20, 20), (None, None)]


def test_pieces_equal_one_causal_call() -> None:
    for dtype, window in product(FLOATS, WINDOWS):
        arrays = qkv_arrays((2,), 4, 2, L=9, S=9, dtype=dtype)
        expected = loops.attention(*arrays, is_causal=True, window=window)
        for pieces in PIECES:
            with failing(dtype, window, pieces):
                out = decode(qkv.KVCache(window=window), arrays, pieces)
                assert out.dtype == dtype
                error = np.abs(out.astype(float) - expected.out).max()
                assert error <= tolerances(expected, dtype)[0]


@pytest.mark.parametrize("lead", [(), (1,), (2, 3)])
def test_leading_dimensions(lead: tuple[int, ...]) -> None:
    arrays = qkv_arrays(lead, L=9, S=9)
    expected = loops.attention(*arrays, is_causal=True)
    np.testing.assert_allclose(decode(qkv.KVCache(), arrays, [4, 1, 4]), expected.out, atol=1e-5)


def test_two_dimensions() -> None:
    arrays = tuple(x[0] for x in qkv_arrays((), 1, L=9, S=9))
    expected = loops.attention(*arrays, is_causal=True, window=(2, 0))
    out = decode(qkv.KVCache(window=(2, 0)), arrays, [4, 1, 1, 3])
    np.testing.assert_allclose(out, expected.out, atol=1e-5)


@pytest.mark.parametrize("window", [None, (3, 0)])
def test_with_alibi_sinks_and_a_soft_cap(window: tuple | None) -> None:
    options = {"alibi_slopes": np.array([0.5, 0.25]), "sinks": [0.5, 1.0], "softcap": 3.0}
    arrays = qkv_arrays(L=9, S=9)
    expected = loops.attention(*arrays, is_causal=True, window=window, **options)
    for pieces in PIECES:
        out = decode(qkv.KVCache(window=window), arrays, pieces, **options)
        np.testing.assert_allclose(out, expected.out, atol=1e-5)


@pytest.mark.parametrize("window", [None, (3, 0)])
def test_ragged_rows(window: tuple | None) -> None:
    # For each step, `steps` lists how many tokens are appended to row 0, to row 1 and to row 2. NaN
    # pads the shorter rows of a step to the length of its longest row.
    steps = [[4, 1, 0], [1, 1, 2], [0, 3, 1], [2, 2, 2], [1, 0, 3]]
    totals = np.sum(steps, axis=0)
    query, key, value = qkv_arrays((3,), L=max(totals), S=max(totals))
    cache = qkv.KVCache(window=window)
    done = np.zeros(3, int)
    for step in steps:
        size = max(step)
        new = [np.full((3, 2, size, x.shape[-1]), np.nan, np.float32) for x in (query, key, value)]
        for row, count in enumerate(step):
            for piece, x in zip(new, (query, key, value), strict=True):
                piece[row, :, :count] = x[row, :, done[row] : done[row] + count]
        arguments = cache.append(new[1], new[2], lengths=step)
        out = qkv.attention(new[0], is_causal=True, **arguments)
        for row, count in enumerate(step):
            here = done[row] + count
            expected = loops.attention(
                *(x[row, :, :here] for x in (query, key, value)), is_causal=True, window=window
            )
            np.testing.assert_allclose(
                out[row, :, :count], expected.out[:, done[row] : here], atol=1e-5
            )
            assert (out[row, :, count:] == 0).all()
        done += step
    np.testing.assert_array_equal(cache.lengths, totals)


def test_ragged_rows_stay_correct_after_a_window_drops_keys() -> None:
    query, key, value = qkv_arrays((2,), 1, L=900, S=900, d=2, dv=2)
    cache = qkv.KVCache(window=(5, 0))
    done = np.zeros(2, int)
    for step in [[40, 3], [1, 1], [0, 30], [17, 2]] * 15:
        rows = [slice(start, start + max(step)) for start in done]
        new = [np.stack([x[row, :, rows[row]] for row in range(2)]) for x in (query, key, value)]
        arguments = cache.append(new[1], new[2], lengths=step)
        out = qkv.attention(new[0], is_causal=True, **arguments)
        for row, count in enumerate(step):
            first, end = max(0, done[row] - 5), done[row] + count
            expected = loops.attention(
                query[row, :, done[row] : end],
                key[row, :, first:end],
                value[row, :, first:end],
                is_causal=True,
                window=(5, 0),
                q_offset=done[row] - first,
            )
            np.testing.assert_allclose(out[row, :, :count], expected.out, atol=1e-5)
        done += step
    np.testing.assert_array_equal(cache.lengths, done)


def most_kept(cache: qkv.KVCache, tokens: int, rows: int) -> float:
    """Append tokens one by one, and return the cache's largest capacity in keys per row.

    The capacity is the number of bytes in the cache's array of keys, divided by the number of bytes
    in `key`. The array `key` holds one key for each row.
    """
    key = np.ones((rows, 4, 1, 32), np.float32)
    most = 0
    for i in range(tokens):
        uneven = None if i % 7 else [1] * (rows - 1) + [i % 2]
        memory = cache.append(key, key, lengths=uneven)["key"]
        while memory.base is not None:
            memory = memory.base
        most = max(most, memory.nbytes)
    return most / key.nbytes


@pytest.mark.parametrize("rows", [1, 3])
def test_memory_over_a_long_text(rows: int) -> None:
    # The window needs 128 keys. The cache allocates memory for 256 keys, twice the number that the
    # window needs, so that the cache does not move keys at each step. The cache always rounds this
    # memory up to a multiple of 256 keys.
    assert most_kept(qkv.KVCache(window=(127, 0)), 900, rows) == 256
    assert 900 * 13 // 14 <= most_kept(qkv.KVCache(), 900, rows) <= 2 * 900


def test_append_copies_its_arrays() -> None:
    query, key, value = qkv_arrays(L=4, S=4)
    expected = loops.attention(query, key, value, is_causal=True)
    cache = qkv.KVCache()
    first, second = key[..., :3, :].copy(), value[..., :3, :].copy()
    cache.append(first, second)
    first[:] = second[:] = np.nan
    out = qkv.attention(
        query[..., 3:, :], is_causal=True, **cache.append(key[..., 3:, :], value[..., 3:, :])
    )
    np.testing.assert_allclose(out, expected.out[..., 3:, :], atol=1e-5)


def test_append_refuses_mismatched_arrays_and_changes_nothing() -> None:
    query, key, value = qkv_arrays(L=4, S=4)
    cache = qkv.KVCache()
    cache.append(key[..., :3, :], value[..., :3, :])
    wrong = [
        (key[..., 3:, :3], value[..., 3:, :], ValueError),
        (key[..., 3:, :], value[..., 3:, :2], ValueError),
        (key[..., 3:, :], value[..., 2:, :], ValueError),
        (key[:, :1, 3:], value[:, :1, 3:], ValueError),
        (key[:1, :, 3:], value[:1, :, 3:], ValueError),
        (key[..., 3:, :].astype(float), value[..., 3:, :].astype(float), (TypeError, ValueError)),
        (key[..., 3:, :], value[..., 3:, :].astype(float), TypeError),
    ]
    for new_key, new_value, kind in wrong:
        with pytest.raises(kind, match="KVCache"):
            cache.append(new_key, new_value)
    for lengths in ([2, 1], [-1, 1], [1, 1, 1]):
        with pytest.raises(ValueError, match="KVCache"):
            cache.append(key[..., 3:, :], value[..., 3:, :], lengths=lengths)
    out = qkv.attention(
        query[..., 3:, :], is_causal=True, **cache.append(key[..., 3:, :], value[..., 3:, :])
    )
    expected = loops.attention(query, key, value, is_causal=True)
    np.testing.assert_allclose(out, expected.out[..., 3:, :], atol=1e-5)


def test_a_wrong_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        qkv.KVCache(window=(-1, 0))


@pytest.mark.parametrize("window", [None, (3, 0), (20, 0)])
def test_a_shortened_cache_continues_as_a_new_one(window: tuple | None) -> None:
    arrays = qkv_arrays((1,), 4, 2, L=12, S=12, dtype=np.dtype(np.float64))
    query, key, value = (array[..., 6:, :] for array in arrays)
    expected = loops.attention(*arrays, is_causal=True, window=window).out[..., 6:, :]
    cache = qkv.KVCache(window=window)
    cache.append(arrays[1], arrays[2])
    assert not shorten(cache, 11, 6)  # another text used the cache
    assert not shorten(cache, 12, 13)
    assert shorten(cache, 12, 6)
    assert cache.lengths.tolist() == [6]
    out = decode(cache, (query, key, value), [2, 1, 3])
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12)


def test_a_cache_without_the_needed_keys_is_not_shortened() -> None:
    rng = np.random.default_rng(0)
    cache = qkv.KVCache(window=(3, 0))
    for _ in range(600):
        cache.append(*rng.standard_normal((2, 1, 1, 1, 4)))
    _, stored = cache.append(*rng.standard_normal((2, 1, 1, 0, 4)))["key"].shape[-3:-1]
    assert not shorten(cache, 600, 600 - stored + 2)
    assert shorten(cache, 600, 600 - stored + 3)
    rows = qkv.KVCache()
    rows.append(*rng.standard_normal((2, 2, 1, 4, 4)), lengths=[4, 2])
    assert not shorten(rows, 4, 2)


@pytest.mark.parametrize("window", [None, (3, 0)])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_keys_and_values_are_rounded_to_the_dtype_of_the_cache(
    dtype: np.dtype, window: tuple | None
) -> None:
    query, key, value = (x.astype(np.float32) for x in qkv_arrays((2,), 4, 2, L=9, S=9))
    rounded = [x.astype(dtype) for x in (query, key, value)]
    expected = loops.attention(*rounded, is_causal=True, window=window)
    out = decode(qkv.KVCache(window, dtype=dtype.name), (rounded[0], key, value), [4, 1, 1, 3])
    assert out.dtype == dtype
    error = np.abs(out.astype(float) - expected.out).max()
    assert error <= tolerances(expected, dtype)[0]


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_a_cache_of_16_bits_takes_half_the_memory(dtype: np.dtype) -> None:
    rows = np.ones((3, 2, 40, 8), np.float32)
    cut = {"lengths": [40, 7, 0]}
    wide, half = (
        cache.append(rows, rows, **cut) for cache in (qkv.KVCache(), qkv.KVCache(dtype=dtype))
    )
    for name in ("key", "value"):
        assert half[name].base.nbytes * 2 == wide[name].base.nbytes
        assert (half[name][0] == 1).all()


def test_a_number_that_float16_cannot_hold_becomes_infinite_without_a_warning() -> None:
    rows = np.float32([[70_000.0, -70_000.0]])
    assert qkv.KVCache(dtype="float16").append(rows, rows)["key"].tolist() == [[np.inf, -np.inf]]


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(TypeError, match="KVCache: dtype is int8: choose float16, bfloat16"):
        qkv.KVCache(dtype=np.int8)


@pytest.mark.parametrize("window", [None, (3, 0)])
@pytest.mark.parametrize("lengths", [None, [4, 2, 3]])
def test_rows_that_are_kept_continue(lengths: list[int] | None, window: tuple | None) -> None:
    query, key, value = qkv_arrays((3,), 4, 2, L=5, S=5)
    cache = qkv.KVCache(window)
    cache.append(key[:, :, :4], value[:, :, :4], lengths=lengths)
    keep_rows(cache, np.array([2, 1]))
    given = cache.append(key[[2, 1], :, 4:], value[[2, 1], :, 4:])
    out = qkv.attention(query[[2, 1], :, 4:], is_causal=True, **given)
    for row, number in enumerate((2, 1)):
        count = 4 if lengths is None else lengths[number]
        keys = [*range(count), 4]  # without padding
        expected = loops.attention(
            query[number, :, 4:], key[number][:, keys], value[number][:, keys],
            is_causal=True, q_offset="end", window=window,
        )  # fmt: skip
        np.testing.assert_allclose(out[row], expected.out, atol=1e-5)
    assert cache.lengths.tolist() == ([5, 5] if lengths is None else [4, 3])
