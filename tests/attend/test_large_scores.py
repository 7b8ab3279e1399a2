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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "case", ["cancelling products", "a bias of 1,000", "a mask of 1,000", "slopes"]
)
def test_the_stated_bound(case: str, dtype: Any) -> None:
    """README's bound of outputs and weights, in which products count with their sizes."""
    query, key, value = (numbers((2, 40, 8), seed, np.float64) for seed in (1, 2, 3))
    if case == "cancelling products":  # of about 9e6, with differences of a few units
        query[..., 1::2], key[..., 1::2] = -query[..., ::2], key[..., ::2] + 1e-3 * key[..., 1::2]
        query *= 3000
    large = numbers((2, 40, 40), 4, np.float64) * 1000
    options: dict[str, Any] = {
        "a bias of 1,000": {"bias": large.astype(dtype)},
        "a mask of 1,000": {"attn_mask": large.astype(dtype)},
        "slopes": {"alibi_slopes": np.array([30.0, 50.0], dtype), "q_offset": 0},
    }.get(case, {})
    given = [x.astype(dtype) for x in (query, key, value)]
    wide = [x.astype(np.longdouble) for x in given]
    size = np.einsum("hld,hsd->hls", *map(abs, wide[:2])) / np.sqrt(np.longdouble(8))
    scores = np.einsum("hld,hsd->hls", *wide[:2]) / np.sqrt(np.longdouble(8))
    distance = abs(np.arange(40)[:, None] - np.arange(40))
    slopes = options.get("alibi_slopes", np.zeros(2, dtype)).astype(np.longdouble)
    more = options.get("bias", options.get("attn_mask", 0)) - slopes[:, None, None] * distance
    weights = np.exp(scores + more - (scores + more).max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    least, step = (2e-6, 2.0**-23) if dtype == np.float32 else (1e-13, 2.0**-52)
    allowed = least + step * float((size + abs(more)).max())
    out, found = qkv.attention(*given, return_weights=True, **options)
    assert abs(found - weights).max() <= allowed
    assert abs(out - weights @ wide[2]).max() <= allowed * abs(value).max()


@pytest.mark.parametrize("L", [1, 2, 5, 8, 17])
@pytest.mark.parametrize("options", [{}, {"softcap": 2000.0}], ids=str)
def test_the_stated_bound_of_recomputed_weights(L: int, options: dict[str, Any]) -> None:
    """The gradient of value for an output of ones is the sum of each key's weights."""
    for seed, (S, d) in enumerate([(3, 8), (20, 64), (300, 100)]):
        query, key = 20 * numbers((L, d), seed), 20 * numbers((S, d), seed + 9)
        wide = [x.astype(np.float64) for x in (query, key, np.ones((S, 1)))]
        weights = qkv.attention(*wide, return_weights=True, **options)[1]
        allowed = 4 * (2e-6 + 2.0**-23 * (abs(wide[0]) @ abs(wide[1].T)).max() / d**0.5)
        grad_out = np.eye(L, dtype=np.float32)  # the gradients of value are P itself
        value = np.ones((S, L), np.float32)
        found = qkv.attention_grad(query, key, value, grad_out, **options).value
        assert abs(found.T - weights).max() <= allowed
