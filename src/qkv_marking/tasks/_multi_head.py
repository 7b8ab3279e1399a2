"""The task `heads`: multi-head attention, with an optional output projection."""

from dataclasses import replace

import numpy as np

from qkv_marking._engine import Group, generator
from qkv_marking._errors import WrongParameters
from qkv_marking._mistake import Function
from qkv_marking._outcome import kind_of
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import make_task
from qkv_marking.tasks.attention import attention_tasks, mistakes, symptoms
from qkv_marking.tasks.attention.mistakes import BATCHES, HIDING, LARGE, MASK, SHAPES, core
from qkv_marking.tasks.attention.steps import CORE, Trial, draw, learner

_NAMES = "x,w_q,w_k,w_v"
_TEXTS = Table(__package__, "multi_head", mistakes.HELPERS, mistakes.FORMULA)
JOINING = (mistakes.IN_TURN, *mistakes.JOINED, *_TEXTS.group("joining"))
PROJECTED = (mistakes.OUTPUT_MISSING, *_TEXTS.group("projected"), mistakes.OF_OUTPUT[0])


def _mark(function: Function) -> attention_tasks.AttentionMarking:
    """Run all tests in order."""
    call = learner(function, _NAMES)
    if "heads" not in call.options:
        raise WrongParameters(
            f"check: {call.name} has no parameter for the number of heads: add a parameter "
            "num_heads"
        )
    m = attention_tasks.AttentionMarking("heads", call, _NAMES, batches=False)
    (words,) = draw(_NAMES, 300, (4, 6, 6, 9))
    # even: 2 words and heads of 2 columns; square: 4 words and heads of 2 columns; wide: 3 words
    # and heads of 5 columns
    even, square, wide = draw(_NAMES, 310, (2, 4, 4, 4), (4, 6, 6, 6), (3, 4, 10, 10))
    some = [
        *m.cases["two heads"],
        *(replace(case, heads=n) for case, n in ((even, 2), (square, 3), (wide, 2))),
    ]
    others = [replace(words, heads=3)]
    known = (*mistakes.HEADS, *JOINING)
    if "output" in call.needed:  # w_o is the identity matrix, except in _try_output
        some, others = ([_drop_w_o(case) for case in cases] for cases in (some, others))
        known = (*known, *PROJECTED)
    m.cases[CORE] = some
    m.of_weight_one = draw(_NAMES, 320, (1, 4, 4, 4))
    m.first_calls()
    if m.wrong:
        return m
    known = (*known, *core(_NAMES))
    m.test(Group("two heads and three heads", some, known))
    m.test(Group("values of another size", others, (*known, *SHAPES)))
    if "output" in call.options:
        _try_output(m)
    else:
        m.untried.append("w_o")
    m.ask("scores of 1000", LARGE, otherwise=symptoms.large_scores)
    if not m.wrong:
        _try_batches(m)
    if "mask" in call.options and not m.wrong:
        _try_mask(m)
    if not m.wrong:
        _try_uneven_heads(m, replace(words, heads=4))
    if "mask" not in call.options:
        m.untried.append("mask")
    return m


def _drop_w_o(case: Trial) -> Trial:
    """Set w_o of a case to the identity matrix."""
    return replace(case, output=np.eye(case.arrays["w_v"].shape[-1]))


def _try_output(m: attention_tasks.AttentionMarking) -> None:
    """Try square and non-square output projections."""
    two, four = m.cases["two heads"]
    rng = generator(400)

    def add_w_o(case: Trial, width: int) -> Trial:
        joined = case.arrays["w_v"].shape[-1]
        return replace(case, output=rng.integers(-4, 5, (joined, width)) / 2)

    cases = [add_w_o(two, 2), add_w_o(four, 4), add_w_o(four, 3)]
    m.test(Group("the output projection", cases, PROJECTED))


def _try_batches(m: attention_tasks.AttentionMarking) -> None:
    """Test a batch of two texts, first with one head, then with two heads."""
    refused = m.refused_batch()
    if refused is None:
        m.ask("batches", BATCHES, otherwise=symptoms.wrong_batch)
        batch = replace(m.cases["batches"][-1], heads=2)
        run = m.call(batch)
        misshapen = run.out is None or run.out.shape != run.right.shape
        refused = run if misshapen and not m.wrong else None
        if refused is None:
            m.test(Group("two heads on a batch", [batch], (), symptoms.wrong_batch))
    if refused is not None:
        m.tried.append("a batch")
        m.find(_TEXTS.finding("heads-one-text", refused))


def _try_mask(m: attention_tasks.AttentionMarking) -> None:
    """Try a mask that all heads share."""
    (_, case) = m.cases["two heads"]
    visible = np.array([[True, False, True], [True, True, False], [True, False, False]])
    empty_row = np.array([[True] * 3, [False] * 3, [True] * 3])
    masked, known = replace(case, mask=visible), (*MASK, *HIDING)
    as_bool, adding = m.run([masked]), replace(m.call, adds_mask=True, unmasked=0.0)
    (nothing,) = m.run([replace(case, mask=empty_row)], adding)
    for_numbers = m.call.number_as_mask or attention_tasks.is_made_for_numbers(nothing)
    if attention_tasks.adds_its_mask(m, (as_bool, m.run([masked], adding)), known, for_numbers):
        m.call = adding
    m.test(Group("a mask on two heads", [masked], known, may_refuse=True))


def _try_uneven_heads(m: attention_tasks.AttentionMarking, case: Trial) -> None:
    """Check that splitting six columns into four heads raises an error."""
    run = m.call.expect_error(case)
    if run.error is not None:
        m.tried.append("heads that do not divide the columns")
        return
    returned = kind_of(run.returned) if run.out is None else f"an output of shape {run.out.shape}"
    m.limits.append(f"6 columns and 4 heads raise no error, but give {returned}.")


HEADS = make_task("heads", _mark)
