"""Tests that no computed number is subnormal, because products of subnormal numbers are slow."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import qkv
from subnormal import has_subnormal, no_subnormal_operand

from .support import Array, agree, numbers

LENGTHS = pytest.mark.parametrize("length", [1, 20], ids=["few queries", "many queries"])
# a weight is 2**-POWERS before the division by their sum, which is 1 in float32
POWERS = np.array([0, 60, 98, 126, 126.4, 127, 130, 140, 149, 150, 300, 1000, 3e38])
SEEN = POWERS < 125


def by_hand(length: int) -> tuple[tuple[Array, Array, Array], dict[str, Any]]:
    """Return a call whose weights are powers of two; each weight times its value is 1."""
    values = np.where(SEEN, 2.0 ** np.minimum(POWERS, 125), 2.0**100)
    arrays = (np.ones((length, 1)), -POWERS[:, None], values[:, None])
    q, k, v = (x.astype(np.float32) for x in arrays)
    return (q, k, v), {"scale": float(np.log(2))}


@LENGTHS
def test_weights_below_the_smallest_normal_number_are_0(length: int) -> None:
    arrays, options = by_hand(length)
    out, weights = qkv.attention(*arrays, return_weights=True, **options)
    expected = np.where(SEEN, 2.0**-POWERS, 0)
    np.testing.assert_allclose(weights, np.tile(expected, (length, 1)), rtol=2e-5, atol=0)
    np.testing.assert_allclose(out, SEEN.sum(), rtol=2e-5)
    summary = qkv.summarize_attention(*arrays, top_k=len(POWERS), **options)
    np.testing.assert_allclose(summary.top_weights, weights, rtol=2e-5, atol=0)
    np.testing.assert_allclose(summary.received, length * expected, rtol=2e-5, atol=0)


@LENGTHS
def test_the_gradient_of_tiny_weights_by_hand(length: int) -> None:
    arrays, options = by_hand(length)
    grad = qkv.attention_grad(*arrays, np.full((length, 1), 2.0, np.float32), **options)
    expected = 2 * length * np.where(SEEN, 2.0**-POWERS, 0)
    np.testing.assert_allclose(grad.value[:, 0], expected, rtol=2e-5, atol=0)
    # dS = weight * 2 * (value - out), times the query and the scale
    out = SEEN.sum()
    expected = expected * (arrays[2][:, 0].astype(float) - out) * np.log(2)
    np.testing.assert_allclose(grad.key[:, 0], expected, rtol=2e-5, atol=1e-5)
    assert not any(has_subnormal(x) for x in grad if x is not None)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True, "q_offset": "end"},
    "ALiBi": {"alibi_slopes": np.float32([0.5, 0.03]), "q_offset": "end"},
    "bias": {"bias": numbers((2, 1, 300), 9, size=90)},
    "softcap": {"softcap": 120.0},
    "sinks": {"sinks": np.float32([90, -200])},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@LENGTHS
def test_sharp_scores(
    length: int, options: dict[str, Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_NUM_THREADS", "1")  # so that this thread computes everything
    query, key = 8 * numbers((2, length, 16), 1), 8 * numbers((2, 300, 16), 2)
    # positive values, so that sums stay above the smallest weight
    value, upstream = (1 + abs(numbers((2, n, 8), n)) for n in (300, length))
    agree(query, key, value, **options)
    with nullcontext() if backend == "numpy" else no_subnormal_operand():
        out, weights, lse = qkv.attention(
            query, key, value, return_weights=True, return_lse=True, **options
        )
        found = qkv.attention_grad(query, key, value, upstream, forward=(out, lse), **options)
        summary = qkv.summarize_attention(query, key, value, **options)
    assert (weights == 0).any()
    for array in (weights, summary.top_weights, *found):
        assert array is None or not has_subnormal(array)
    wide = (x.astype(np.float64) for x in (query, key, value, upstream))
    expected = qkv.attention_grad(*wide, **options)
    for ours, theirs in zip(found, expected, strict=True):
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4 * abs(theirs).max())
