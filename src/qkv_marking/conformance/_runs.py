"""Run cases in the process of the judged function, and compare results with error bounds."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._isolated import Ended, Isolated
from qkv_marking.conformance._random_arrays import Drawn, draw, float_type, values
from qkv_marking.conformance._reference import Expected, run
from qkv_marking.conformance.read_cases import Case
from qkv_marking.files.wire import unpack

_LOADING = 12  # The time limit for loading is this many times the time limit of a call.
_EXACT = 1e-13  # The allowed relative error for float64.
# The allowed relative error for float32, and its increase per unit of the largest score.
_RELATIVE, _OF_SCORES = 2e-6, 2.0**-23
_ROUNDINGS = 5  # Gradients have more rounding errors: their bound is multiplied by this number.
_JUDGED = 1e4  # Scores above this number do not increase the bound.


@dataclass(frozen=True, eq=False)
class CaseResult:
    """The result of one case.

    Attributes:
        case: the call.
        status: "right", "wrong", "fragile" or "refused". A case is fragile if its result is right
            except for inputs with NaN or infinity, rows that see nothing, or bits that differ.
        error: the largest error in a returned array; None if the results cannot be compared. If the
            call returns several arrays, the error is from the array with the largest ratio of error
            to bound.
        bound: the allowed error in this array.
        message: an explanation, if `error` alone does not explain the status.
        outputs: the returned arrays.
        ended: whether the process crashed, exited or reached its time limit.
        like: another feature whose defect explains the case, or "".
    """

    case: Case
    status: str
    error: float | None = None
    bound: float | None = None
    message: str = ""
    outputs: tuple[Array, ...] = ()
    ended: bool = False
    like: str = ""

    @property
    def feature(self) -> str:
        """The feature that the case tests."""
        return self.case.feature

    def __str__(self) -> str:
        message = self.message
        if self.error is not None and self.bound is not None and not message:
            message = f"error {self.error:.2g}, bound {self.bound:.2g}"
        return f"{self.case.describe()}: {message}"


class Runs:
    """Runs cases one after another, in a process that is restarted after a crash.

    Args:
        start: a function that starts the process.
        strict: whether fragile cases count as wrong.
    """

    def __init__(self, start: Callable[[], Isolated], strict: bool = False) -> None:
        self._start, self._strict = start, strict
        self._processes = ExitStack()  # `close` ends the process
        self._process: Isolated | None = None

    def load(self) -> Mapping[str, Any]:
        """Load the function; return its description.

        Raises:
            ValueError: the function cannot be loaded.
        """
        try:
            return self._begin()[1]
        except Ended as end:
            self.close()
            raise ValueError(
                f"conform: the process ended while loading the function: {end.shows}"
            ) from None

    def run(self, case: Case) -> CaseResult:
        """Run a case."""
        try:
            process, _ = self._begin()
            process.begin()
            reply = process.ask({"do": "call", "case": case.pack()})
        except Ended as end:
            self.close()
            verbs = {"endless-loop": "it does not return: ", "exits": "it ends: "}
            message = verbs.get(end.key, "it crashes: ") + end.shows
            return CaseResult(case, "wrong", message=message, ended=True)
        if "error" in reply:
            status = "wrong" if reply["slip"] else "refused"
            return CaseResult(case, status, message=f"it raises {reply['error']}")
        result = _judge(case, answer(case, draw(case)), reply)
        defined = drop_undocumented(case) if result.status == "wrong" else None
        if defined is not None and self.run(defined).status == "right":
            result = replace(result, status="fragile")
        strict = self._strict and result.status == "fragile"
        return replace(result, status="wrong") if strict else result

    def _begin(self) -> tuple[Isolated, Mapping[str, Any]]:
        if self._process is None:
            self._process = self._processes.enter_context(self._start())
            self._process.begin(_LOADING * self._process.seconds)
            self._about = self._process.ask({"do": "load"})
            if "error" in self._about:
                raise ValueError(f"conform: the function cannot be loaded: {self._about['error']}")
        return self._process, self._about

    def close(self) -> None:
        """End the process if it is running."""
        self._processes.close()
        self._process = None


def drop_undocumented(case: Case) -> Case | None:
    """Return the call with finite inputs, or a backward pass without rows that see nothing.

    Return None for other calls. No library documents the results of these two kinds of call.
    """
    if case.poison:
        return replace(case, poison=False)
    if result_names(case)[0] == "out":
        return None
    options = {
        name: value.replace(" blind", "") if isinstance(value, str) else value
        for name, value in case.options.items()
    }
    L, offset = case.L, options.get("q_offset")
    if isinstance(offset, int) and offset == case.S - L < 0:
        L, options["q_offset"] = case.S, 0
    defined = replace(case, L=L, options=options)
    return None if defined == case else defined


def _judge(case: Case, right: "Answer", reply: Mapping[str, Any]) -> CaseResult:
    """Compare the arrays that each repetition of the call returned with the right answer."""
    runs = []
    for outs in (reply["outs"], *reply["others"]):
        outputs = tuple(unpack(out, lambda number, thing: thing) for out in outs)
        if len(outputs) > len(right.arrays) and not {"weights", "lse"} & {*right.names}:
            outputs = outputs[:1]  # ignore attention weights that the case did not request
        if len(outputs) != len(right.arrays):
            message = f"it returns {len(outputs)} arrays instead of {', '.join(right.names)}"
            return CaseResult(case, "wrong", message=message, outputs=outputs)
        for name, a, b in zip(right.names, right.arrays, outputs, strict=True):
            if a.shape != np.shape(b):
                message = f"{name} has shape {np.shape(b)} and must have {a.shape}"
                return CaseResult(case, "wrong", message=message, outputs=outputs)
        runs.append(outputs)
    error, bound = max(map(right.worst, runs), key=_ratio)
    status, message = "right" if error <= bound else "wrong", ""
    if status == "wrong" and right.defined is not None:
        defined, allowed = replace(right, judged=right.defined).worst(runs[0])
        status = "fragile" if defined <= allowed else "wrong"
    if reply["changed"]:
        status, message = "wrong", f"it writes to {' and '.join(reply['changed'])}"
    elif len(runs) > 1:
        status = "fragile" if status == "right" else status
        message = "it gives different results for the same call"
    elif reply["overwritten"]:
        status, message = "wrong", "a later call writes to the result of an earlier call"
    return CaseResult(case, status, error, bound, message, runs[0])


def _ratio(pair: tuple[float, float]) -> float:
    return pair[0] / (pair[1] or 1)


@dataclass(frozen=True)
class Answer:
    """The right results of a call: names, arrays and error bounds."""

    names: tuple[str, ...]
    arrays: tuple[Array, ...]
    bounds: tuple[float, ...]
    judged: Any  # the judged rows: bool (B, Hq, L), or `...` for all rows
    # the rows that see a key, if rows that see nothing are judged too, else None
    defined: Array | None = None

    def errors(self, outputs: Sequence[Array]) -> list[float]:
        """Return the largest error of each array.

        If exactly one of the two compared numbers is NaN, the error is infinite.
        """
        return [
            _distance(a[self.judged], np.asarray(b, np.float64)[self.judged])
            for a, b in zip(self.arrays, outputs, strict=True)
        ]

    def worst(self, outputs: Sequence[Array]) -> tuple[float, float]:
        """Return `(error, bound)` of the array with the largest ratio of error to bound."""
        errors = self.errors(outputs)
        return max(zip(errors, self.bounds, strict=True), key=_ratio)

    def fits(self, outputs: Sequence[Array]) -> bool:
        """Return whether the number and the shapes of the arrays are right."""
        return [a.shape for a in self.arrays] == [np.shape(b) for b in outputs]


def answer(case: Case, drawn: Drawn) -> Answer:
    """Compute the right answer to a case, and the error bounds of the answer."""
    right = run(values(case, drawn))
    names = result_names(case)
    every = case.feature in ("rows that see nothing", "empty")
    seen: Array = np.any(right.seen, axis=-1)
    if "inf" in str(case.poison):  # the softmax of nothing but -inf is 0 / 0
        seen &= right.lse != -np.inf
    judged: Any = ... if every or case.is_backward else seen
    bounds = [_allowed_error(case, drawn, right, name) for name in names]
    if case.dtype in ("float16", "bfloat16"):
        bounds = _half_bounds(case, drawn, right, judged)
    arrays = tuple(parts(right, names))
    defined = seen if every and names[0] == "out" else None
    return Answer(names, arrays, tuple(bounds), judged, defined)


def result_names(case: Case) -> tuple[str, ...]:
    """Return the names of a call's results, in order."""
    if case.is_backward:
        return ("d_query", "d_key", "d_value")
    names = ["out"]
    names += ["weights"] if case.options.get("return_weights") else []
    names += ["lse"] if case.options.get("return_lse") else []
    return tuple(names)


def parts(expected: Expected, names: Sequence[str]) -> list[Array]:
    """Return the formula's results that have these names."""
    return [getattr(expected, name) for name in names]


def _allowed_error(case: Case, drawn: Drawn, right: Expected, name: str) -> float:
    """Return the allowed error of an array."""
    relative, of_scores = _RELATIVE, _OF_SCORES
    if case.dtype == "float64":
        relative, of_scores = _EXACT, 2.0**-52
    value = np.abs(drawn["value"].astype(np.float64))
    largest = float(value[np.isfinite(value)].max(initial=0))
    lse = np.abs(right.lse[np.isfinite(right.lse)])
    if name == "lse":
        return relative * max(1.0, float(lse.max(initial=0)))
    # A gradient sums over all rows, including the row with the largest score. So its bound grows
    # with this score, without a limit.
    if name in ("d_query", "d_key", "d_value"):
        size = float(np.abs(getattr(right, name)).max(initial=0))
        return (_ROUNDINGS * relative + of_scores * right.largest) * max(1.0, size)
    scores = 0.0 if case.constant else min(right.largest, _JUDGED)
    return (relative + of_scores * scores) * (largest if name == "out" else 1.0)


def _half_bounds(case: Case, drawn: Drawn, right: Expected, judged: Any) -> list[float]:
    """Return error bounds: 2 * (error of the formula in half precision) + one rounding error."""
    dtype = float_type(case.dtype)
    half = run(values(case, drawn, dtype), dtype=dtype)
    rounding = 2.0 ** -(11 if case.dtype == "float16" else 8)
    bounds, names = [], result_names(case)
    for exact, rough in zip(parts(right, names), parts(half, names), strict=True):
        exact, rough = exact[judged], rough.astype(np.float64)[judged]
        finite = np.isfinite(exact) & np.isfinite(rough)
        error = np.abs(exact - rough)[finite].max(initial=0)
        largest = np.abs(exact[np.isfinite(exact)]).max(initial=0)
        bounds.append(float(2 * error + rounding * largest))
    return bounds


def _distance(right: Array, outputs: Array) -> float:
    """Return the largest difference of two arrays; two equal infinities or two NaN differ by 0."""
    with np.errstate(invalid="ignore"):
        away = np.abs(right - outputs)
    away = np.where((right == outputs) | (np.isnan(right) & np.isnan(outputs)), 0, away)
    away = np.where(np.isnan(away), np.inf, away)
    return float(away.max(initial=0))
