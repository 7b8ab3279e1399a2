"""Call somebody's function on a case, whatever it does, and note what came of it."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from qkv.arrays import Array, as_array
from qkv.marking.errors import type_name

# of the largest value: what float32 rounding needs, and far below what any mistake changes
TOLERANCE = 2e-6
HALF_TOLERANCE = 4e-3  # what float16 needs
_FEW = 100_000  # numbers that are copied without a thought
RAISED = (Exception, SystemExit)  # what a learner's code raises is a finding, and no end of ours


class Elsewhere:
    """An object of the process that a student's file runs in, as the marker holds it."""

    def held_arrays(self) -> list[tuple[str, Array]]:
        """List the arrays that it holds, with the path to each."""
        raise NotImplementedError

    def is_stub(self) -> bool:
        """Is nothing filled in yet?"""
        raise NotImplementedError


class Case(Protocol):
    """One call of a function, on small numbers that can be read."""

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand: the arrays and options, by name."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What one call gave and should have given, its changes to its inputs, and lines it printed."""

    case: Any
    right: Array
    out: Array | None = None
    second: Array | None = None
    returned: Any = None
    error: BaseException | None = None
    changed: dict[str, Any] = field(default_factory=dict)
    printed: int = 0
    given_back: tuple[tuple[Array, Array], ...] = ()  # copies, and the arrays that they are of

    @property
    def overwritten(self) -> Array | None:
        """An array that was given back, where a later call has written to it."""
        return next((a for kept, a in self.given_back if not same_numbers(kept, a)), None)

    @property
    def is_right(self) -> bool:
        """Did the function give the right answer?"""
        return self.out is not None and close(self.out, self.right)


def outcome(
    case: Case, call: Callable[[Any], Any], right: Array, *, beside: bool = False
) -> Outcome:
    """Call a function on a copy of a case; what it raises is part of the outcome.

    Args:
        case: the call to make; the arrays in its `shown()` are those that are given.
        call: makes it, given the copy, and returns what the function returned.
        right: what it should return.
        beside: a second array may come with it, in a tuple of two.
    """
    given, process = copy.deepcopy(case), getpid()
    try:
        with warnings.catch_warnings(), nobody_there() as printed:
            warnings.simplefilter("ignore")
            returned = call(given)
            outputs = (returned, None)
            if is_tuple(returned):
                outputs = returned if beside and len(returned) == 2 else (None, None)
            arrays = [numbers(one) for one in outputs]
            out, second = (_kept(a, right) for a in arrays)
    except RAISED as error:
        return Outcome(case, right, error=error)
    finally:
        if getpid() != process:  # the learner's code has forked: one process is enough to mark it
            _leave(0)
    after = given.shown()
    changed = {
        name: after.get(name, "nothing")
        for name, a in case.shown().items()
        if isinstance(a, np.ndarray) and not np.array_equal(after.get(name, np.nan), a)
    }
    pairs = zip((out, second), arrays, strict=True)
    given_back = tuple((kept, a) for kept, a in pairs if kept is not None and a is not None)
    return Outcome(case, right, out, second, returned, None, changed, printed.lines, given_back)


def _kept(a: Array | None, right: Array) -> Array | None:
    """A copy of what was returned, since a later call may write to it; not of a huge one."""
    return a if a is None or a.size > max(right.size, _FEW) else a.copy()


getpid, _leave = os.getpid, os._exit  # as they are before a learner's file is read


class Unread(io.TextIOBase):
    """Takes what is printed, and only counts the lines: there may be no end of them.

    Attributes:
        lines: how many there were.
    """

    def __init__(self) -> None:
        self.lines = 0

    def write(self, text: str) -> int:
        """Count the lines of a text."""
        self.lines += text.count("\n")
        return len(text)


@contextlib.contextmanager
def nobody_there() -> Iterator[Unread]:
    """Nobody reads what is printed, and nobody answers `input()`, which is an EOFError."""
    before, sys.stdin = sys.stdin, io.StringIO()
    try:
        with contextlib.redirect_stdout(Unread()) as unread:
            yield unread
    finally:
        sys.stdin = before


def name_of(function: Any) -> str:
    """What a function is called, for a sentence about it."""
    try:
        name = getattr(function, "__name__", None)
    except RAISED:
        name = None
    name = name if type(name) is str else type_name(function)
    return "your function" if name == "<lambda>" else name


def is_tuple(thing: Any) -> bool:
    """Is it a tuple, whatever it says of itself?"""
    return issubclass(type(thing), tuple)


def kind_of(thing: Any) -> str:
    """What something is, as in "a str" or "an int"."""
    name = type_name(thing)
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def numbers(out: Any) -> Array | None:
    """An output as an array of numbers, or None where it is not one."""
    if out is None or isinstance(out, Elsewhere):
        return None
    with contextlib.suppress(AttributeError):
        out = out.detach()  # a tensor that remembers how it was computed is no array before
    try:
        a = as_array(out, call="check", name="output")
    except TypeError:
        return None
    return a if a.dtype.kind in "biuf" else None


def close(got: Array, want: Array) -> bool:
    """Equal in shape, in nan and inf, and but for rounding in every number."""
    if got.shape != want.shape:
        return False
    tolerance = HALF_TOLERANCE if got.dtype == np.float16 else TOLERANCE
    with np.errstate(invalid="ignore", over="ignore"):
        apart = float(np.abs(np.subtract(got, want, dtype=np.float64)).max(initial=0.0))
    if math.isfinite(apart):  # as are all numbers: a tenth of the time, and the same answer
        return apart <= tolerance * max(1.0, float(np.abs(want).max(initial=0.0)))
    finite = np.abs(want[np.isfinite(want)])
    off = tolerance * max(1.0, float(finite.max(initial=0.0)))
    return bool(np.allclose(got, want, rtol=0, atol=off, equal_nan=True))


def same_numbers(a: Array, b: Array) -> bool:
    """Equal to the last bit, and nan where the other is nan."""
    return np.array_equal(a, b, equal_nan=True)


def differ(a: Array | None, b: Array | None) -> bool:
    """Two outputs that are both there and are not the same."""
    return a is not None and b is not None and not close(a, b)


def first_wrong(runs: list[Outcome]) -> Outcome:
    """The smallest run that went wrong: runs are in order of size."""
    return next((run for run in runs if not run.is_right), runs[0])
