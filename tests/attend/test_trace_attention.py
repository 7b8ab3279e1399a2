"""Tests of trace_attention, which returns each step of the scores by its name."""

import math

import numpy as np
import pytest

import qkv
from qkv.attend.arguments import check_call
from qkv.attend.attention import softmax_of, weigh_values

from . import loops
from .drawn import Case
from .support import assert_near, qkv_arrays, tolerances

NAMES = [
    "scores_raw",
    "scores_scaled",
    "scores_capped",
    "scores_biased",
    "scores",
    "pattern",
    "out",
]


def agree_with_trace(case: Case) -> None:
    query, key, value = case.arrays
    expected = loops.attention(query, key, value, **case.options)
    trace = qkv.trace_attention(query, key, value, **case.options)
    dtype = query.dtype.newbyteorder("=")
    out, weight, _ = tolerances(expected, dtype)
    assert_near(trace["out"], expected.out, out, "out")
    assert trace["out"].dtype == dtype

    nan_row = np.isnan(expected.lse)[..., None] & ~expected.visible
    assert_near(np.where(nan_row, 0, trace["pattern"]), expected.weights, weight, "pattern")
    # Before the mask is applied, masked scores may hold any number.
    seen = expected.visible
    root = query.shape[-1] ** 0.5
    slack = weight * max(1.0, root / min(1.0, abs(case.options.get("scale", 1.0)) or 1.0))
    for name in loops.STAGES:
        right = expected.stages[name]
        assert trace[name].shape == right.shape, name
        shown = trace[name] if name == "scores" else np.where(seen, trace[name], -np.inf)
        assert_near(shown, right, slack, name)


def test_the_names() -> None:
    trace = qkv.trace_attention(*qkv_arrays())
    for name in NAMES:
        assert name in trace
    assert set(NAMES) <= set(trace.names())
    with pytest.raises(KeyError, match="pattern"):
        trace["patern"]


def test_every_step_by_hand() -> None:
    query, key, value = np.full((1, 4), 1.0), np.zeros((3, 4)), np.eye(3)
    key[:, 0] = 2, 4, 6
    trace = qkv.trace_attention(
        query, key, value, np.array([True, True, False]), softcap=2.0,
        bias=np.array([0.5, 0.0, 0.0]), alibi_slopes=[0.25], q_offset=0,
    )  # fmt: skip
    close = np.testing.assert_allclose
    close(trace["scores_raw"], [[2, 4, 6]])
    close(trace["scores_scaled"], [[1, 2, 3]])
    capped = [2 * math.tanh(0.5), 2 * math.tanh(1.0), 2 * math.tanh(1.5)]
    close(trace["scores_capped"], [capped])
    biased = [capped[0] + 0.5, capped[1] - 0.25, capped[2] - 0.5]
    close(trace["scores_biased"], [biased])
    close(trace["scores"], [[biased[0], biased[1], -np.inf]])
    first, second = math.exp(biased[0]), math.exp(biased[1])
    pattern = [first / (first + second), second / (first + second), 0]
    close(trace["pattern"], [pattern])
    close(trace["out"], [pattern])


def test_padding_and_fully_masked_rows() -> None:
    query, key, value = qkv_arrays()
    key[1, :, 3:] = value[1, :, 3:] = np.nan
    query[1, :, 4:] = np.nan
    lengths = {"key_lengths": [7, 3], "query_lengths": [5, 4]}
    agree_with_trace(Case((query, key, value), lengths))
    trace = qkv.trace_attention(query, key, value, **lengths)
    assert (trace["scores"][1, :, 4:] == -np.inf).all()
    assert (trace["pattern"][1, :, 4:] == 0).all()
    assert (trace["scores"][1, :, :, 3:] == -np.inf).all()
    assert np.isfinite(trace["out"]).all()


def test_trace_attention_refuses_invalid_inputs() -> None:
    query, key, value = qkv_arrays()
    with pytest.raises(ValueError, match="trace_attention"):
        qkv.trace_attention(query, key[..., :3], value)
    with pytest.raises(TypeError, match=r"trace_attention.*bool.*float"):
        qkv.trace_attention(query, key, value, np.ones((5, 7), int))


def test_softmax_of_and_weighed_agree_with_loops() -> None:
    """Compare `softmax_of` and `weigh_values` with loops, for sinks, grouped heads and padding."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 4, 3, 5)), rng.standard_normal((2, 2, 6, 5))
    value, sinks = rng.standard_normal((2, 2, 6, 7)), rng.standard_normal(4)
    value[1, :, 4:] = np.nan
    lengths = {"query_lengths": [3, 2], "key_lengths": [6, 4]}
    call = check_call(query, key, value, is_causal=True, q_offset=0, sinks=sinks, **lengths)
    scores, weights = rng.standard_normal((2, 4, 3, 6)), rng.random((2, 4, 3, 6))
    scores[0, 1, 2, 3] = -np.inf
    scores[0, 2, 1] = -np.inf
    found, out = softmax_of(call, scores), weigh_values(call, weights)
    for text, head, row in np.ndindex(2, 4, 3):
        keys = lengths["key_lengths"][text] if row < lengths["query_lengths"][text] else 0
        powers = [math.exp(x) for x in scores[text, head, row, :keys]]
        total = sum(powers) + math.exp(sinks[head])
        expected = np.zeros(6)
        expected[:keys] = [power / total for power in powers]
        np.testing.assert_allclose(found[text, head, row], expected, atol=1e-14)
        own = value[text, head // 2, :keys]
        mixed = sum((weights[text, head, row, j] * own[j] for j in range(keys)), np.zeros(7))
        np.testing.assert_allclose(out[text, head, row], mixed, atol=1e-14)
