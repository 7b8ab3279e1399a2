"""Tests of summarize_attention: each query's largest weights, and each key's sum of weights."""

from typing import Any

import numpy as np
import pytest

import qkv

from . import loops
from .support import accumulator, assert_lse, assert_out, numbers, qkv_arrays, tolerances


def agree_with_summary(query: Any, key: Any, value: Any, *, top_k: int = 8, **options: Any) -> None:
    expected = loops.attention(query, key, value, **options)
    dtype = np.asarray(query).dtype.newbyteorder("=")
    summary = qkv.summarize_attention(query, key, value, top_k=top_k, **options)
    assert_out(summary.out, expected, dtype)
    assert_lse(summary.lse, expected, dtype)
    assert_summary(summary, expected, dtype, top_k)


def assert_summary(summary: Any, expected: loops.Loops, dtype: np.dtype, top_k: int) -> None:
    """Compare each query's largest weights and each key's sum, but not `out` and `lse`.

    Rows with a NaN are left out.
    """
    weights = expected.weights
    indices, top = np.asarray(summary.top_indices), np.asarray(summary.top_weights)
    assert indices.shape == top.shape == (*weights.shape[:-1], top_k)
    assert indices.dtype.kind == "i"
    assert top.dtype == summary.received.dtype == accumulator(dtype)
    assert summary.received.shape == (*weights.shape[:-2], weights.shape[-1])

    sound = np.isfinite(expected.lse) | ~expected.visible.any(axis=-1)
    slack = tolerances(expected, dtype)[1]
    listed, top = indices[sound], top[sound]  # (rows, top_k)
    visible, whole = expected.visible[sound], weights[sound]  # (rows, S)
    count = np.minimum(visible.sum(axis=-1, keepdims=True), top_k)
    filled = np.arange(top_k) < count  # (rows, top_k)
    assert (listed[~filled] == -1).all()
    assert (top[~filled] == 0).all()
    rows, ranks = np.nonzero(filled)
    keys = listed[filled]
    assert ((keys >= 0) & (keys < weights.shape[-1])).all()
    assert len(set(zip(rows.tolist(), keys.tolist(), strict=True))) == len(rows), "listed twice"
    assert visible[rows, keys].all()
    np.testing.assert_allclose(top[filled], whole[rows, keys], rtol=0, atol=slack)
    best = np.sort(whole, axis=-1)[:, ::-1]
    np.testing.assert_allclose(top[filled], best[rows, ranks], rtol=0, atol=2 * slack)
    pairs = filled[:, 1:]
    assert (np.diff(top)[pairs] <= 0).all(), "largest first"
    ties = pairs & (np.diff(top) == 0)
    assert (np.diff(listed)[ties] > 0).all(), "equal weights are ordered by index"

    clean = sound.all(axis=-1)
    total = weights.sum(axis=-2)
    allowed = slack * max(1, weights.shape[-2])
    np.testing.assert_allclose(summary.received[clean], total[clean], rtol=0, atol=allowed)


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": np.random.default_rng(3).random((2, 2, 5, 7)) < 0.4},
        {"attn_mask": np.where(numbers((5, 7), 3) < 0, -np.inf, 0.5)},
        {"bias": numbers((2, 5, 7), 4)},
        {"window": (1, 1), "q_offset": [0, 5]},
        {"is_causal": True, "q_offset": -2},
        {"sinks": [1.0, -1.0], "key_lengths": [3, 0]},
        {"query_lengths": [5, 0], "softcap": 2.0, "alibi_slopes": [0.5, 0.1], "q_offset": "start"},
    ],
    ids=str,
)
def test_summary_with_options(options: dict) -> None:
    agree_with_summary(*qkv_arrays(), **options)
    agree_with_summary(*qkv_arrays(), **options, top_k=2)


def test_ties_go_to_the_lower_index() -> None:
    key = np.array([[0.0], [1.0], [0.0], [1.0], [0.5], [1.0], [0.0]])
    summary = qkv.summarize_attention(np.ones((1, 1)), key, key, top_k=6)
    assert summary.top_indices.tolist() == [[1, 3, 5, 4, 0, 2]]
    for count in range(1, 6):
        part = qkv.summarize_attention(np.ones((1, 1)), key, key, top_k=count)
        assert part.top_indices.tolist() == [[1, 3, 5, 4, 0, 2][:count]]


def test_ties_go_to_the_lower_index_across_blocks() -> None:
    S = 5000
    query, key = np.ones((600, 1), np.float32), np.zeros((S, 1), np.float32)
    summary = qkv.summarize_attention(query, key, key, top_k=4)
    assert (summary.top_indices == [0, 1, 2, 3]).all()
    key[[4900, 2500, 100]] = 1
    summary = qkv.summarize_attention(query, key, key, top_k=5)
    assert (summary.top_indices == [100, 2500, 4900, 0, 1]).all()
    summary = qkv.summarize_attention(query, key, key, top_k=5, is_causal=True, q_offset=2400)
    assert (summary.top_indices[:100] == [100, 0, 1, 2, 3]).all()
    assert (summary.top_indices[100:] == [100, 2500, 0, 1, 2]).all()


def test_ties_of_very_large_scores_go_to_the_lower_index() -> None:
    key = np.full((7, 1), 2e4, np.float32)
    summary = qkv.summarize_attention(key[:1], key, key, top_k=3)
    assert summary.top_indices.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("sizes", [{"L": 0}, {"S": 0}, {"lead": (0,)}])
def test_empty(sizes: dict) -> None:
    agree_with_summary(*qkv_arrays(**sizes))


def test_masked_nan_never_shows() -> None:
    query, key, value = qkv_arrays()
    key[..., 5:, :] = value[..., 5:, :] = np.nan
    agree_with_summary(query, key, value, key_lengths=5)
    agree_with_summary(query, key, value, attn_mask=np.arange(7) < 5)


def test_large() -> None:
    query, key, value = qkv_arrays((), 2, 1, L=900, S=3000, d=4, dv=2)
    options = {"is_causal": True, "q_offset": "end", "window": (1700, None)}
    summary = qkv.summarize_attention(query, key, value, **options, top_k=5)
    rows = [0, 1, 255, 256, 511, 512, 700, 899]
    expected = loops.attention(query, key, value, **options, rows=rows)
    for at, row in enumerate(rows):
        weights = expected.weights[:, at]
        order = np.argsort(-weights, axis=-1, kind="stable")[:, :5]
        assert (summary.top_indices[:, row] == order).all()
        best = np.take_along_axis(weights, order, -1)
        np.testing.assert_allclose(summary.top_weights[:, row], best, rtol=0, atol=5e-6)
    _, weights = qkv.attention(query, key, value, **options, return_weights=True)
    total = weights.astype(np.float64).sum(axis=-2)
    np.testing.assert_allclose(summary.received, total, rtol=1e-4)


@pytest.mark.parametrize("top_k", [0, -1])
def test_a_top_k_below_one_is_refused(top_k: int) -> None:
    with pytest.raises(ValueError, match=r"summarize_attention.*top_k"):
        qkv.summarize_attention(*qkv_arrays(), top_k=top_k)


def test_summarize_attention_refuses_mismatched_inputs() -> None:
    query, key, value = qkv_arrays()
    with pytest.raises(ValueError, match=r"summarize_attention"):
        qkv.summarize_attention(query, key[..., :3], value)


def test_weights_of_scores_of_1e4_still_sum_to_one() -> None:
    query, key, value = (x * 100 for x in qkv_arrays(L=40, S=40, d=64))
    scores = query.astype(np.float64) @ np.swapaxes(key, -1, -2).astype(np.float64) / 8
    assert np.abs(scores).max() > 1e4
    summary = qkv.summarize_attention(query, key, value, top_k=40)
    np.testing.assert_allclose(summary.top_weights.sum(-1), 1, rtol=2e-6)
    np.testing.assert_allclose(summary.received.sum(-1), 40, rtol=2e-6)


def test_weights_of_a_row_masked_by_the_lowest_number_sum_to_one() -> None:
    query, key, value = qkv_arrays(L=3, S=40)
    mask = np.full((3, 40), np.finfo(np.float32).min)
    mask[1, 7] = 0
    for sinks in (None, np.full(2, np.finfo(np.float32).min)):
        summary = qkv.summarize_attention(query, key, value, mask, top_k=40, sinks=sinks)
        shared = 40 if sinks is None else 41
        np.testing.assert_allclose(summary.top_weights[..., ::2, :], 1 / shared, rtol=1e-5)
        assert (summary.top_indices[..., 1, 0] == 7).all()
        np.testing.assert_allclose(summary.top_weights[..., 1, 0], 1, rtol=1e-6)
        expected = np.where(np.arange(40) == 7, 1, 0) + 2 / shared
        np.testing.assert_allclose(summary.received, np.tile(expected, (2, 2, 1)), rtol=1e-5)


def test_an_unknown_option_is_named_with_the_nearest_option() -> None:
    query, key, value = qkv_arrays()
    with pytest.raises(TypeError, match=r"^summarize_attention: .* windw: .* window"):
        qkv.summarize_attention(query, key, value, windw=(1, 0))
    with pytest.raises(TypeError, match=r"^trace_attention: .* causal: .* is_causal"):
        qkv.trace_attention(query, key, value, causal=True)
