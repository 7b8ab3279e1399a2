"""Run a learner's masked attention and say in words which mistake it made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.marking.engine import Group
from qkv.marking.findings import Finding, of_mistake
from qkv.marking.outcome import Outcome, close
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention import findings
from qkv.marking.tasks.attention import mistakes as attention
from qkv.marking.tasks.attention.inputs import CORE, Case
from qkv.marking.tasks.attention.learner import learner
from qkv.marking.tasks.attention.marker import (
    AttentionMarking,
    first_calls,
    takes_batches,
    try_masks,
)
from qkv.marking.tasks.mask import mistakes


def _large() -> Case:
    """Scores [[1000, 0], [-1000, 0]], of which the larger one of each row is hidden."""
    query, key, value = (
        np.array([[1000.0], [-1000]]),
        np.array([[1.0], [0]]),
        np.array([[1.0], [2]]),
    )
    hidden = np.array([[False, True], [True, False]])
    return Case({"query": query, "key": key, "value": value}, mask=hidden)


def _far_above_and_equal() -> Case:
    """Scores [[636, 0], [-636, -636], [25, 0]]; hidden are 636, one of the equal ones, and 25.

    They tell a number that stands for hidden from a maximum that is taken of hidden scores.
    """
    query, key = np.array([[900.0, 0], [0, -900], [36, 0]]), np.array([[1.0, 1], [0, 1]])
    hidden = np.array([[False, True], [True, False], [False, True]])
    return Case({"query": query, "key": key, "value": np.array([[1.0], [2]])}, mask=hidden)


def _nothing_but_nan(wrong: Outcome) -> Finding | None:
    """A mask that hides nothing, and makes nan of everything."""
    if wrong.out is None or wrong.out.shape != wrong.right.shape:
        return None
    if wrong.case.mask is not None or not np.isnan(wrong.out).all():
        return None
    (times_inf,) = (one for one in mistakes.WEAK if one.key == "mask-times-inf")
    return of_mistake(times_inf, wrong)


def _no_row_left(m: AttentionMarking, wrong: Outcome) -> Finding | None:
    """One that hides the scores of what is visible, and then the weights of what is not."""
    values = (run.case.arrays["value"] for run in m.runs)
    means = [np.broadcast_to(v.mean(axis=0), v.shape) for v in values]  # as many queries as keys
    if not all(
        run.out is not None and close(run.out, mean)
        for run, mean in zip(m.runs, means, strict=True)
    ):
        return None
    masked = m.on("a mask")
    if any(run.out is None or run.out.any() for run in masked):
        return None
    (inverted,) = (one for one in attention.MASK if one.key == "mask-inverted")
    shows = "all scores are as low where everything is visible, and no weight is left where not"
    return of_mistake(replace(inverted, shows=shows), masked[0])


def mark_masked(function: Callable[..., Any], task: str, *, batches: bool) -> CheckResult:
    """Attention that must take a mask, and batches if these are asked for.

    Raises:
        TypeError: it takes none.
    """
    call = learner(function, "qkv")
    if "mask" not in call.options:
        raise TypeError(
            f"check: {call.name} has no parameter for a mask: call it mask, attn_mask or"
            " attention_mask"
        )
    m = AttentionMarking(task, call, "qkv", batches=batches)
    first_calls(m)
    if m.wrong:
        return m.result()
    m.ask(
        CORE,
        attention.core("qkv"),
        lambda wrong: _nothing_but_nan(wrong) or _no_row_left(m, wrong),
    )
    m.explained = m.explained or any(one.key.startswith("mask-") for one in m.found)
    some = np.array([[True, True, True], [True, False, True], [False, True, True]])
    m.cases["a mask"].append(replace(m.cases["a mask"][1], mask=some))  # a row that sees everything
    batches = not m.wrong and takes_batches(m)
    each_pair = try_masks(m, batches, mistakes.WEAK, replace(attention.PER_KEY, kind="wrong"))
    if each_pair and not m.wrong:
        known = (*attention.LARGE, *mistakes.LARGE)
        large = [_large(), _far_above_and_equal()]
        m.test(Group("a mask on scores of 1000", large, known, findings.large_scores))
    if each_pair and batches:
        two = m.cases["batches"][-1]
        padding = np.array([[[True, True, False]], [[True, False, True]]])  # (B, 1, S)
        padded = replace(two, mask=padding)
        m.test(
            Group("padding of two texts", [padded], mistakes.TEXTS, may_refuse=not m.needs_batches)
        )
    if "causal" in call.options:
        m.ask("a causal mask", (*attention.CAUSAL, *attention.HIDING, *attention.EMPTY))
        if each_pair:
            m.ask("both masks together", attention.BOTH, may_refuse=True)
    return m.result()
