"""Measure how much time each optional argument of `qkv.attention` adds to a plain call."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import Row, Way, beside, ours, within
from benchmarks.measure import operations, random_inputs
from benchmarks.peers import torch_softcap


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield one row: the time of a call with each argument, for 2,048 tokens."""
    yield row((1, 12, 2048 // shrink, 64))


def row(shape) -> Row:
    """Compare softcap, sinks, ALiBi, a bias for every score, and the log-sum-exp."""
    q, k, v = random_inputs(shape, shape)
    _, heads, length, _ = shape
    rng = np.random.default_rng(1)
    arguments = {
        "softcap": {"softcap": 30.0},
        "sinks": {"sinks": rng.standard_normal(heads, np.float32)},
        "ALiBi": {"alibi_slopes": qkv.alibi_slopes(heads).astype(np.float32)},
        "float bias": {"bias": rng.standard_normal((1, heads, length, length), np.float32)},
    }
    plain = beside(q, k, v)
    work = operations(q, k, v)
    allowed = ours(q, k, v)
    ways: dict[str, Way | None] = {
        "qkv": Way(lambda: qkv.attention(q, k, v), plain(), allowed, work)
    }
    for name, given in arguments.items():
        truth = beside(q, k, v, **given)
        ways[name] = Way(
            lambda given=given: qkv.attention(q, k, v, **given), truth(), 2 * allowed, work
        )
    sharp = 64 * q
    ways["scores 64 times as large"] = Way(
        lambda: qkv.attention(sharp, k, v), beside(sharp, k, v)(), ours(sharp, k, v), work
    )
    ways["LSE"] = Way(
        lambda: qkv.attention(q, k, v, return_lse=True),
        plain(lambda both: both[0]),
        allowed,
        work,
    )
    torch = torch_softcap(q, k, v, 30.0)
    capped = beside(q, k, v, softcap=30.0)
    goals = tuple(within(1.25, name) for name in (*arguments, "LSE"))
    goals += (within(1.10, "scores 64 times as large"),)
    ways["torch, softcap written out"] = torch and Way(torch[0], capped(torch[1]), operations=work)
    return Row(f"{shape}", ways, goals)
