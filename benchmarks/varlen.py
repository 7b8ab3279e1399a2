"""Packed texts of different lengths, compared with a padded batch and with one call per text."""

from collections.abc import Iterator

import numpy as np

import qkv
from benchmarks.common import Row, Way, faster, formula, ours
from benchmarks.measure import largest_error, random_inputs
from benchmarks.peers import from_torch, torch_attention


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield the table row for 64 texts of 8 to 512 tokens."""
    yield row(64 // shrink, 8, 512 // shrink)


def row(texts: int, shortest: int, longest: int, heads: int = 12, size: int = 64) -> Row:
    """Make the table row for texts of different lengths.

    The lengths are evenly spaced from `shortest` to `longest`. The texts are in random order.
    """
    lengths = np.linspace(shortest, longest, texts).astype(int)
    np.random.default_rng(1).shuffle(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    packed = (int(starts[-1]), heads, size)
    q, k, v = random_inputs(packed, packed)

    def text(x: np.ndarray, number: int) -> np.ndarray:  # (H, L, d)
        return x[starts[number] : starts[number + 1]].swapaxes(0, 1)

    chosen = range(0, texts, max(1, texts // 8))
    truths = {i: formula(text(q, i), text(k, i), text(v, i), slice(None))[1] for i in chosen}

    def error(of_text):
        return lambda out: max(
            largest_error(of_text(out, i), truth, [slice(None)]) for i, truth in truths.items()
        )

    padded = [np.zeros((texts, heads, longest, size), np.float32) for _ in range(3)]
    for i in range(texts):
        for whole, part in zip(padded, (q, k, v), strict=True):
            whole[i, :, : lengths[i]] = text(part, i)
    mask = (np.arange(longest) < lengths[:, None])[:, None, None]  # (B, 1, 1, S)
    torch = torch_attention(*padded, mask=mask)
    each = [[np.ascontiguousarray(text(x, i))[None] for x in (q, k, v)] for i in range(texts)]
    single = [torch_attention(*one) for one in each] if torch else []
    work = 4.0 * heads * size * float((lengths.astype(float) ** 2).sum())
    ways = {
        "qkv": Way(
            lambda: qkv.varlen_attention(q, k, v, starts, starts),
            error(text),
            ours(q, k, v),
            work,
        ),
        "torch": torch
        and Way(
            torch[0],
            error(lambda out, i: torch[1](out)[i, :, : lengths[i]]),
            operations=work,
        ),
        "torch, one call a text": torch
        and Way(
            lambda: [peer[0]() for peer in single],
            error(lambda out, i: from_torch(out[i])[0]),
            operations=work,
        ),
        "qkv, one call a text": Way(
            lambda: [qkv.attention(*one) for one in each],
            error(lambda out, i: out[i][0]),
            ours(q, k, v),
            work,
        ),
    }
    goals = (faster("torch|torch, one call a text", 1.5), faster("qkv, one call a text", 1.0))
    name = f"{texts} texts of {shortest} to {longest} tokens, {heads} heads of {size}"
    return Row(name, ways, goals)
