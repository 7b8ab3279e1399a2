"""The overhead of a call, measured with almost no work."""

from collections.abc import Iterator

import qkv
from benchmarks.common import Row, Way, at_most, beside, ours
from benchmarks.measure import random_inputs
from benchmarks.peers import torch_attention


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield the table row for a call with one query and one key."""
    shape = (1, 1, 1, 64)
    q, k, v = random_inputs(shape, shape)
    error = beside(q, k, v)
    torch = torch_attention(q, k, v)
    ways = {
        "qkv": Way(lambda: qkv.attention(q, k, v), error(), ours(q, k, v)),
        "torch": torch and Way(torch[0], error(torch[1])),
    }
    yield Row(f"{shape}", ways, (at_most(20e-6),))
