"""Tests of attention's gradients against torch's autograd, for each argument and each pair."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

import qkv

RNG = np.random.default_rng(0)
HEADS, LENGTH = 4, 90
OPTIONS: dict[str, Any] = {
    "is_causal": True,
    "window": (11, 3),
    "softcap": 2.0,
    "scale": 0.3,
    "bias": RNG.standard_normal((HEADS, LENGTH, LENGTH)),
    "alibi_slopes": np.array([0.5, 0.25, 0.1, 0.05]),
    "sinks": RNG.standard_normal((HEADS, 2)),
    "attn_mask": RNG.random((LENGTH, LENGTH)) < 0.8,
}
PAIRS = [(), *((name,) for name in OPTIONS), *combinations(OPTIONS, 2)]


def in_torch(query, key, value, grad_out, options) -> dict[str, np.ndarray]:
    """Return autograd's gradients of the attention formula written in torch."""
    given = {"query": query, "key": key, "value": value}
    given |= {n: options[n] for n in ("bias", "alibi_slopes", "sinks") if n in options}
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in given.items()}
    shared = query.shape[-3] // key.shape[-3]
    keys, values = (leaves[name].repeat_interleave(shared, -3) for name in ("key", "value"))
    scores = leaves["query"] @ keys.mT * options.get("scale", query.shape[-1] ** -0.5)
    if "softcap" in options:
        scores = torch.tanh(scores / options["softcap"]) * options["softcap"]
    if "bias" in options:
        scores = scores + leaves["bias"]
    i, j = torch.arange(query.shape[-2])[:, None], torch.arange(key.shape[-2])
    if "alibi_slopes" in options:
        scores = scores - leaves["alibi_slopes"][:, None, None] * (i - j).abs()
    visible = torch.ones(len(i), len(j), dtype=torch.bool)
    if options.get("is_causal"):
        visible &= j <= i
    if "window" in options:
        left, right = options["window"]
        visible &= (j >= i - left) & (j <= i + right)
    if "attn_mask" in options:
        visible &= torch.tensor(options["attn_mask"])
    scores = scores.masked_fill(~visible, -torch.inf)
    if "sinks" in options:
        sinks = leaves["sinks"][:, None].expand(*scores.shape[:-1], -1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., : len(j)]
    else:
        weights = scores.masked_fill(~visible.any(-1, keepdim=True), 0).softmax(-1) * visible
    (weights @ values).backward(torch.tensor(grad_out))
    return {name: leaf.grad.numpy() for name, leaf in leaves.items()}


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_are_those_of_autograd(names: tuple[str, ...], dtype: type) -> None:
    options = {
        name: value.astype(dtype) if getattr(value, "dtype", None) == np.float64 else value
        for name, value in OPTIONS.items()
        if name in names
    }
    rng = np.random.default_rng(1)
    query, key, value, grad_out = (
        rng.standard_normal((2, heads, LENGTH, size)).astype(dtype)
        for heads, size in ((HEADS, 8), (2, 8), (2, 6), (HEADS, 6))
    )
    found = qkv.attention_grad(query, key, value, grad_out, **options)
    bound = 1e-5 if dtype == np.float32 else 1e-11
    for name, expected in in_torch(query, key, value, grad_out, options).items():
        ours = getattr(found, name)
        assert ours.shape == expected.shape
        assert np.abs(ours - expected).max() <= bound * max(1, np.abs(expected).max()), name
