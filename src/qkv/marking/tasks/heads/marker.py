"""Run a learner's multi-head attention and say in words which mistake it made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.marking.draws import generator
from qkv.marking.engine import Group
from qkv.marking.findings import Finding, of_mistake
from qkv.marking.outcome import kind_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention import findings
from qkv.marking.tasks.attention import mistakes as attention
from qkv.marking.tasks.attention.inputs import CORE, Case, drawn
from qkv.marking.tasks.attention.learner import learner
from qkv.marking.tasks.attention.marker import (
    AttentionMarking,
    adds_its_mask,
    first_calls,
    is_made_for_numbers,
    refused_batch,
)
from qkv.marking.tasks.heads import mistakes
from qkv.marking.tasks.task import Task

_NAMES = "x,w_q,w_k,w_v"


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """All the tests in their order."""
    call = learner(function, _NAMES)
    if "heads" not in call.options:
        raise TypeError(
            f"check: {call.name} has no parameter for the number of heads: call it num_heads"
        )
    m = AttentionMarking("heads", call, _NAMES)
    (three,) = drawn(_NAMES, 300, (4, 6, 6, 9))
    # a head is 2 wide, as many as there are words; 2; and 5
    even, square, wide = drawn(_NAMES, 310, (2, 4, 4, 4), (4, 6, 6, 6), (3, 4, 10, 10))
    some = [
        *m.cases["two heads"],
        *(replace(case, heads=n) for case, n in ((even, 2), (square, 3), (wide, 2))),
    ]
    others = [replace(three, heads=3)]
    known = (*attention.HEADS, *mistakes.HEADS)
    if "output" in call.needed:  # one that changes nothing, until it is tried by itself
        some, others = ([_unprojected(case) for case in cases] for cases in (some, others))
        known = (*known, *mistakes.PROJECTED)
    m.cases[CORE] = some
    m.of_weight_one = drawn(_NAMES, 320, (1, 4, 4, 4))
    first_calls(m)
    if m.wrong:
        return m.result()
    known = (*known, *attention.core(_NAMES))
    m.test(Group("two heads and three", some, known))
    m.test(Group("values of another size", others, (*known, *attention.SHAPES)))
    if "output" in call.options:
        _try_output(m)
    else:
        m.untried.append("w_o")
    m.ask("scores of 1000", attention.LARGE, findings.large_scores)
    if not m.wrong:
        _try_batches(m)
    if "mask" in call.options and not m.wrong:
        _try_mask(m)
    if not m.wrong:
        _try_what_does_not_divide(m, replace(three, heads=4))
    if "mask" not in call.options:
        m.untried.append("mask")
    return m.result()


def _unprojected(case: Case) -> Case:
    """With a projection that changes nothing."""
    return replace(case, output=np.eye(case.arrays["w_v"].shape[-1]))


def _try_output(m: AttentionMarking) -> None:
    """What joins the heads, square and not."""
    two, four = m.cases["two heads"]
    rng = generator(400)

    def projected(case: Case, width: int) -> Case:
        joined = case.arrays["w_v"].shape[-1]
        return replace(case, output=rng.integers(-4, 5, (joined, width)) / 2)

    cases = [projected(two, 2), projected(four, 4), projected(four, 3)]
    m.test(Group("the output projection", cases, mistakes.PROJECTED))


def _try_batches(m: AttentionMarking) -> None:
    """Texts side by side, of one head and of two."""
    refused = refused_batch(m)
    if refused is None:
        m.ask("batches", attention.BATCHES, findings.wrong_batch)
        batch = replace(m.cases["batches"][-1], heads=2)
        run = m.call(batch)
        misshapen = run.out is None or run.out.shape != run.right.shape
        refused = run if misshapen and not m.wrong else None
        if refused is None:
            m.test(Group("two heads on a batch", [batch], (), findings.wrong_batch))
    if refused is not None:
        m.tried.append("a batch")
        m.find(of_mistake(mistakes.ONE_TEXT, refused))


def _try_mask(m: AttentionMarking) -> None:
    """The same mask for every head."""
    (_, case) = m.cases["two heads"]
    masked = replace(
        case, mask=np.array([[True, False, True], [True, True, False], [1, 0, 0]], bool)
    )
    known = (*attention.MASK, *attention.HIDING)
    as_bool, adding = m.run([masked]), replace(m.call, adds_mask=True, unmasked=0.0)
    seen = np.array([[True] * 3, [False] * 3, [True] * 3])
    (nothing,) = m.run([replace(case, mask=seen)], adding)
    for_numbers = m.call.number_as_mask or is_made_for_numbers(nothing)
    if adds_its_mask(m, as_bool, m.run([masked], adding), known, for_numbers):
        m.call = adding
    m.test(Group("a mask on two heads", [masked], known, may_refuse=True))


def _try_what_does_not_divide(m: AttentionMarking, case: Case) -> None:
    """Four heads of six columns: an error is right, and an output is not."""
    run = m.call.refused(case)
    if run.error is not None:
        m.tried.append("heads that do not divide the columns")
        return
    given = kind_of(run.returned) if run.out is None else f"an output of the shape {run.out.shape}"
    m.find(
        Finding(
            "heads-not-divided",
            "columns that cannot be shared out evenly are dropped without a word",
            f"6 columns in 4 heads give {given}, not an error",
            'if w_q.shape[-1] % num_heads: raise ValueError("...")',
            "fragile",
            nudge="Ask for 4 heads of 6 columns.",
            where="the size of a head: is there a remainder?",
            run=None,
        )
    )


HEADS = Task(
    name="heads",
    looks_for=("multi_head_attention", "multihead_attention", "many_heads"),
    signature="multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads) -> (T, D), or without w_o",
    asks="x (T, D), or a batch (B, T, D), through w_q, w_k, w_v (D, heads * size), split into"
    " heads, each attended on its own, joined, and through w_o (heads * size, D)",
    mark=_mark,
    also=("attention", "self_attention"),
)
