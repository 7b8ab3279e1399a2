"""The tasks `mask` and `batched-mask`: attention with a mask, or a function for a causal mask."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import Group, Marking, by_seed, generator
from qkv_marking._errors import WrongParameters
from qkv_marking._findings import Symptom, of_mistake
from qkv_marking._formula import Lines
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import Outcome, close, name_of, numbers, options_of, outcome
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import make_task, pick
from qkv_marking.tasks.attention import attention_tasks, mistakes
from qkv_marking.tasks.attention.steps import CORE, Trial, learner
from qkv_marking.tasks.attention.symptoms import large_scores


@dataclass(frozen=True)
class Length:
    """One call: the number of words."""

    length: int

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        return {"length": self.length}


_TEXTS = Table(__package__, "mask")
RIGHT = _TEXTS.formula.lines


def compute(case: Length, steps: Lines) -> Array:
    """Return a matrix (L, L) with 1 where query i sees key j, and 0 elsewhere."""
    visible: Array = _TEXTS.formula.run({"length": case.length, "q_offset": 0}, steps)["visible"]
    return visible.astype(np.float64)


LINE = "mask = np.tril(np.ones((length, length), dtype=bool))  # True = may attend"
KNOWN = (*mistakes.causal(mistakes.OFF, LINE), *_TEXTS.group("causal-itself", "forgotten"))

_TRUE_MASKS = _TEXTS.mistake("mask-true-hides")
_NUMBERS = _TEXTS.mistake("mask-of-numbers")
_FINITE = _TEXTS.mistake("mask-finite")


def _read(out: Array) -> tuple[Array, Mistake | None]:
    """Convert a mask to ones and zeros; also return the `Mistake` if the mask has wrong numbers."""
    values = {*np.unique(out).tolist()}
    if out.dtype == bool:
        return out.astype(np.float64), None
    if values <= {0.0, -np.inf} and out.dtype.kind == "f":
        return (out == 0).astype(np.float64), None
    if values <= {0.0, 1.0}:
        return out.astype(np.float64), _NUMBERS
    if values <= {0.0, min(values)} and min(values) <= -1e3:
        return (out == 0).astype(np.float64), _FINITE
    return out, None


def _all_or_nothing(runs: list[Outcome]) -> Symptom | None:
    """Return a finding if a function's causal masks contain only ones, or only zeros."""
    outs = [run.out for run in runs]
    for number, name in ((1, "causal-everything"), (0, "causal-nothing")):
        if all(out is not None and out.size and (out == number).all() for out in outs):
            return _TEXTS.finding(name, runs[0])
    return None


def _mark_causal(function: Function) -> Marking:
    """Test a function that makes a causal mask.

    Raises:
        TypeError: the function cannot be called with a length.
    """
    options_of(function, ("length",), {})
    in_numbers: list[Mistake] = []

    def call(case: Length) -> Outcome:
        run = outcome(case, lambda copied: function(copied.length), compute(case, RIGHT))
        if run.out is None:
            return run
        visible, mistake = _read(run.out)
        inverted = run.out.dtype == bool and np.array_equal(1 - visible, run.right)
        if inverted and (case.length > 1 or _TRUE_MASKS in in_numbers):
            visible, mistake = run.right, _TRUE_MASKS
        if mistake is not None:
            in_numbers.append(mistake)
        return replace(run, out=visible)

    m = Marking("mask", name_of(function), call, compute, RIGHT, returns="return mask")
    m.nothing_done = _all_or_nothing
    m.first_call(Length(2))
    if m.wrong:
        return m
    longest = int(generator(5).integers(6, 12)) if by_seed() else 5
    lengths = [Length(2), Length(3), Length(longest)]
    m.test(Group(f"masks of 2, 3 and {longest} words", lengths, KNOWN))
    if in_numbers and not m.wrong:
        run, visible = m.runs[0], m.runs[0].right.astype(bool)
        right = np.where(visible, 0.0, -np.inf) if in_numbers[0] is _FINITE else visible
        m.find(of_mistake(in_numbers[0], run, {"yours": numbers(run.returned), "right": right}))
    m.test(Group("a mask of one word", [Length(1)], may_refuse=True, if_right=True))
    return m


def _make_case(query: Any, key: Any, mask: Any) -> Trial:
    """Return a case with this mask; the value of key 0 is 1, and the value of key 1 is 2."""
    arrays = (np.array(rows, dtype=np.float64) for rows in (query, key, [[1], [2]]))
    return Trial(dict(zip(("query", "key", "value"), arrays, strict=True)), mask=np.array(mask))


# First case: the scores are [[1000, 0], [-1000, 0]], and the larger score of each row is masked.
# Second case: the scores are [[636, 0], [-636, -636], [25, 0]], and these scores are masked: 636
# in row 0, the second score in row 1, and 25 in row 2. Together, the cases tell two mistakes
# apart: masked scores are set to a finite number instead of -inf, or the maximum of a row is taken
# over all scores, including the masked scores.
_LARGE = (
    _make_case([[1000], [-1000]], [[1], [0]], [[False, True], [True, False]]),
    _make_case(
        [[900, 0], [0, -900], [36, 0]],
        [[1, 1], [0, 1]],
        [[False, True], [True, False], [False, True]],
    ),
)


def _nothing_but_nan(wrong: Outcome) -> Symptom | None:
    """Describe a function that returns only nan if it is called without a mask."""
    if wrong.out is None or wrong.out.shape != wrong.right.shape:
        return None
    if wrong.case.mask is not None or not np.isnan(wrong.out).all():
        return None
    (times_inf,) = pick(mistakes.WEAK, "mask-times-inf")
    return of_mistake(times_inf, wrong)


def _no_row_left(m: attention_tasks.AttentionMarking) -> Symptom | None:
    """Describe a function that inverts the mask before softmax, but not the mask after softmax."""
    values = (run.case.arrays["value"] for run in m.runs)
    means = [np.broadcast_to(v.mean(axis=0), v.shape) for v in values]  # L == S
    pairs = zip(m.runs, means, strict=True)
    if not all(run.out is not None and close(run.out, mean) for run, mean in pairs):
        return None
    masked = m.on("a mask")
    if any(run.out is None or run.out.any() for run in masked):
        return None
    (inverted,) = pick(mistakes.MASK, "mask-inverted")
    shows = "queries that see all keys get equal weights; all other queries get only weights of 0"
    return of_mistake(replace(inverted, shows=shows), masked[0])


def _mark_masked(function: Function, task: str, *, batches: bool) -> Marking:
    """Test masked attention; if `batches` is True, the function must accept batches.

    Raises:
        TypeError: the function has no parameter for a mask.
    """
    call = learner(function, "qkv")
    if "mask" not in call.options:
        raise WrongParameters(
            f"check: {call.name} has no parameter for a mask: name a parameter mask, attn_mask or"
            " attention_mask"
        )
    m = attention_tasks.AttentionMarking(task, call, "qkv", batches)
    m.first_calls()
    if m.wrong:
        return m
    m.ask(
        CORE,
        mistakes.core("qkv"),
        otherwise=lambda wrong: _nothing_but_nan(wrong) or _no_row_left(m),
    )
    some = np.array([[True, True, True], [True, False, True], [False, True, True]])
    m.cases["a mask"].append(
        replace(m.cases["a mask"][1], mask=some)
    )  # the first query sees every key
    batches = not m.wrong and m.takes_batches()
    each_pair = m.try_masks(batches, needed=True)
    if each_pair and not m.wrong:
        known = (*mistakes.LARGE, *mistakes.LARGE_MASK)
        m.test(Group("a mask on scores of 1000", _LARGE, known, large_scores))
    if each_pair and batches:
        padding = np.array([[[True, True, False]], [[True, False, True]]])  # (B, 1, S)
        padded = [replace(m.cases["batches"][-1], mask=padding)]
        may_refuse = not m.needs_batches
        m.test(Group("padding of two texts", padded, mistakes.OF_TEXTS, may_refuse=may_refuse))
    m.try_causal(each_pair)
    return m


def _mark(function: Function) -> Marking:
    """Test a function as masked attention, or as causal attention if it takes no mask."""
    try:
        return _mark_masked(function, "mask", batches=False)
    except TypeError as error:
        try:
            return _mark_causal(function)
        except TypeError:
            raise error from None


MASK = make_task("mask", _mark)
BATCHED_MASK = make_task(
    "batched-mask", lambda function: _mark_masked(function, "batched-mask", batches=True)
)
