"""Causal attention call by call, with the keys and values of earlier calls kept.

Source: Shazeer 2019, Fast Transformer Decoding (incremental attention).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks.attention.steps import RIGHT as ATTENTION
from qkv.marking.tasks.attention.steps import Sizes
from qkv.marking.tasks.stepping import Run


class Kept(NamedTuple):
    """What a step keeps for the next one."""

    key: Array
    value: Array


def compute(case: Run, steps: Steps) -> Array:
    """The outputs of all calls below each other, (T, dv)."""
    w_q, w_k, w_v = (case.arrays[name] for name in ("w_q", "w_k", "w_v"))
    kept = Kept(np.zeros((0, w_k.shape[1])), np.zeros((0, w_v.shape[1])))
    outs: list[Array] = []
    before = 0  # words that came in earlier calls
    said = case.arrays["x"][:0]  # these words
    for x in case.pieces():
        if case.later is not None and outs:
            w_q, w_k, w_v = (case.later[name] for name in ("w_q", "w_k", "w_v"))
        kept = Kept(*steps["recalls"](kept, said, w_k, w_v))
        if case.positions is not None:
            x = x + case.positions[steps["places"](len(x), before, len(outs))]
        said = np.concatenate([said, x])
        out, kept = advance(x, (w_q, w_k, w_v), kept, steps)
        outs.append(out)
        before += len(x)
    return np.concatenate(outs)


def advance(
    x: Array, weights: tuple[Array, Array, Array], kept: Kept, steps: Steps
) -> tuple[Array, Kept]:
    """Causal attention of new words, given what is kept: their outputs, and what is kept then."""
    q, k, v = steps["choose"](*steps["project"](x, *weights))
    keys, values = steps["reads"](kept, k, v)
    first = steps["first"](len(kept.key), len(keys), len(x))  # where new word 0 stands
    i, j = np.arange(len(q))[:, None], np.arange(len(keys))
    out = attend(q, keys, values, steps["sees"](i, j, first), x.shape[1], steps)
    return out, Kept(*steps["keeps"](kept, k, v))


def attend(q: Array, k: Array, v: Array, sees: Array, width: int, steps: Steps) -> Array:
    """What new queries take from the keys and values that they see, (n, dv)."""
    if not len(k):
        return np.zeros((len(q), v.shape[1]))
    sizes = Sizes(q.shape[-1], v.shape[-1], len(k), width, q.shape[-1])
    scores = steps["scale"](steps["score"](q, k), sizes)
    visible = np.broadcast_to(sees, scores.shape)
    weights = steps["normalise"](steps["exp"](steps["shift"](np.where(visible, scores, -np.inf))))
    out: Array = steps["weigh"](weights, v, sizes)
    return out


def after(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    """The new rows after those that are kept."""
    return np.concatenate([kept.key, k]), np.concatenate([kept.value, v])


RIGHT: Steps = MappingProxyType(
    {
        **ATTENTION,
        "places": lambda new, before, calls: before + np.arange(new),
        "recalls": lambda kept, said, w_k, w_v: kept,
        "reads": after,
        "keeps": after,
        "first": lambda kept, keys, new: keys - new,
    }
)
