"""The largest weights of each query at 32,768 tokens, in memory that grows linearly."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import Row, Way, beside, formula, memory_at_most, ours, within
from benchmarks.measure import operations, random_inputs, sample
from benchmarks.memory import measured_alone


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield the table row for one head."""
    yield row((1, 1, 32768 // shrink, 64))


def row(shape) -> Row:
    """Compare `qkv.summarize_attention` with `qkv.attention`."""
    q, k, v = random_inputs(shape, shape)
    error, work = beside(q, k, v), operations(q, k, v)
    few = sample(shape[2], 64)
    weights = [formula(q, k, v, part)[0] for part in few]
    best = -np.sort(-np.concatenate(weights, axis=-2))[..., :8]

    def summary_error(found) -> float:
        shown = np.concatenate([found.top_weights[..., part, :] for part in few], axis=-2)
        return max(error()(found.out), float(np.abs(shown - best).max()))

    ways = {
        "qkv": Way(lambda: qkv.attention(q, k, v), error(), ours(q, k, v), work),
        "summary": Way(
            lambda: qkv.summarize_attention(q, k, v), summary_error, ours(q, k, v), work
        ),
    }
    alone = {"summary": lambda: measured_alone("summary", shape)["bytes"]}
    goals = (within(2.2, "summary"), memory_at_most(150e6, "summary"))
    return Row(f"{shape}", ways, goals, alone)
