"""The right answer, and whether what a function gave is that, or what a known mistake gives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np

from qkv.arrays import Array
from qkv.attend.formula import Steps as Formula
from qkv.attend.formula import formula
from qkv.marking.inputs import Case
from qkv.marking.learner import Outcome
from qkv.marking.mistakes import Mistake
from qkv.marking.steps import RIGHT, Steps, compute

# of the largest value: what float32 rounding needs, and far below what any mistake changes
TOLERANCE = 2e-6
HALF_TOLERANCE = 4e-3  # what float16 needs


def close(got: Array, want: Array) -> bool:
    """Equal in shape, in nan and inf, and but for rounding in every number."""
    if got.shape != want.shape:
        return False
    finite = np.abs(want[np.isfinite(want)])
    size = max(1.0, float(finite.max(initial=0.0)))
    off = size * (HALF_TOLERANCE if got.dtype == np.float16 else TOLERANCE)
    return bool(np.allclose(got, want, rtol=0, atol=off, equal_nan=True))


def differ(a: Array | None, b: Array | None) -> bool:
    """Two outputs that are both there and are not the same."""
    return a is not None and b is not None and not close(a, b)


def answer(case: Case) -> Formula:
    """What is right: the output, its weights, the log-sum-exp of each row, and all before them."""
    arrays = [a.astype(np.float64) for a in case.arrays.values()]
    parts = RIGHT["project"](*arrays) if "x" in case.arrays else arrays
    if case.heads > 1:
        parts = [RIGHT["split"](a, case.heads) for a in parts]
    q, k, v = parts
    i, j = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
    visible = j <= i + (case.q_offset or 0) if case.causal else np.array(True)
    if case.visible is not None:
        visible = visible & case.visible
    steps = formula(q, k, v, scale=q.shape[-1] ** -0.5, visible=visible)
    return steps._replace(out=RIGHT["join"](steps.out)) if case.heads > 1 else steps


def is_right(run: Outcome) -> bool:
    """Did the function give the right answer?"""
    return run.out is not None and close(run.out, answer(run.case).out)


def first_wrong(runs: list[Outcome]) -> Outcome:
    """The smallest run that went wrong: runs are in order of size."""
    return next((run for run in runs if not is_right(run)), runs[0])


def reproduces(run: Outcome, steps: Steps) -> bool:
    """Do these steps give what a call of the function gave?"""
    try:
        predicted = compute(run.case, steps)
    except (ValueError, IndexError):  # shapes that do not fit: the function should have failed too
        return run.error is not None
    return run.out is not None and close(run.out, predicted)


def explain(
    runs: list[Outcome], steps: Steps, known: Sequence[Mistake]
) -> tuple[Steps, list[Mistake]] | None:
    """No mistake if these steps reproduce every run, or the first one that does, or else two."""
    each = [([mistake], variant) for mistake in known for variant in mistake.variants]
    pairs = (
        ([*one, *other], {**first, **second})
        for (one, first), (other, second) in combinations(each, 2)
        if one != other and not first.keys() & second.keys()
    )
    for made, variant in chain([([], {})], each, pairs):
        done = {**steps, **variant}
        if all(reproduces(run, done) for run in runs):
            return done, made
    return None
