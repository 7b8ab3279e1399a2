"""Measure the speed and memory of qkv without its kernel, relative to plain NumPy."""

from collections.abc import Iterator

import qkv
from benchmarks.common import Row, Way, beside, faster, less_memory, ours
from benchmarks.measure import operations, plain_attention, random_inputs
from benchmarks.memory import measured_alone

ENVIRONMENT = {"QKV_BACKEND": "numpy"}


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for lengths from 64 to 4,096, and the memory for the last length."""
    longest = 4096 // shrink
    length = 64
    while length <= longest:
        yield row((1, 4, length, 64), memory=length == longest)
        length *= 2


def row(shape, *, memory: bool) -> Row:
    """Return the table's row for one length of text."""
    q, k, v = random_inputs(shape, shape)
    error, work = beside(q, k, v), operations(q, k, v)
    ways = {
        "qkv": Way(lambda: qkv.attention(q, k, v), error(), ours(q, k, v), work),
        "numpy": Way(lambda: plain_attention(q, k, v), error(), operations=work),
    }
    if not memory:
        return Row(f"{shape}", ways, (faster("numpy", 1.0),))
    alone = {name: lambda name=name: measured_alone(name, shape)["bytes"] for name in ways}
    return Row(f"{shape}", ways, (faster("numpy", 1.0), less_memory("numpy", 10.0)), alone)
