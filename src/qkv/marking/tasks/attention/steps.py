"""Attention done step by step, so that a mistake can take the place of one step.

`RIGHT` is the computation, each step by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks.attention.inputs import Case


@dataclass(frozen=True)
class Sizes:
    """The numbers that somebody might scale by."""

    d: int
    dv: int
    tokens: int
    width: int
    all_heads: int


def compute(case: Case, steps: Steps) -> Array:
    """The output of attention done by these steps."""
    arrays, parts = case.arrays, list(case.arrays.values())
    width = parts[0].shape[-1]
    if "x" in arrays:
        parts = list(steps["project"](*parts))
    q, k, v = steps["choose"](*parts)
    all_heads = q.shape[-1]
    if case.heads > 1:
        q, k, v = (steps["sized"](a, case.heads, width) for a in (q, k, v))
        q, k, v = steps["arranged"](*(steps["split"](a, case.heads) for a in (q, k, v)))
    sizes = Sizes(q.shape[-1], v.shape[-1], q.shape[-2], width, all_heads)
    scores = steps["scale"](steps["score"](q, k), sizes)
    visible = _visible(case, steps, *scores.shape[-2:])
    if not visible.all():
        scores = steps["hide"](scores, visible)
    weights = steps["normalise"](steps["exp"](steps["shift"](scores)))
    if not visible.all():
        weights = steps["blank"](weights, visible)
    out: Array = steps["weigh"](weights, v, sizes)
    if case.heads > 1:
        out = steps["join"](out)
    if case.output is not None:
        out = steps["output"](out, case.output)
    return out


def _visible(case: Case, steps: Steps, queries: int, keys: int) -> Array:
    """Where a query sees a key, (L, S), by the mask and the causal mask of a case."""
    i, j = np.arange(queries)[:, None], np.arange(keys)
    if case.causal:
        allowed = steps["causal"](i, j, case.q_offset or 0, keys - queries)
    else:
        allowed = steps["not_causal"](i, j)
    if case.visible is None:
        return np.broadcast_to(allowed, (queries, keys))
    rule = steps["both"] if case.causal else np.logical_and
    visible: Array = rule(steps["mask"](case.visible), allowed)
    return visible


def same(a: Array, *_: Any) -> Array:
    """The step left out."""
    return a


def flip(a: Array) -> Array:
    """The last two axes in each other's place."""
    return np.swapaxes(a, -1, -2)


def softmax(s: Array) -> Array:
    """Softmax over the last axis."""
    e: Array = np.exp(s - s.max(axis=-1, keepdims=True))
    weights: Array = e / e.sum(axis=-1, keepdims=True)
    return weights


def _split(a: Array, heads: int) -> Array:
    """(..., T, H * d) -> (..., H, T, d)."""
    return np.swapaxes(a.reshape(*a.shape[:-1], heads, -1), -3, -2)


def _join(a: Array) -> Array:
    """(..., H, T, d) -> (..., T, H * d)."""
    a = np.swapaxes(a, -3, -2)
    return a.reshape(*a.shape[:-2], -1)


RIGHT: Steps = MappingProxyType(
    {
        "project": lambda x, w_q, w_k, w_v: (x @ w_q, x @ w_k, x @ w_v),
        "choose": lambda q, k, v: (q, k, v),
        "sized": same,
        "split": _split,
        "arranged": lambda q, k, v: (q, k, v),
        "score": lambda q, k: q @ flip(k),
        "scale": lambda s, n: s / np.sqrt(n.d),
        "mask": same,
        "causal": lambda i, j, offset, ahead: j <= i + offset,
        "not_causal": lambda i, j: (i >= 0) & (j >= 0),
        "both": np.logical_and,
        "hide": lambda s, visible: np.where(visible, s, -np.inf),
        "shift": lambda s: s - s.max(axis=-1, keepdims=True),
        "exp": np.exp,
        "normalise": lambda e: e / e.sum(axis=-1, keepdims=True),
        "blank": lambda w, visible: np.where(visible.any(axis=-1, keepdims=True), w, 0.0),
        "weigh": lambda w, v, n: w @ v,
        "join": _join,
        "output": lambda out, w_o: out @ w_o,
    }
)

# scores in place of weights
RAW: Steps = {"shift": same, "exp": same, "normalise": same}
