"""Findings about a student's function, such as an error or a wrong shape."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking import _raised
from qkv_marking._errors import in_words, line_of, words_of
from qkv_marking._formula import MISSING, Diff
from qkv_marking._mistake import Mistake, look_up
from qkv_marking._outcome import Elsewhere, Outcome, first_wrong, is_tuple, kind_of

RANDOM = look_up("random")


@dataclass(frozen=True)
class Symptom(Mistake):
    """A mistake, the call that shows it, and additional arrays to print with this call.

    `diff` holds the lines of the formula that the mistake replaces, as pairs (right line, wrong
    line).
    """

    run: Outcome | None = field(kw_only=True)
    diff: Diff = field(default=(), kw_only=True)
    more: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def example(self) -> dict[str, Any]:
        """The call's inputs, its output and the right output, keyed by name."""
        run = self.run
        if run is None:
            return {}
        yours = run.returned if run.out is None else run.out
        if isinstance(yours, Elsewhere):  # its process ends before a reader sees the example
            yours = words_of(yours)
        if run.error is not None:
            yours = in_words(run.error)
        return {**run.case.list_arguments(), "yours": yours, "right": run.right, **self.more}


def of_mistake(
    known: Mistake, run: Outcome | None, more: dict[str, Any] | None = None, diff: Diff = ()
) -> Symptom:
    """Return a finding: a mistake, the call (if any) that shows it, and the lines it replaces."""
    remedy = known.remedy or "; ".join(line for line, _ in diff if line != MISSING)
    return Symptom(**{**vars(known), "remedy": remedy}, run=run, more=more or {}, diff=diff)


def describe(run: Outcome) -> str:
    """Describe a wrong call: the shapes of the inputs, and any error with its line of code."""
    if run.error is None:
        return f"the output is wrong on {shapes(run)}"
    line = line_of(run.error)
    return f"{in_words(run.error)}, {f'in {line}, ' if line else ''}on {shapes(run)}"


def shapes(run: Outcome) -> str:
    """List the arguments of a call, with the shapes of arrays."""
    inputs = run.case.list_arguments().items()
    return ", ".join(
        f"{name} {a.shape}" if isinstance(a, np.ndarray) else f"{name} = {a}" for name, a in inputs
    )


def no_array(run: Outcome, remedy: str) -> Symptom:
    """Report a function whose result is not an array of numbers."""
    if run.returned is None:
        return nothing_returned(run, "it returns None", remedy)
    mistake = look_up("wrong-type", returned=kind_of(run.returned))
    if is_tuple(run.returned):
        mistake = look_up("returns-tuple", count=str(len(run.returned)))
    return of_mistake(replace(mistake, remedy=remedy), run)


def nothing_returned(run: Outcome, says: str, remedy: str) -> Symptom:
    """Report a function that returned None."""
    return of_mistake(replace(look_up("returns-nothing", returned=says), remedy=remedy), run)


def nothing_done(runs: list[Outcome]) -> Symptom | None:
    """Report a function that returns its input unchanged, or the same number for every input."""
    outs = [run.out for run in runs]
    if all(run.is_right for run in runs) or any(out is None or not out.size for out in outs):
        return None
    for name in runs[0].case.list_arguments():
        if all(_equal(run.out, run.case.list_arguments().get(name)) for run in runs):
            return of_mistake(look_up("returns-input", name=name), first_wrong(runs))
    numbers = {number for out in outs if out is not None for number in np.unique(out).tolist()}
    if len(numbers) == 1 and np.isfinite([*numbers]).all():
        mistake = look_up("constant", number=f"{numbers.pop() + 0:g}")
        return of_mistake(mistake, first_wrong(runs))
    return None


def _equal(out: Array | None, argument: Any) -> bool:
    is_number = isinstance(argument, np.ndarray | int | float)
    return out is not None and is_number and np.array_equal(out, argument)


def changed_inputs(runs: list[Outcome]) -> Symptom | None:
    """Report a function that writes to its inputs."""
    for run in runs:
        for name, afterwards in run.changed.items():
            more = {f"{name} afterwards": afterwards}
            return of_mistake(look_up("inputs-modified", name=name), run, more)
    return None


def overwritten(runs: list[Outcome]) -> Symptom | None:
    """Report a function that overwrites the result of an earlier call."""
    for run in runs:
        if (now := run.overwritten) is not None:
            more = {"yours after other calls": now}
            return of_mistake(look_up("output-overwritten"), run, more)
    return None


def prints(runs: list[Outcome]) -> Symptom | None:
    """Report a function that prints while it computes."""
    for run in runs:
        if run.printed:
            lines = "a line" if run.printed == 1 else f"{run.printed:,} lines"
            return of_mistake(look_up("prints", lines=lines), None)
    return None


def whole_numbers(run: Outcome, remedy: str) -> Symptom | None:
    """Report a function that truncates its results if its inputs are integers."""
    if run.is_right:
        return None
    mistake = look_up("integer-inputs")
    if run.error is not None:
        mistake = look_up("integers-in-place", in_words(run.error))
    return of_mistake(replace(mistake, remedy=remedy), run)


def raises(run: Outcome, tested: str) -> Symptom:
    """Report a function that raises an error, and the most likely cause if it is known."""
    cause = _raised.find_cause(run.error)
    if cause is None:
        key = _raised.key_of(run.error, "raises")
        cause = look_up(key, it="it", tested=tested)
    return of_mistake(replace(cause, shows=describe(run)), run)


def report_odd(runs: list[Outcome], tested: str, returns: str, hints: list[str]) -> Symptom:
    """Report a wrong output, with the input and the size of the error.

    Args:
        runs: the calls of one test, at least one of which is wrong.
        tested: the subject of the test.
        returns: the statement that returns the right result.
        hints: sentences about properties of the wrong output.
    """
    wrong = first_wrong(runs)
    if wrong.error is not None:
        return raises(wrong, tested)
    if wrong.out is None:
        return no_array(wrong, returns)
    shape, right = wrong.out.shape, wrong.right
    if shape != right.shape:
        names = {"shape": str(shape), "right": str(right.shape), "tested": tested}
        mistake = look_up("wrong-shape", f"on {shapes(wrong)}", **names)
        return of_mistake(replace(mistake, remedy=returns), wrong)
    off = np.max(np.abs(wrong.out.astype(float) - right), initial=0.0)
    far = f"off by as much as {off:.3g}" if np.isfinite(off) else "with nan or inf in the output"
    return of_mistake(look_up("unknown", "; ".join([far, *hints]), tested=tested), wrong)
