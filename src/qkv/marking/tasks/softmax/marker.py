"""Run a learner's softmax and say in words which mistake it made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.marking.draws import by_seed, generator
from qkv.marking.engine import Group, Marking, nothing_known
from qkv.marking.errors import in_words
from qkv.marking.findings import Finding, of_mistake
from qkv.marking.outcome import Outcome, name_of, outcome
from qkv.marking.parameters import options_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.softmax.mistakes import AXIS, BATCHES, CORE, LARGE, LINES, RETURN
from qkv.marking.tasks.softmax.steps import RIGHT, Scores, compute
from qkv.marking.tasks.task import Task

_ROWS: list[Any] = [
    [[1, 0], [3, 1]],
    [[1, 0, 2], [-1, 3, 1], [0.5, 1, -2]],
    [[2, -1, 0.5], [0, 1, 4]],
]
_HIDDEN = [[[0, -np.inf], [1, 2]], [[-np.inf, 1, 0], [3, -np.inf, -np.inf]]]
_LARGE = [[[1000, 0], [0, 1]], [[2000, 1999], [0, 0]], [[-1000, -1001], [1000, -1000]]]
_BATCH = [[[1, 0, 2], [0, 3, 1]], [[2, 2, -1], [0.5, 0, 1]]]
_FLOATS = "out = np.zeros(x.shape)  # not zeros_like(x); or x = x.astype(float) first"
_NOTHING = np.array([[0.0, 1.0], [-np.inf, -np.inf]])


def _rows() -> list[Any]:
    """The scores of the first test, smallest first."""
    return [_drawn(number, rows) for number, rows in enumerate(_ROWS)]


def _drawn(number: int, rows: Any) -> Any:
    """These scores, or by a seed others of their shape, all different: multiples of 1/2."""
    shape = np.shape(rows)
    if not by_seed():
        return rows
    return generator(number).permutation(np.arange(-6, 10))[: np.prod(shape)].reshape(shape) / 2


def _scores(rows: Any, axis: int | None = None) -> Scores:
    return Scores(np.array(rows, dtype=np.float64), axis)


def _large(wrong: Outcome) -> Finding:
    """Right for small numbers only; Python's own math raises where NumPy gives inf and nan."""
    no_max, global_max, *_ = LARGE
    if isinstance(wrong.error, OverflowError | ZeroDivisionError):
        return of_mistake(no_max if isinstance(wrong.error, OverflowError) else global_max, wrong)
    says = "it is right for small numbers and goes wrong where scores are as large as 1000"
    shows = in_words(wrong.error) if wrong.error else "the output is another one, or has nan in it"
    return Finding(
        "large-scores", says, shows, LINES, run=wrong, kind="fragile", nudge=no_max.nudge
    )


def _minus_inf(wrong: Outcome) -> Finding:
    """A score of -inf is what a mask leaves."""
    return Finding(
        "softmax-minus-inf",
        "a score of -inf goes wrong; its weight should be 0, as exp(-inf) is",
        in_words(wrong.error) if wrong.error else "this is what a mask makes of a hidden place",
        LINES,
        run=wrong,
        kind="fragile",
        nudge="Give it a row with -inf in it, as a mask makes them.",
        where="what is done to the scores before exp",
    )


def _one_row(wrong: Outcome) -> Finding | None:
    """Does it take one row alone?"""
    if wrong.error is None:
        return None
    return Finding(
        "one-row-only",
        "it takes one row, not a matrix of them",
        in_words(wrong.error),
        LINES,
        run=wrong,
        nudge="Give it two rows, and see.",
        where="the maximum and the sum: of a row of the matrix, not of all there is",
    )


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """All the tests in their order."""
    options, needed = options_of(function, ("x",), {"axis": ("axis", "dim")})

    def call(case: Scores) -> Any:
        axis = -1 if case.axis is None and needed else case.axis
        return function(case.x, **({} if axis is None else {options["axis"]: axis}))

    def run(case: Scores) -> Outcome:
        return outcome(case, call, compute(case, RIGHT))

    m = Marking("softmax", name_of(function), run, compute, RIGHT, returns=RETURN)
    rows = [_scores(given) for given in _rows()]
    m.of_weight_one = [_scores([[2]])]
    m.first_call(rows[0])
    if m.wrong:
        return m.result()
    one = _scores(rows[1].x[0])
    takes_one = run(one).is_right
    m.test(Group("rows of scores", rows, CORE, _one_row if takes_one else nothing_known))
    m.test(Group("one row", [one], may_refuse=True, if_right=True))
    m.test(Group("a batch", [_scores(_drawn(3, _BATCH))], BATCHES, may_refuse=True, if_right=True))
    m.test(Group("scores of 1000", [_scores(given) for given in _LARGE], LARGE, _large))
    if not m.wrong:
        m.test(Group("scores of -inf", [_scores(given) for given in _HIDDEN], (), _minus_inf))
        nothing = run(Scores(_NOTHING))
        if nothing.error is not None or nothing.out is None or np.isnan(nothing.out).any():
            m.limits.append("A row of -inf alone gives nan: attention has to set its output to 0.")
        m.whole_numbers(Scores(np.array(_ROWS[0], dtype=np.int64)), _FLOATS)
    if "axis" in options:
        m.test(Group("another axis", [_scores(rows[2].x, 0), _scores(_drawn(3, _BATCH), 1)], AXIS))
    else:
        m.untried.append("axis")
    return m.result()


SOFTMAX = Task(
    name="softmax",
    looks_for=("softmax",),
    signature="softmax(x, axis=-1) -> weights, as many as x has scores",
    asks="exp(x) / exp(x).sum() along the last axis, of any x (..., S), however large",
    mark=_mark,
)
