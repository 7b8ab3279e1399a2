"""The task `softmax`: turn scores into weights that sum to 1 along the last axis."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import Group, Marking, by_seed, generator, nothing_known
from qkv_marking._errors import in_words
from qkv_marking._findings import Symptom
from qkv_marking._formula import Lines
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import Outcome, options_of
from qkv_marking.tasks._table import Table, restrict
from qkv_marking.tasks._task import Computation, StepwiseMarking, make_task
from qkv_marking.tasks.attention import mistakes
from qkv_marking.tasks.attention.symptoms import large_scores

_TABLE = Table(__package__, "softmax", mistakes.HELPERS)
RIGHT = _TABLE.formula.lines
RETURN = "return e / e.sum(axis=-1, keepdims=True)"


@dataclass(frozen=True)
class Scores:
    """One call: the scores, and the axis if it is not the last axis."""

    x: Array
    axis: int | None = None

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        return {"x": self.x} if self.axis is None else {"x": self.x, "axis": self.axis}


def compute(case: Scores, steps: Lines) -> Array:
    """Compute the weights along the axis of the case with these lines."""
    values = {"x": case.x.astype(np.float64), "axis": -1 if case.axis is None else case.axis}
    out: Array = _TABLE.formula.run(values, steps)["out"]
    return out


def _take_ways(*names: str) -> tuple[Mistake, ...]:
    """Return mistakes of attention, with only the ways that also apply to softmax."""
    return tuple(restrict(one, _TABLE.formula) for one in mistakes.TABLE.group(*names))


CORE = (
    *_take_ways("softmax-rows"),
    mistakes.TABLE.mistake("softmax-twice", {"done": "out = softmax(weights)"}),
    *_TABLE.group("weights"),
    *_take_ways("softmax-hard"),
    *_TABLE.group("softmax-rounded"),
    *_take_ways("whole-weights", "integer-exponentials", "overwritten-sum", "sum-not-reset"),
    *_TABLE.group("loops"),
)
BATCHES = _TABLE.group("batches")
LARGE = (*_take_ways("softmax-no-max", "softmax-global-max"), *_TABLE.group("large"))
AXIS = _TABLE.group("axis-ignored")

_ROWS: list[Any] = [
    [[1, 0], [3, 1]],
    [[1, 0, 2], [-1, 3, 1], [0.5, 1, -2]],
    [[2, -1, 0.5], [0, 1, 4]],
]
_MASKED = [[[0, -np.inf], [1, 2]], [[-np.inf, 1, 0], [3, -np.inf, -np.inf]]]
_LARGE = [[[1000, 0], [0, 1]], [[2000, 1999], [0, 0]], [[-1000, -1001], [1000, -1000]]]
_BATCH = [[[1, 0, 2], [0, 3, 1]], [[2, 2, -1], [0.5, 0, 1]]]
_FLOATS = "out = np.zeros(x.shape)  # not zeros_like(x); or x = x.astype(float) first"
_NOTHING = np.array([[0.0, 1.0], [-np.inf, -np.inf]])


def _draw(number: int, rows: Any) -> Any:
    """Return `rows` if the random seed is 0; otherwise, return random scores of the same shape."""
    shape = np.shape(rows)
    if not by_seed():
        return rows
    return generator(number).permutation(np.arange(-6, 10))[: np.prod(shape)].reshape(shape) / 2


def _scores(rows: Any, axis: int | None = None) -> Scores:
    return Scores(np.array(rows, dtype=np.float64), axis)


def _minus_inf(wrong: Outcome) -> Symptom:
    """Describe a wrong result for a score of -inf."""
    finding = _TABLE.finding("softmax-minus-inf", wrong)
    return replace(finding, shows=in_words(wrong.error)) if wrong.error else finding


def _one_row(wrong: Outcome) -> Symptom | None:
    """Describe a function that raises an error for more than one row."""
    if wrong.error is None:
        return None
    return _TABLE.finding("one-row-only", wrong, error=in_words(wrong.error))


def _mark(function: Function) -> Marking:
    """Run all tests in order."""
    options, needed = options_of(function, ("x",), {"axis": ("axis", "dim")})

    def call(case: Scores) -> Any:
        axis = -1 if case.axis is None and needed else case.axis
        return function(case.x, **({} if axis is None else {options["axis"]: axis}))

    m = StepwiseMarking(Computation("softmax", compute, RIGHT, RETURN), function, call)
    rows = [_scores(_draw(number, rows)) for number, rows in enumerate(_ROWS)]
    m.of_weight_one = [_scores([[2]])]
    m.first_call(rows[0])
    if m.wrong:
        return m
    batch, row = _draw(3, _BATCH), _scores(rows[1].x[0])
    takes_row = m.call(row).is_right
    m.test(Group("rows of scores", rows, CORE, _one_row if takes_row else nothing_known))
    m.test(Group("one row", [row], may_refuse=True, if_right=True))
    m.test(Group("a batch", [_scores(batch)], BATCHES, may_refuse=True, if_right=True))
    m.test(Group("scores of 1000", [*map(_scores, _LARGE)], LARGE, large_scores))
    if not m.wrong:
        m.test(Group("scores of -inf", [*map(_scores, _MASKED)], (), _minus_inf))
        nothing = m.call(Scores(_NOTHING))
        if nothing.error is not None or nothing.out is None or np.isnan(nothing.out).any():
            m.limits.append("A row of only -inf gives nan: attention has to set its output to 0.")
        m.whole_numbers(Scores(np.array(_ROWS[0], dtype=np.int64)), _FLOATS)
    if "axis" in options:
        m.test(Group("another axis", [_scores(rows[2].x, 0), _scores(batch, 1)], AXIS))
    else:
        m.untried.append("axis")
    return m


SOFTMAX = make_task("softmax", _mark)
