"""A sliding window: the time grows with the length, not with its square."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import Row, Way, beside, faster, ours, within
from benchmarks.measure import random_inputs
from benchmarks.peers import ort_grouped, torch_attention, torch_flex, torch_window


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield a table row: a window of 512 earlier keys, with 8,192 tokens and with 32,768 tokens."""
    yield row(8192 // shrink, 512 // shrink)


def row(length: int, left: int, heads: int = 4, size: int = 64) -> Row:
    """Make a row with two lengths; the second length is four times the first."""
    shape, longer = (1, heads, length, size), (1, heads, 4 * length, size)
    q, k, v = random_inputs(shape, shape)
    window = {"window": (left, 0)}
    error = beside(q, k, v, **window)
    far = random_inputs(longer, longer)
    away = np.subtract.outer(np.arange(length), np.arange(length))
    mask = (away >= 0) & (away <= left)
    peers = {
        "torch": torch_attention(q, k, v, mask=mask),
        "torch, compiled flex_attention": torch_flex(q, k, v, left),
        "torch, chunks": torch_window(q, k, v, left, mask),
        "onnxruntime, GQA": ort_grouped(q, k, v, window=left + 1),
    }
    long_name = "qkv, four times the tokens"

    def work(length: int) -> float:
        """Count the operations for the visible pairs of query and key."""
        return 4.0 * size * heads * float(np.minimum(np.arange(length) + 1, left + 1).sum())

    near, distant = work(length), work(4 * length)
    far_error = beside(*far, **window)
    ways: dict[str, Way | str | None] = {
        "qkv": Way(lambda: qkv.attention(q, k, v, **window), error(), ours(q, k, v), near),
        long_name: Way(lambda: qkv.attention(*far, **window), far_error(), ours(*far), distant),
    }
    for name, peer in peers.items():
        timed = isinstance(peer, tuple)
        ways[name] = Way(peer[0], error(peer[1]), operations=near) if timed else peer
    goals = (
        faster("torch", 10.0),
        faster("torch, compiled flex_attention|torch, chunks", 1.0),
        within(4.6, long_name),
    )
    return Row(f"{shape}, window ({left}, 0)", ways, goals)
