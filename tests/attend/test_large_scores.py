"""Tests that weights sum to 1 even if scores are so large that float32 rounds them coarsely."""

from typing import Any

import numpy as np
import pytest

import qkv

from .support import numbers

ONE_KEY = np.arange(300) == 2
TWO_KEYS = ONE_KEY | (np.arange(300) == 299)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "boolean mask of one key": {"attn_mask": ONE_KEY},
    "boolean mask of two keys": {"attn_mask": TWO_KEYS},
    "float mask of one key": {"attn_mask": np.where(ONE_KEY, 0, -np.inf).astype(np.float32)},
    "bias and mask": {"bias": numbers((1, 1, 300), 7), "attn_mask": ONE_KEY},
    "sinks": {"sinks": np.float32([3.0]), "attn_mask": TWO_KEYS},
    "negative scale": {"scale": -1.0, "attn_mask": TWO_KEYS},
    "slopes": {"alibi_slopes": np.float32([1e6]), "q_offset": 0},
    "causal": {"is_causal": True, "q_offset": 2, "attn_mask": ONE_KEY},
}


@pytest.mark.parametrize(
    "size",
    [1e7, 3e36, *(pytest.param(size, marks=pytest.mark.attack) for size in (3e8, 3e14, 3e19))],
)
@pytest.mark.parametrize("length", [1, 20], ids=["few queries", "many queries"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_weights_sum_to_one(options: dict[str, Any], length: int, size: float) -> None:
    by = np.float32(size**0.5)
    query, key = by * abs(numbers((1, length, 8), 1)), by * numbers((1, 300, 8), 2)
    value = numbers((1, 300, 4), 3)
    out, weights = qkv.attention(query, key, value, return_weights=True, **options)
    summary = qkv.summarize_attention(query, key, value, top_k=300, **options)
    # With sinks, the sum is below 1 where scores are far below the logits of the sinks.
    wide = [x.astype(np.float64) for x in (query, key, value)]
    expected = qkv.attention(*wide, return_weights=True, **options)[1].sum(-1)
    np.testing.assert_allclose(weights.sum(-1, dtype=np.float64), expected, atol=2e-6)
    np.testing.assert_allclose(summary.top_weights.sum(-1, dtype=np.float64), expected, atol=2e-6)
    np.testing.assert_allclose(summary.received.sum(), expected.sum(), atol=1e-4)
    if options.get("attn_mask") is ONE_KEY:
        np.testing.assert_allclose(weights[..., 2], 1, atol=2e-6)
        np.testing.assert_allclose(out, value[:, 2:3].repeat(length, 1), rtol=2e-6)
