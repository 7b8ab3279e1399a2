"""Attention and its gradient, as in training."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import LOOSE, Row, Way, faster, formula, share_of_peak, with_amx, within
from benchmarks.measure import operations, random_inputs
from benchmarks.peers import torch_gradient

SHARP = "scores 64 times as large"


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for a long text, plain and causal, and for a batch of short texts."""
    long = (1, 12, 2048 // shrink, 64)
    yield row(
        long, (faster("torch", 1.7, 2.0), share_of_peak(0.75), within(1.15, SHARP)), sharp=True
    )
    yield row(long, (faster("torch", 1.7, 2.0), share_of_peak(0.75)), causal=True)
    yield row((32, 6, 64, 32), (faster("torch", 1.0),))
    for causal in (False, True):
        yield row(long, (with_amx(faster("torch", 1.5)),), causal=causal, dtype="bfloat16")


def by_the_chain_rule(q, k, v, above, causal: bool) -> list[np.ndarray]:
    """Compute the gradients of attention for query, key and value in float64, in plain NumPy."""
    q, k, v, above = (x.astype(np.float64) for x in (q, k, v, above))
    weights, out = formula(q, k, v, slice(None), is_causal=causal)  # (..., L, S), (..., L, dv)
    scores = above @ v.swapaxes(-1, -2) - (above * out).sum(axis=-1, keepdims=True)
    scores *= weights / np.sqrt(q.shape[-1])
    return [scores @ k, scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ above]


def row(shape, goals=(), *, causal=False, dtype="float32", sharp=False) -> Row:
    """Return the row for inputs (B, H, L, d); its times include the forward pass."""
    q, k, v = random_inputs(shape, shape, dtype)
    above = random_inputs(shape, shape, dtype, seed=1)[0]

    def both(q):
        forward = qkv.attention(q, k, v, is_causal=causal, return_lse=True)
        return qkv.attention_grad(q, k, v, above, is_causal=causal, forward=forward)[:3]

    def beside(q):
        """Return a function that computes the largest error of the gradients of the first head."""
        truth = by_the_chain_rule(*(x[:, :1] for x in (q, k, v, above)), causal)
        return lambda found: max(
            float(np.abs(np.asarray(x)[:, :1] - expected).max())
            for x, expected in zip(found, truth, strict=True)
        )

    # the forward pass has two matrix products, and the backward pass has five
    work = 3.5 * operations(q, k, v, is_causal=causal)
    peer = torch_gradient(q, k, v, above, dtype, is_causal=causal)
    error = beside(q)
    half = dtype == "bfloat16"
    ways = {
        "qkv": Way(lambda: both(q), error, LOOSE[dtype] if half else 2e-5, work, dtype=dtype),
        "torch": peer
        and Way(peer[0], lambda g: error(peer[1](g)), LOOSE[dtype], work, dtype=dtype),
    }
    if sharp:
        large = 64 * q
        ways[SHARP] = Way(lambda: both(large), beside(large), 64 * 2e-4, work)
    name = f"{shape}, forward and backward{', causal' * causal}{', bfloat16' * half}"
    return Row(name, ways, tuple(goals))
