"""What can be said of a function that no known mistake explains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking import raised
from qkv.marking.errors import in_words, line_of
from qkv.marking.mistake import Kind, Mistake
from qkv.marking.outcome import Outcome, first_wrong, is_tuple, kind_of

RANDOM = Mistake(
    "random",
    "two calls with the same arrays give different results",
    "something random is drawn, or something remembered, inside the function",
    "make random weights or tables once, outside, and pass them in",
    nudge="Call it twice with the same arrays: is it the same both times?",
    where="whatever the function draws at random, or keeps from one call to the next",
)


@dataclass(frozen=True)
class Finding(Mistake):
    """A mistake, and the run whose numbers show it; `more` goes into the example."""

    run: Outcome | None = field(kw_only=True)
    more: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def example(self) -> dict[str, Any]:
        """The input, what came out and what should have."""
        run = self.run
        if run is None:
            return {}
        yours = run.returned if run.out is None else run.out
        if run.error is not None:
            yours = in_words(run.error)
        return {**run.case.shown(), "yours": yours, "right": run.right, **self.more}


def of_mistake(one: Mistake, run: Outcome, more: Mapping[str, Any] | None = None) -> Finding:
    """A known mistake, in the run that shows it."""
    return Finding(**vars(one), run=run, more=more or {})


def of_values(one: Mistake) -> Finding:
    """A known mistake in values, which no run shows."""
    return Finding(**vars(one), run=None)


def told(run: Outcome) -> str:
    """What went wrong, in which line, and on arrays of which shapes."""
    if run.error is None:
        return f"the output is wrong on {shapes(run)}"
    line = line_of(run.error)
    return f"{in_words(run.error)}, {f'in {line}, ' if line else ''}on {shapes(run)}"


def shapes(run: Outcome) -> str:
    """What a call was given, with the shapes of its arrays."""
    shown = run.case.shown().items()
    return ", ".join(
        f"{name} {a.shape}" if isinstance(a, np.ndarray) else f"{name} = {a}" for name, a in shown
    )


def no_array(run: Outcome, remedy: str) -> Finding:
    """The function returned something that is not an array of numbers."""
    where = "the return statement"
    if run.returned is None:
        return nothing_returned(run, "it returns None", remedy)
    says = f"it returns {kind_of(run.returned)}, not an array of numbers"
    shows = "what comes back should be an array"
    if is_tuple(run.returned):
        says = f"it returns a tuple of {len(run.returned)}, where an array alone was asked for"
        shows = "whoever calls it has to take the array out first"
        where = "the return statement: a comma behind what is returned makes a tuple"
    nudge = "Print what it returns, and the type of that."
    return Finding("wrong-type", says, shows, remedy, nudge=nudge, where=where, run=run)


def nothing_done(runs: list[Outcome]) -> Finding | None:
    """Does the function return its input as it is, or one number whatever it is given?"""
    outs = [run.out for run in runs]
    if all(run.is_right for run in runs) or any(out is None or not out.size for out in outs):
        return None
    nudge = "Call it with two inputs: what is the same in both outputs, and should not be?"
    for name in runs[0].case.shown():
        if all(_equal(run.out, run.case.shown().get(name)) for run in runs):
            says, shows = f"it returns its input {name} as it is", "the output is the input"
            where = "the return statement: which of your arrays does it name?"
            wrong = first_wrong(runs)
            return Finding("returns-input", says, shows, nudge=nudge, where=where, run=wrong)
    numbers = {number for out in outs if out is not None for number in np.unique(out).tolist()}
    if len(numbers) == 1 and np.isfinite([*numbers]).all():
        says = f"it returns {numbers.pop() + 0:g} everywhere, whatever it is given"
        shows = "the output does not depend on the input"
        where = "the array that is returned: is it ever written to?"
        wrong = first_wrong(runs)
        return Finding("constant", says, shows, nudge=nudge, where=where, run=wrong)
    return None


def _equal(out: Array | None, given: Any) -> bool:
    is_number = isinstance(given, np.ndarray | int | float)
    return out is not None and is_number and np.array_equal(out, given)


def nothing_returned(run: Outcome, says: str, remedy: str) -> Finding:
    """The function returned None."""
    shows = "a function that ends without a return statement gives None"
    nudge, where = "Print what a call of it gives.", "the return statement"
    return Finding("returns-nothing", says, shows, remedy, nudge=nudge, where=where, run=run)


def changed_inputs(runs: list[Outcome]) -> Finding | None:
    """Does the function write to its inputs?"""
    for run in runs:
        for name, afterwards in run.changed.items():
            return Finding(
                "inputs-modified",
                f"the function writes to its input {name}",
                "the output is right, but the caller's array is no longer what it was",
                f"{name} = {name}.copy()  # or a = a / b, a new array, where a /= b writes to a",
                nudge=f"Print {name} before and after the call.",
                where="the statements that assign in place: a /= b, a -= b, a[...] = b",
                run=run,
                more={f"{name} afterwards": afterwards},
            )
    return None


def overwritten(runs: list[Outcome]) -> Finding | None:
    """Does a later call write to what an earlier one gave back?"""
    for run in runs:
        if (now := run.overwritten) is not None:
            return Finding(
                "output-overwritten",
                "the next call overwrites what this one gave back: both give back the same array",
                "what was right when it came back is something else after another call",
                "out = np.zeros(...)  # made anew in each call, inside the function",
                nudge="Call it with one input, then with another: what is the first result now?",
                where="the array that is returned: is it made outside of the function, or given"
                " as out= each time?",
                run=run,
                more={"yours after other calls": now},
            )
    return None


def prints(runs: list[Outcome]) -> Finding | None:
    """Does the function print as it computes?"""
    for run in runs:
        if run.printed:
            lines = "a line" if run.printed == 1 else f"{run.printed:,} lines"
            return Finding(
                "prints",
                "it prints as it computes; a function that others call returns its result and is"
                " silent",
                f"{lines} in the first call, which are not shown here",
                "print(...) after the call, outside of the function",
                "convention",
                nudge="Call it a thousand times: what is on the screen?",
                where="the calls of print inside the function",
                run=None,
            )
    return None


def whole_numbers(run: Outcome, remedy: str) -> Finding | None:
    """Integers in, fractions out: are they kept?"""
    if run.is_right:
        return None
    says = "whole numbers go wrong: results are stored in an array of the inputs' integer type"
    nudge, where = "Give it whole numbers.", "the line that makes the array for the result"
    kind: Kind = "wrong"
    key, shows = "integer-inputs", "fractions are cut off"
    if run.error is not None:
        key, shows, kind = "integers-in-place", in_words(run.error), "fragile"
    return Finding(key, says, shows, remedy, kind, nudge=nudge, where=where, run=run)


def raises(run: Outcome, what: str) -> Finding:
    """The function raises an error; some errors have a name of their own."""
    if named := raised.known(run.error):
        return of_mistake(replace(named, shows=told(run)), run)
    key, says, where, remedy = "raises", f"it raises an error ({what})", "", ""
    nudge = "Call it with the smallest input alone, and print what there is before that line."
    if isinstance(run.error, SystemExit):
        key, says = "exits", "it ends the program instead of returning"
        where, remedy = "the call of sys.exit, exit or quit", "return the result"
    elif isinstance(run.error, EOFError):
        key, says = "asks-for-input", "it asks for input, and there is nobody to answer"
        where, remedy = "the call of input()", "take what is needed as a parameter"
    elif isinstance(run.error, MemoryError):
        key, says = "out-of-memory", "it asks for more memory than there is"
        where = "the line that makes the largest array"
        remedy = "give arrays the sizes of the inputs, not fixed ones"
    elif isinstance(run.error, RecursionError):
        key, says = "endless-recursion", "it calls itself without an end"
        where, remedy = "the call of the function in itself", "call another function, or loop"
    return Finding(key, says, told(run), remedy, nudge=nudge, where=where, run=run)


def unexplained(runs: list[Outcome], what: str, returns: str, hints: list[str]) -> Finding:
    """It is wrong, on which input and by how much.

    Args:
        runs: what the calls of one test gave, one of them wrong.
        what: is tested.
        returns: the statement that returns what should be.
        hints: what its properties tell.
    """
    wrong = first_wrong(runs)
    if wrong.error is not None:
        return raises(wrong, what)
    if wrong.out is None:
        return no_array(wrong, returns)
    right = wrong.right
    if wrong.out.shape != right.shape:
        return Finding(
            "wrong-shape",
            f"the output has the shape {wrong.out.shape}, it should be {right.shape} ({what})",
            f"on {shapes(wrong)}",
            returns,
            nudge="Print the shape after each line: from which on is it another than it should be?",
            run=wrong,
        )
    off = np.max(np.abs(wrong.out.astype(float) - right), initial=0.0)
    far = f"off by as much as {off:.3g}" if np.isfinite(off) else "with nan or inf in it"
    return Finding(
        "unknown",
        f"the output is wrong, and like none of the mistakes known here ({what})",
        "; ".join([far, *hints]),
        nudge="Work the smallest input out by hand, and compare step by step.",
        where="the first step whose numbers are not those that you worked out",
        run=wrong,
    )
