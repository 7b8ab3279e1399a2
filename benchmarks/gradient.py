"""Attention and its gradient, as in training."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import Row, Way, faster, share_of_peak
from benchmarks.peers import torch_gradient
from qkv.measure import operations, random_inputs


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for a long text, plain and causal, and for a batch of short texts."""
    long = (1, 12, 2048 // shrink, 64)
    yield row(long, (faster("torch", 1.7, 2.0), share_of_peak(0.75)))
    yield row(long, (faster("torch", 1.7, 2.0), share_of_peak(0.75)), causal=True)
    yield row((32, 6, 64, 32), (faster("torch", 1.0),))


def row(shape, goals=(), *, causal=False) -> Row:
    """Return the row for inputs (B, H, L, d); its times include the forward pass."""
    q, k, v = random_inputs(shape, shape)
    above = random_inputs(shape, shape, seed=1)[0]
    head = [x[:, :1].astype(np.float64) for x in (q, k, v, above)]
    truth = qkv.attention_grad(*head, is_causal=causal)[:3]

    def ours():
        forward = qkv.attention(q, k, v, is_causal=causal, return_lse=True)
        return qkv.attention_grad(q, k, v, above, is_causal=causal, forward=forward)[:3]

    def error(found) -> float:
        """Return the largest error of the gradients of the first head."""
        pairs = zip(found, truth, strict=True)
        return max(float(np.abs(np.asarray(x)[:, :1] - expected).max()) for x, expected in pairs)

    # the forward pass has two matrix products, and the backward pass has five
    work = 3.5 * operations(q, k, v, is_causal=causal)
    peer = torch_gradient(q, k, v, above, is_causal=causal)
    ways = {
        "qkv": Way(ours, error, 2e-5, work),
        "torch": peer and Way(peer, error, operations=work),
    }
    return Row(f"{shape}, forward and backward{', causal' * causal}", ways, tuple(goals))
