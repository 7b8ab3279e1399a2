"""Tests of gradients of packed sequences against torch's autograd.

The test runs without options, with each option of `OPTIONS`, and with each pair of these options.
"""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

import qkv

from .test_gradient import in_torch

RNG = np.random.default_rng(0)
HEADS = 4
LENGTHS = [5, 0, 64, 17, 1, 90, 33]
STARTS = np.cumsum([0, *LENGTHS])
OPTIONS: dict[str, Any] = {
    "is_causal": True,
    "window": (11, 3),
    "softcap": 2.0,
    "scale": 0.3,
    "alibi_slopes": np.array([0.5, 0.25, 0.1, 0.05]),
    "sinks": RNG.standard_normal((HEADS, 2)),
}
PAIRS = [(), *((name,) for name in OPTIONS), *combinations(OPTIONS, 2)]


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_are_those_of_autograd(names: tuple[str, ...], dtype: type) -> None:
    options = {
        name: value.astype(dtype) if isinstance(value, np.ndarray) else value
        for name, value in OPTIONS.items()
        if name in names
    }
    rng = np.random.default_rng(1)
    arrays = [
        rng.standard_normal((sum(LENGTHS), heads, size)).astype(dtype)
        for heads, size in ((HEADS, 8), (2, 8), (2, 6), (HEADS, 6))
    ]
    forward = qkv.varlen_attention(*arrays[:3], STARTS, STARTS, **options, return_lse=True)
    expected: dict[str, Any] = {}
    for a, b in pairwise(STARTS):
        alone = in_torch(*(x[a:b].swapaxes(0, 1)[None] for x in arrays), options)
        for name, gradient in alone.items():
            per_row = name in ("query", "key", "value")
            expected.setdefault(name, []).append(
                gradient[0].swapaxes(0, 1) if per_row else gradient
            )
    for saved in (None, forward):
        found = qkv.attend.varlen_attention_grad(*arrays, STARTS, STARTS, forward=saved, **options)
        bound = 1e-5 if dtype == np.float32 else 1e-11
        for name, parts in expected.items():
            per_row = name in ("query", "key", "value")
            truth = np.concatenate(parts) if per_row else np.sum(parts, 0)
            ours = getattr(found, name)
            assert ours.shape == truth.shape
            assert np.abs(ours - truth).max() <= bound * max(1, np.abs(truth).max()), name
