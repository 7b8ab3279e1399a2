"""Tests that packed rows give the same results as each sequence alone."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import qkv

from . import loops
from .support import FLOATS, assert_lse, assert_out, numbers

QUERIES, KEYS = [3, 1, 0, 5, 2], [4, 6, 2, 0, 2]


def packed(
    queries: list[int] = QUERIES,
    keys: list[int] = KEYS,
    heads: int = 4,
    kv_heads: int = 2,
    dtype: Any = np.float32,
    d: int = 4,
    dv: int = 3,
) -> tuple[np.ndarray, ...]:
    cu_queries, cu_keys = (np.cumsum([0, *lengths]) for lengths in (queries, keys))
    return (
        numbers((cu_queries[-1], heads, d), 0, dtype),
        numbers((cu_keys[-1], kv_heads, d), 1, dtype),
        numbers((cu_keys[-1], kv_heads, dv), 2, dtype),
        cu_queries,
        cu_keys,
    )


def agree_with_varlen(
    query: Any,
    key: Any,
    value: Any,
    cu_queries: Any,
    cu_keys: Any,
    q_offset: Any = None,
    **options: Any,
) -> None:
    dtype = query.dtype.newbyteorder("=")
    out, lse = qkv.varlen_attention(
        query, key, value, cu_queries, cu_keys, q_offset=q_offset, **options, return_lse=True
    )
    assert out.shape == (*query.shape[:2], value.shape[-1])
    assert lse.shape == query.shape[:2]
    only = qkv.varlen_attention(
        query, key, value, cu_queries, cu_keys, q_offset=q_offset, **options
    )
    np.testing.assert_array_equal(only, out)
    for n, ((a, b), (c, d)) in enumerate(zip(pairwise(cu_queries), pairwise(cu_keys), strict=True)):
        expected = loops.attention(
            query[a:b].swapaxes(0, 1),
            key[c:d].swapaxes(0, 1),
            value[c:d].swapaxes(0, 1),
            q_offset=q_offset if q_offset is None or np.ndim(q_offset) == 0 else q_offset[n],
            **options,
        )
        assert_out(out[a:b].swapaxes(0, 1), expected, dtype)
        assert_lse(lse[a:b].swapaxes(0, 1), expected, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_packed_batch_gives_the_result_of_each_sequence_alone(dtype: np.dtype) -> None:
    agree_with_varlen(*packed(dtype=dtype))


@pytest.mark.parametrize(
    "offset", ["start", "end", 0, 2, -1, np.array([0, 5, -2, 1, 0]), [1, 2, 3, 4, 5]]
)
@pytest.mark.parametrize(
    "options", [{"is_causal": True}, {"window": (1, 1)}, {"alibi_slopes": [0.5, 0.25, 0.1, 0.0]}]
)
def test_offsets_apply_to_each_sequence(options: dict, offset: object) -> None:
    agree_with_varlen(*packed(), q_offset=offset, **options)


def test_different_query_and_key_lengths_need_an_offset() -> None:
    with pytest.raises(ValueError, match=r"varlen_attention.*q_offset") as caught:
        qkv.varlen_attention(*packed([3, 4], [3, 9]), is_causal=True)
    for word in ("start", "end", "4", "9"):
        assert word in str(caught.value)
    with pytest.raises(ValueError, match="varlen_attention"):
        qkv.varlen_attention(*packed([3, 4], [4, 3]), is_causal=True)  # the total lengths are equal


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 1.5},
        {"sinks": np.array([0.5, 1.0, -1.0, 2.0])},
        {"sinks": numbers((4, 2), 5)},
        {"scale": 0.2},
        {"window": (2, None), "q_offset": "end", "is_causal": True, "sinks": [0.0, 1.0, 2.0, 3.0]},
    ],
    ids=str,
)
def test_options(options: dict) -> None:
    agree_with_varlen(*packed(), **options)


def test_a_sequence_does_not_attend_to_its_neighbours() -> None:
    query, key, value, cu_queries, cu_keys = packed([2, 2, 2], [3, 3, 3])
    clean = qkv.varlen_attention(query, key, value, cu_queries, cu_keys)
    key[3:6] = value[3:6] = np.nan
    out = qkv.varlen_attention(query, key, value, cu_queries, cu_keys)
    assert np.isnan(out[2:4]).all()
    np.testing.assert_array_equal(out[[0, 1, 4, 5]], clean[[0, 1, 4, 5]])


def test_empty_sequences_and_no_sequences() -> None:
    agree_with_varlen(*packed([0, 2, 0, 3, 0], [2, 0, 0, 3, 1]), sinks=[0.5, 1.0, 2.0, 3.0])
    agree_with_varlen(*packed([0, 0], [0, 0]))
    agree_with_varlen(*packed([], []))
    agree_with_varlen(*packed([0, 0], [3, 1]))
    agree_with_varlen(*packed([3, 1], [0, 0]))


def test_many_sequences_of_many_lengths() -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 12, 60).tolist()
    agree_with_varlen(*packed(lengths, lengths, 2, 1, d=2, dv=2), is_causal=True, window=(5, None))


def test_long_sequences() -> None:
    queries, keys = [700, 3, 900], [800, 1500, 900]
    query, key, value, cu_queries, cu_keys = packed(queries, keys, 2, 1)
    out = qkv.varlen_attention(
        query, key, value, cu_queries, cu_keys, is_causal=True, q_offset="end"
    )
    for n in range(3):
        a, b, c, d = *cu_queries[n : n + 2], *cu_keys[n : n + 2]
        rows = [0, queries[n] // 2, queries[n] - 1]
        x, y, z = (t.swapaxes(0, 1) for t in (query[a:b], key[c:d], value[c:d]))
        expected = loops.attention(x, y, z, is_causal=True, q_offset="end", rows=rows)
        np.testing.assert_allclose(out[a:b][rows].swapaxes(0, 1), expected.out, atol=1e-5)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8, list])
def test_cumulative_lengths_are_ints_of_any_kind(kind: type) -> None:
    query, key, value, cu_queries, cu_keys = packed()
    expected = qkv.varlen_attention(query, key, value, cu_queries, cu_keys)
    if kind is list:
        given = (cu_queries.tolist(), cu_keys.tolist())
    else:
        given = (cu_queries.astype(kind), cu_keys.astype(kind))
    np.testing.assert_array_equal(qkv.varlen_attention(query, key, value, *given), expected)


def test_views_of_any_strides_are_read() -> None:
    query, key, value, cu_queries, cu_keys = packed()
    both = np.full((12, 6, 9), np.nan, np.float32)
    both[: len(query), :4, 1:8:2] = query
    agree_with_varlen(
        both[: len(query), :4, 1:8:2], key[:, ::-1], value[..., ::-1], cu_queries, cu_keys
    )


@pytest.mark.parametrize(
    ("which", "wrong", "kind"),
    [
        ("query", [1, 3, 4, 4, 9, 11], ValueError),  # does not begin at 0
        ("query", [0, 3, 2, 4, 9, 11], ValueError),  # decreases
        ("key", [0, 4, 10, 12, 14], ValueError),  # another number of sequences
        ("key", [[0, 4, 10, 12, 12, 14]], ValueError),
        ("key", [0.0, 4.0, 10.0, 12.0, 12.0, 14.0], TypeError),
    ],
)
def test_wrong_cumulative_lengths_are_refused(which: str, wrong: Any, kind: Any) -> None:
    query, key, value, cu_queries, cu_keys = packed()
    wrong = wrong if wrong is None or wrong == [] else np.array(wrong)
    given = (wrong, cu_keys) if which == "query" else (cu_queries, wrong)
    with pytest.raises(kind, match=rf"varlen_attention.*cu_{which}_lengths"):
        qkv.varlen_attention(query, key, value, *given)


def test_wrong_offsets_are_refused() -> None:
    for offset in ([1, 2], "middle", 1.5):
        with pytest.raises((TypeError, ValueError), match=r"varlen_attention.*q_offset"):
            qkv.varlen_attention(*packed(), q_offset=offset, is_causal=True)


def test_wrong_shapes_and_types_are_refused() -> None:
    query, key, value, *cu = packed()
    for arrays in [
        (query[:, :3], key, value),  # 3 query heads and 2 key heads
        (query[..., :2], key, value),
        (query, key[:-1], value),
        (query[:, 0], key[:, 0], value[:, 0]),
    ]:
        with pytest.raises(ValueError, match="varlen_attention"):
            qkv.varlen_attention(*arrays, *cu)
    with pytest.raises(TypeError, match=r"varlen_attention.*float32.*float64|float64.*float32"):
        qkv.varlen_attention(query, key.astype(float), value, *cu)
