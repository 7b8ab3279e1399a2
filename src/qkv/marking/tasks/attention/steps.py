"""Attention in steps, and the right answer. A mistake replaces some of the steps.

`RIGHT` holds the steps by name. The constants hold lines of code that a learner writes for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend.formula import Steps as Formula
from qkv.attend.formula import formula
from qkv.marking.mistake import Steps
from qkv.marking.tasks.attention.inputs import Case

SCORES = "scores = q @ np.swapaxes(k, -1, -2)"
SCALE = f"{SCORES} / np.sqrt(q.shape[-1])"
WEIGHTS = (
    "e = np.exp(scores - scores.max(axis=-1, keepdims=True));"
    " weights = e / e.sum(axis=-1, keepdims=True)"
)
CONTEXT = "out = weights @ v"
HIDE = "scores = np.where(mask, scores, -np.inf)"
PROJECT = "q, k, v = x @ w_q, x @ w_k, x @ w_v"
FLOATS = "out = np.zeros((L, dv), dtype=float)  # not zeros_like(v); or x.astype(float) first"


@dataclass(frozen=True)
class Sizes:
    """The sizes by which a learner might scale the scores."""

    d: int
    dv: int
    tokens: int
    width: int
    all_heads: int


def compute(case: Case, steps: Steps) -> Array:
    """Return the output of attention by these steps."""
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
    """Return where a query sees a key, (L, S), by the mask and the causal mask of a case."""
    i, j = np.arange(queries)[:, None], np.arange(keys)
    allowed = steps["sees"](i, j, case.q_offset or 0) if case.causal else steps["not_causal"](i, j)
    if case.visible is None:
        return np.broadcast_to(allowed, (queries, keys))
    rule = steps["both"] if case.causal else np.logical_and
    visible: Array = rule(steps["mask"](case.visible), allowed)
    return visible


def answer(case: Case) -> Formula:
    """Return the right output, its weights, the log-sum-exp of each row, and the scores."""
    arrays = [a.astype(np.float64) for a in case.arrays.values()]
    parts = RIGHT["project"](*arrays) if "x" in case.arrays else arrays
    if case.heads > 1:
        parts = [RIGHT["split"](a, case.heads) for a in parts]
    q, k, v = parts
    visible = _visible(case, RIGHT, q.shape[-2], k.shape[-2])
    steps = formula(q, k, v, scale=q.shape[-1] ** -0.5, visible=visible)
    out = RIGHT["join"](steps.out) if case.heads > 1 else steps.out
    return steps._replace(out=out if case.output is None else out @ case.output)


def same(a: Array, *_: Any) -> Array:
    """Return the first argument: the step is left out."""
    return a


def flip(a: Array) -> Array:
    """Swap the last two axes."""
    return np.swapaxes(a, -1, -2)


def softmax(s: Array) -> Array:
    """Softmax over the last axis."""
    e: Array = np.exp(s - s.max(axis=-1, keepdims=True))
    weights: Array = e / e.sum(axis=-1, keepdims=True)
    return weights


def split(a: Array, heads: int) -> Array:
    """(..., T, H * d) -> (..., H, T, d)."""
    return np.swapaxes(a.reshape(*a.shape[:-1], heads, -1), -3, -2)


def join(a: Array) -> Array:
    """(..., H, T, d) -> (..., T, H * d)."""
    a = np.swapaxes(a, -3, -2)
    return a.reshape(*a.shape[:-2], -1)


RIGHT: Steps = MappingProxyType(
    {
        "project": lambda x, w_q, w_k, w_v: (x @ w_q, x @ w_k, x @ w_v),
        "choose": lambda q, k, v: (q, k, v),
        "sized": same,
        "split": split,
        "arranged": lambda q, k, v: (q, k, v),
        "score": lambda q, k: q @ flip(k),
        "scale": lambda s, n: s / np.sqrt(n.d),
        "mask": same,
        "sees": lambda i, j, first: j <= first + i,
        "not_causal": lambda i, j: (i >= 0) & (j >= 0),
        "both": np.logical_and,
        "hide": lambda s, visible: np.where(visible, s, -np.inf),
        "shift": lambda s: s - s.max(axis=-1, keepdims=True),
        "exp": np.exp,
        "normalise": lambda e: e / e.sum(axis=-1, keepdims=True),
        "blank": lambda w, visible: np.where(visible.any(axis=-1, keepdims=True), w, 0.0),
        "weigh": lambda w, v, n: w @ v,
        "join": join,
        "output": lambda out, w_o: out @ w_o,
    }
)
