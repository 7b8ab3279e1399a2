"""Inspect a student's function, call it on cases, and record results and errors."""

import contextlib
import copy
import functools
import inspect
import io
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from qkv.arrays import Array, as_array
from qkv_marking._errors import WrongParameters, type_name

# The allowed error, relative to the largest value. The rounding errors of float32 are smaller than
# this limit, and the errors that a mistake causes are much larger.
TOLERANCE = 2e-6
HALF_TOLERANCE = 4e-3  # The allowed error for float16.
_MOST_LINES = 100_000  # The maximum number of lines that one call may print.
_FEW = 100_000  # An output with no more values than this is always copied.
RAISED = (Exception, SystemExit)  # The marker reports these errors of a student's code.


def options_of(
    function: Callable[..., Any], names: Sequence[str], known: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, str], frozenset[str]]:
    """Return `(taken, required)`: all options of a function, and those without a default.

    `taken` maps the qkv name of an option to the function's parameter, such as `is_causal` to
    `causal`. `required` contains the qkv names of the options without a default.

    Args:
        function: a student's function.
        names: the names of the function's positional arguments.
        known: maps the qkv name of each option to the parameter names that a student may use for
            the option.

    Raises:
        TypeError: the function does not accept these arguments, or requires arguments that are
            neither positional arguments nor known options.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature
        return {}, frozenset()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    rest = [p for p in parameters if p not in (*positional[: len(names)], *several)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in several)
    options = {
        option: p.name
        for option, spelled in known.items()
        for p in rest
        if p.name in spelled and p.kind is not p.POSITIONAL_ONLY
    }
    needed = {p.name for p in rest if p.default is p.empty}
    if needed - {*options.values()} or (len(positional) < len(names) and not takes_any):
        name = name_of(function)
        raise WrongParameters(
            f"check: {name}({', '.join(names)}) is called, but the signature is"
            f" {name}({', '.join(p.name for p in parameters)}):"
            " give all other parameters a default"
        )
    return options, frozenset(option for option, p in options.items() if p in needed)


def is_number(default: Any) -> bool:
    """Return whether a parameter's default is a number, such as 0.0 for an additive mask."""
    return type(default) in (int, float)


def _stub(x: Any) -> None: ...


def _stub_with_words(x: Any) -> None:
    """Provide an example of a stub with a docstring."""


_EMPTY = {_stub.__code__.co_code, _stub_with_words.__code__.co_code}


def is_stub(thing: Any) -> bool:
    """Return whether the object is a function whose body is `...`, or a class of such functions.

    >>> def softmax(scores): ...
    >>> is_stub(softmax), is_stub(max)
    (True, False)
    """
    if isinstance(thing, Elsewhere):
        return thing.is_stub()
    if inspect.isclass(thing):
        functions = [value for value in vars(thing).values() if inspect.isfunction(value)]
        return "__call__" in vars(thing) and all(map(is_stub, functions))
    if not inspect.isfunction(thing) or thing.__name__ == "<lambda>":
        return False
    code = thing.__code__
    return code.co_code in _EMPTY and {*code.co_consts} <= {None, thing.__doc__}


def takes_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes arrays and retries with torch tensors if `function` fails.

    Classes are returned unchanged. Functions are also returned unchanged if torch is not imported
    yet.

    Args:
        function: a function of arrays, torch tensors, or mappings with such values.

    Returns:
        A function of arrays. If `function` fails with arrays and with tensors, the returned
            function raises the error of the call with arrays.
    """
    if "torch" not in sys.modules or inspect.isclass(function):
        return function
    wants_tensors = False

    @functools.wraps(function, updated=())
    def of_arrays(*arguments: Any, **named: Any) -> Any:
        nonlocal wants_tensors
        if wants_tensors:
            return function(*as_tensors(arguments), **as_tensors(named))
        try:
            return function(*arguments, **named)
        except (AttributeError, TypeError) as refusal:
            try:
                returned = function(*as_tensors(arguments), **as_tensors(named))
            except Exception:
                raise refusal from None
            wants_tensors = True
            return returned

    return of_arrays


def as_tensors(values: Any) -> Any:
    """Convert arrays to tensors; each tensor shares its memory with its array.

    Arrays in tuples and dicts are converted too. If torch was never imported, return the arrays
    themselves.
    """
    if isinstance(values, np.ndarray):
        return sys.modules["torch"].as_tensor(values) if "torch" in sys.modules else values
    if isinstance(values, tuple):
        return tuple(map(as_tensors, values))
    if isinstance(values, dict):
        return {name: as_tensors(value) for name, value in values.items()}
    return values


class Elsewhere:
    """A proxy for an object of a student's file, which runs in another process."""

    def held_arrays(self) -> list[tuple[str, Array]]:
        """List the arrays inside the object, each with its path, such as ".w_q"."""
        raise NotImplementedError

    def is_stub(self) -> bool:
        """Return whether the object is a stub, which the student has not filled in yet."""
        raise NotImplementedError


class Sample(Protocol):
    """The arguments of one call, with small numbers that are easy to read."""

    def list_arguments(self) -> dict[str, Any]:
        """Return the arrays and options of the call, keyed by name."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The result of a call: the output, the right output, changed inputs and printed lines."""

    case: Any
    right: Array
    out: Array | None = None
    second: Array | None = None
    returned: Any = None
    error: BaseException | None = None
    changed: dict[str, Any] = field(default_factory=dict)
    printed: int = 0
    given_back: tuple[tuple[Array, Array], ...] = ()  # pairs (copy, returned array)

    @property
    def overwritten(self) -> Array | None:
        """An output that a later call has overwritten, or None."""
        return next((a for a_copy, a in self.given_back if not same_numbers(a_copy, a)), None)

    @property
    def is_right(self) -> bool:
        """Whether the function gave the right answer."""
        return self.out is not None and close(self.out, self.right)


def outcome(
    case: Sample, call: Callable[..., Any], right: Array, *, beside: bool = False
) -> Outcome:
    """Call a function on a copy of a case; return an outcome with the result or the error.

    Args:
        case: the arguments of the call. `case.list_arguments()` returns the arguments as a dict.
        call: a function that calls the student's function with the copy and returns the result.
        right: the right result.
        beside: whether the function may return a tuple of the result and a second array.
    """
    copied, process = copy.deepcopy(case), getpid()
    try:
        with warnings.catch_warnings(), mute() as printed:
            warnings.simplefilter("ignore")
            returned = call(copied)
            outputs = (returned, None)
            if is_tuple(returned):
                outputs = returned if beside and len(returned) == 2 else (None, None)
            arrays = [numbers(output) for output in outputs]
            out, second = (_copy_output(a, right) for a in arrays)
    except RAISED as error:
        return Outcome(case, right, error=error)
    finally:
        if getpid() != process:  # this process is a fork that the student's code made
            _leave(0)
    after = copied.list_arguments()
    changed = {
        name: after.get(name, "nothing")
        for name, a in case.list_arguments().items()
        if isinstance(a, np.ndarray) and not np.array_equal(after.get(name, np.nan), a)
    }
    pairs = zip((out, second), arrays, strict=True)
    given_back = tuple((a_copy, a) for a_copy, a in pairs if a_copy is not None and a is not None)
    return Outcome(case, right, out, second, returned, None, changed, printed.lines, given_back)


def _copy_output(a: Array | None, right: Array) -> Array | None:
    """Return a copy of an output, or the output itself if it is very large."""
    return a if a is None or a.size > max(right.size, _FEW) else a.copy()


# These functions are saved here because a student's file may replace the attributes of `os`.
getpid, _leave = os.getpid, os._exit


class PrintFlood(Exception):
    """Raised if a student's code prints too much."""


class Unread(io.TextIOWrapper):
    """An output stream that discards text and counts its lines.

    Attributes:
        lines: the number of lines.
    """

    def __init__(self) -> None:
        super().__init__(open(os.devnull, "wb"), encoding="utf-8")  # noqa: SIM115 (closed by io)
        self.lines = self._letters = 0

    def write(self, text: str) -> int:
        """Count the lines of a text; raise `PrintFlood` if there are too many."""
        self.lines += text.count("\n")
        self._letters += len(text)
        if self.lines > _MOST_LINES or self._letters > 100 * _MOST_LINES:
            raise PrintFlood(f"more than {_MOST_LINES:,} lines are printed")
        return len(text)


@contextlib.contextmanager
def mute() -> Iterator[Unread]:
    """Hide printed text in a `with` block, and make `input()` raise an EOFError."""
    before, sys.stdin = sys.stdin, io.StringIO()
    try:
        with Unread() as unread, contextlib.redirect_stdout(unread):
            yield unread
    finally:
        sys.stdin = before


def name_of(function: Any) -> str:
    """Return the name that messages use for a function."""
    try:
        name = getattr(function, "__name__", None)
    except RAISED:
        name = None
    name = name if type(name) is str else type_name(function)
    return "your function" if name == "<lambda>" else name


def is_tuple(thing: Any) -> bool:
    """Return whether the object is a tuple, even if its class overrides `__class__`."""
    return issubclass(type(thing), tuple)


def kind_of(thing: Any) -> str:
    """Return the name of an object's type after an article: "a str" or "an int"."""
    name = type_name(thing)
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def numbers(out: Any) -> Array | None:
    """Return an output as an array of numbers, or None if the conversion is impossible."""
    if out is None or isinstance(out, Elsewhere):
        return None
    with contextlib.suppress(AttributeError):
        out = out.detach()  # NumPy cannot convert a tensor that requires a gradient
    try:
        a = as_array(out, call="check", name="output")
    except TypeError:
        return None
    return a if a.dtype.kind in "biuf" else None


def close(got: Array, want: Array) -> bool:
    """Return whether two arrays have equal shapes, equal nan and inf, and nearly equal numbers."""
    if got.shape != want.shape:
        return False
    tolerance = HALF_TOLERANCE if got.dtype == np.float16 else TOLERANCE
    with np.errstate(invalid="ignore", over="ignore"):
        apart = float(np.abs(np.subtract(got, want, dtype=np.float64)).max(initial=0.0))
    if math.isfinite(apart):  # the arrays contain no nan or inf; this is faster than np.allclose
        return apart <= tolerance * max(1.0, float(np.abs(want).max(initial=0.0)))
    off = allowed_error(want, tolerance)
    return bool(np.allclose(got, want, rtol=0, atol=off, equal_nan=True))


def allowed_error(want: Array, tolerance: float = TOLERANCE) -> float:
    """Return the allowed absolute error, proportional to the largest finite number or to 1."""
    finite = np.abs(want[np.isfinite(want)])
    return tolerance * max(1.0, float(finite.max(initial=0.0)))


def same_numbers(a: Array, b: Array) -> bool:
    """Return whether two arrays have equal shapes and equal numbers; two NaNs count as equal."""
    return np.array_equal(a, b, equal_nan=True)


def differ(a: Array | None, b: Array | None) -> bool:
    """Return whether both outputs are arrays with different values."""
    return a is not None and b is not None and not close(a, b)


def first_wrong(runs: list[Outcome]) -> Outcome:
    """Return the first wrong run, which is the smallest because runs are ordered by size."""
    return next((run for run in runs if not run.is_right), runs[0])
