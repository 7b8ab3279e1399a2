"""Decoding one token: the key/value cache is read once, at the speed of memory."""

from collections.abc import Iterator

import qkv
from benchmarks.common import Row, Way, beside, faster, ours, share_of_reading
from benchmarks.measure import random_inputs
from benchmarks.peers import openvino_folded, ort_grouped, torch_attention, torch_folded


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for one long text and for a batch of eight texts."""
    for batch, keys in ((1, 8192 // shrink), (8, 1024 // shrink)):
        yield row(batch, 32, 8, keys, 128)


def row(batch: int, heads: int, kv_heads: int, keys: int, size: int) -> Row:
    """Make a benchmark row: each text has `keys` keys, and one query at the last position."""
    q, k, v = random_inputs((batch, heads, 1, size), (batch, kv_heads, keys, size))
    error = beside(q, k, v)
    reads = k.nbytes + v.nbytes
    peers = {
        "torch": torch_attention(q, k, v, enable_gqa=True),
        "torch, heads as queries": torch_folded(q, k, v),
        "onnxruntime, GQA": ort_grouped(q, k, v),
        "openvino, heads as queries": openvino_folded(q, k, v),
    }
    ways: dict[str, Way | None] = {
        "qkv": Way(lambda: qkv.attention(q, k, v), error(), ours(q, k, v), reads=reads),
    }
    for name, peer in peers.items():
        ways[name] = peer and Way(peer[0], error(peer[1]), reads=reads)
    goals = (faster("torch|torch, heads as queries", 4.0), share_of_reading(0.80))
    name = f"({batch}, {heads} over {kv_heads}, 1 x {keys}, {size})"
    return Row(name, ways, goals)
