"""A sliding window: the time grows with the length, not with its square."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import Row, Way, beside, faster, ours, within
from benchmarks.peers import ort_grouped, torch_attention
from qkv.measure import random_inputs


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
    torch = torch_attention(q, k, v, mask=mask)
    ort = ort_grouped(q, k, v, window=left + 1)
    long_name = "qkv, four times the tokens"
    ways = {
        "qkv": Way(lambda: qkv.attention(q, k, v, **window), error(), ours(q, k, v)),
        long_name: Way(lambda: qkv.attention(*far, **window), beside(*far, **window)(), ours(*far)),
        "torch": torch and Way(torch[0], error(torch[1])),
        "onnxruntime, GQA": ort and Way(ort[0], error(ort[1])),
    }
    goals = (faster("torch", 10.0), within(4.6, long_name))
    return Row(f"{shape}, window ({left}, 0)", ways, goals)
