"""The right answer, with all that comes before it."""

from __future__ import annotations

import numpy as np

from qkv.attend.formula import Steps as Formula
from qkv.attend.formula import formula
from qkv.marking.tasks.attention.inputs import Case
from qkv.marking.tasks.attention.steps import RIGHT


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
    out = RIGHT["join"](steps.out) if case.heads > 1 else steps.out
    return steps._replace(out=out if case.output is None else out @ case.output)
