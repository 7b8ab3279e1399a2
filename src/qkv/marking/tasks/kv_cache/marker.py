"""Mark a step function: called part by part, does it give what the whole run gives?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import generator, per_seed
from qkv.marking.engine import Group
from qkv.marking.functions import options_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.kv_cache.mistakes import (
    CACHING,
    EXCHANGED,
    MASKING,
    NOT_FILLED,
    PLACING,
    RECOMPUTED,
)
from qkv.marking.tasks.kv_cache.steps import RIGHT, compute
from qkv.marking.tasks.mistakes.formula import LARGE, core
from qkv.marking.tasks.mistakes.slips import OF_CAUSAL
from qkv.marking.tasks.stepping import Run, StepMarking
from qkv.marking.tasks.task import Task


def _drawn(seed: int, parts: tuple[int, ...], sizes: tuple[int, int, int]) -> Run:
    """Multiples of 1/2 between -2 and 2, for word vectors and projections of sizes D, d, dv."""
    width, d, dv = sizes
    rng = generator(seed)
    shapes = {"x": (sum(parts), width), "w_q": (width, d), "w_k": (width, d), "w_v": (width, dv)}
    return Run({name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}, parts)


def _cases(seed: int, *parts: tuple[int, ...]) -> list[Run]:
    """These ways to hand a text over, each in two sizes."""
    return [
        _drawn(seed + 2 * n + bool(sizes[0] > 2), one, sizes)
        for n, one in enumerate(parts)
        for sizes in ((2, 2, 2), (4, 5, 5))
    ]


# scores of 0 and 1000: word by word, then both words at once
_LARGE = {"x": [[1, 0], [1, 1]], "w_q": [[1000], [0]], "w_k": [[0], [1]], "w_v": [[1], [1]]}
_LARGE_ARRAYS = {name: np.array(rows, dtype=float) for name, rows in _LARGE.items()}

LARGE_SCORES = Group(
    "scores of 1000", [Run(_LARGE_ARRAYS, (1, 1)), Run(_LARGE_ARRAYS, (2,))], LARGE
)

KNOWN = (*CACHING, *MASKING, *core("x,w_q,w_k,w_v"), *OF_CAUSAL, EXCHANGED)


@per_seed
def word_by_word() -> list[Run]:
    """One word in each call, smallest first."""
    return _cases(10, (1, 1), (1, 1, 1))


@per_seed
def several() -> list[Run]:
    """Several words in a call."""
    return [
        *_cases(110, (2,)),
        *_cases(20, (2, 1), (3, 1, 1)),
        *_cases(30, (1, 2), (2, 2), (1, 3, 2)),
    ]


def _with_positions(case: Run) -> Run:
    """The same text with a table of positions: some more rows than words, the last one zeros."""
    words, width = case.arrays["x"].shape
    table = np.arange(1.0, 1 + (words + 3) * width).reshape(-1, width) % 5 / 2
    table[-1] = 0
    return replace(case, positions=table)


@per_seed
def _positions() -> Group:
    cases = _cases(40, (1, 1), (2, 1), (1, 2, 1))
    return Group("positions", [_with_positions(case) for case in cases], PLACING)


def _call(step: Callable[..., Any], case: Run, x: Array, cache: Any) -> Any:
    """What a step gives for these words and this cache."""
    given = {} if case.positions is None else {"positions": case.positions}
    return step(x, cache, *(case.arrays[name] for name in ("w_q", "w_k", "w_v")), **given)


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark a step function with a cache."""
    names = ("x", "cache", "w_q", "w_k", "w_v")
    options, _ = options_of(function, names, {"positions": ("positions",)})
    returns = "return out, (k, v)  # all keys and values so far"
    smallest = word_by_word()[0]
    m = StepMarking("kv-cache", function, _call, compute, RIGHT, returns=returns, smallest=smallest)
    m.first_calls()
    if m.wrong:
        return m.result()
    m.test_in_parts(word_by_word(), several(), (NOT_FILLED, *KNOWN) if m.gives_none else KNOWN)
    m.test(LARGE_SCORES)
    if "positions" in options:
        m.test(_positions())
    else:
        m.untried.append("positions")
    others = [_with_other_projections(case) for case in (smallest, several()[-1])]
    m.last_calls(others, [RECOMPUTED])
    return m.result()


def _with_other_projections(case: Run) -> Run:
    """The same text, with keys and values that are projected otherwise from the second call on."""
    w = {name: case.arrays[name] for name in ("w_q", "w_k", "w_v")}
    return replace(case, later=w | {"w_k": w["w_k"] + 1, "w_v": w["w_v"] - 2})


KV_CACHE = Task(
    name="kv-cache",
    looks_for=("step", "attention_step", "kv_cache_step"),
    signature="step(x, cache, w_q, w_k, w_v) -> (out, cache)",
    asks="causal attention of the n new words x (n, D), given what earlier calls kept (None at"
    " first); out (n, dv); optional: positions (N, D), of which a row is added to each word",
    mark=_mark,
    everyday=("step",),
)
