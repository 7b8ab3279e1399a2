"""Run a learner's masked attention and say in words which mistake it made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.marking.engine import Group
from qkv.marking.findings import Finding, of_mistake
from qkv.marking.outcome import Outcome
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


def _nothing_but_nan(wrong: Outcome) -> Finding | None:
    """A mask that hides nothing, and makes nan of everything."""
    if wrong.out is None or wrong.out.shape != wrong.right.shape:
        return None
    if wrong.case.mask is not None or not np.isnan(wrong.out).all():
        return None
    (times_inf,) = (one for one in mistakes.WEAK if one.key == "mask-times-inf")
    return of_mistake(times_inf, wrong)


def mark_masked(function: Callable[..., Any]) -> CheckResult:
    """Attention that must take a mask.

    Raises:
        TypeError: it takes none.
    """
    call = learner(function, "qkv")
    if "mask" not in call.options:
        raise TypeError(
            f"check: {call.name} has no parameter for a mask: call it mask, attn_mask or"
            " attention_mask"
        )
    m = AttentionMarking("mask", call, "qkv")
    first_calls(m)
    if m.wrong:
        return m.result()
    m.ask(CORE, attention.core("qkv"), _nothing_but_nan)
    some = np.array([[True, True, True], [True, False, True], [False, True, True]])
    m.cases["a mask"].append(replace(m.cases["a mask"][1], mask=some))  # a row that sees everything
    batches = not m.wrong and takes_batches(m)
    each_pair = try_masks(m, batches, mistakes.WEAK)
    if each_pair and not m.wrong:
        known = (*attention.LARGE, *mistakes.LARGE)
        m.test(Group("a mask on scores of 1000", [_large()], known, findings.large_scores))
    if each_pair and batches:
        two = m.cases["batches"][-1]
        padding = np.array([[[True, True, False]], [[True, False, True]]])  # (B, 1, S)
        padded = replace(two, mask=padding)
        m.test(Group("padding of two texts", [padded], mistakes.TEXTS, may_refuse=True))
    if "causal" in call.options:
        m.ask("a causal mask", (*attention.CAUSAL, *attention.HIDING, *attention.EMPTY))
        if each_pair:
            m.ask("both masks together", attention.BOTH, may_refuse=True)
    return m.result()
