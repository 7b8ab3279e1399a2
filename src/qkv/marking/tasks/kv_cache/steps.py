"""Causal attention call by call, with the keys and values of earlier calls kept.

Source: Shazeer 2019, Fast Transformer Decoding (incremental attention).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks.attention.steps import RIGHT as ATTENTION
from qkv.marking.tasks.attention.steps import Sizes


@dataclass(frozen=True)
class Run:
    """One text, handed over in parts: word vectors (T, D), and how many go into each call."""

    arrays: dict[str, Array]
    parts: tuple[int, ...]
    positions: Array | None = None
    later: dict[str, Array] | None = None  # other projections, from the second call on

    def pieces(self) -> list[Array]:
        """The word vectors of each call."""
        return np.split(self.arrays["x"], np.cumsum(self.parts)[:-1])

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make these calls by hand."""
        ends = np.cumsum(self.parts).tolist()
        calls = [f"x[{end - part}:{end}]" for part, end in zip(self.parts, ends, strict=True)]
        table = {} if self.positions is None else {"positions": self.positions}
        later = {f"{name} from the second call on": a for name, a in (self.later or {}).items()}
        return self.arrays | later | table | {"the calls, in order": ", ".join(calls)}


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
        q, k, v = steps["choose"](*steps["project"](x, w_q, w_k, w_v))
        keys, values = steps["reads"](kept, k, v)
        first = steps["first"](len(kept.key), len(keys), len(x))  # where new word 0 stands
        outs.append(_attend(q, keys, values, first, x.shape[1], steps))
        kept = Kept(*steps["keeps"](kept, k, v))
        before += len(x)
    return np.concatenate(outs)


def _attend(q: Array, k: Array, v: Array, first: int, width: int, steps: Steps) -> Array:
    """What new queries take from these keys and values, (n, dv)."""
    if not len(k):
        return np.zeros((len(q), v.shape[1]))
    sizes = Sizes(q.shape[-1], v.shape[-1], len(k), width, q.shape[-1])
    scores = steps["scale"](steps["score"](q, k), sizes)
    i, j = np.arange(len(q))[:, None], np.arange(len(k))
    visible = np.broadcast_to(steps["sees"](i, j, first), scores.shape)
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
        "sees": lambda i, j, first: j <= first + i,
    }
)
