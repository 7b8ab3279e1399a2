"""Define tasks, descriptions of their known mistakes, and exercises (tasks with one step)."""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import Compute, Group, Marking, nothing_known, per_seed
from qkv_marking._findings import Symptom
from qkv_marking._formula import Lines
from qkv_marking._isolated import SECONDS
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import Outcome, kind_of, name_of, numbers, options_of, outcome
from qkv_marking._result import CheckResult
from qkv_marking.tasks._table import Table

_TABLES = tomllib.loads(files(__package__).joinpath("tasks.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Task:
    """A task: the function, class or values that a learner writes, and the marker.

    Attributes:
        name: the name for the option `--task`.
        mark: a function that marks an answer: `mark(function, way)` with one of `ways`, or
            `mark(values, "")` with a tuple of values. `mark` raises a TypeError if a function has
            wrong parameters.
        looks_for: possible names of the function or class; `--task` also accepts these names. If a
            file defines several of these names, the marker uses only the first name.
        signature: the call and its result, as in "score_needed(weight, others) -> the score".
        asks: a description of the right result.
        ways: the possible signatures of the function, the usual signature first.
        also: more names for the function, accepted if the task was chosen with `--task`.
        everyday: names in `looks_for` that are also common names of helper functions; a helper
            function does not count as an answer.
        values: the names of the marked values, if the answer is not a function.
        may_use: whether an answer may call qkv.
        by_name: whether the task must be chosen by name, because another task looks for the same
            functions.
        seconds: the time limit; a cell of the task's notebook may take six times as long.
    """

    name: str
    mark: Callable[[Any, str], CheckResult]
    looks_for: tuple[str, ...]
    signature: str
    asks: str
    ways: tuple[str, ...] = ("",)
    also: tuple[str, ...] = ()
    everyday: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    may_use: bool = False
    by_name: bool = False
    seconds: float = SECONDS


def task(name: str, mark: Callable[[Any, str], CheckResult]) -> Task:
    """Read the task with this name from `tasks.toml`, and add its marker."""
    fields: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in _TABLES[name].items()
    }
    return Task(name, mark, **fields)


def make_task(name: str, test: Callable[[Function], Marking]) -> Task:
    """Return a task that marks a learner's function with the tests of `test`."""
    return task(name, lambda function, way: test(function).result())


class Computation(NamedTuple):
    """The right computation of a task.

    Attributes:
        task: the task's name.
        compute: a function that computes the output of a case with given steps.
        right: the right steps.
        returns: the right return statement.
    """

    task: str
    compute: Compute
    right: Lines
    returns: str


class StepwiseMarking(Marking):
    """The tests of a learner's function: they compare its results with the results of `right`.

    Args:
        right: the right computation.
        function: a learner's function.
        call: a function that takes a case, calls the learner's function and returns the result.
    """

    def __init__(self, right: Computation, function: Function, call: Function) -> None:
        task, compute, steps, returns = right
        super().__init__(
            task,
            name_of(function),
            lambda case: outcome(case, call, compute(case, self.right)),
            compute,
            steps,
            returns=returns,
        )

    def test_all(self, groups: Sequence[Group]) -> None:
        """Check that the smallest call gives the same output twice, then run the tests in order."""
        self.first_call(groups[0].cases[0])
        for group in () if self.wrong else groups:
            self.test(group)


def pick(known: Iterable[Mistake], *keys: str) -> list[Mistake]:
    """Return the mistakes with these keys."""
    return [mistake for mistake in known if mistake.key in keys]


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, keyed by name."""

    by_name: Mapping[str, Any]

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments."""
        return dict(self.by_name)


@dataclass(frozen=True)
class Exercise:
    """A task that compares a learner's function with the lines of a table.

    The lines use the parameters in the task's signature, and set the variable `out`. The table has
    the fields `tried`, the tested inputs in a few words, such as "one row and several rows";
    `returns`, the right return statement; and `parts`, the names of the returned arrays, if the
    function returns several.

    Attributes:
        name: the task's name.
        table: the right lines, and the known mistakes.
        draw: a function that draws the arguments of each call, smallest first.
        otherwise: a function that describes a wrong call if no known mistake explains the call.
        within: the tolerance for numbers measured on a trained model.
        values: more variables that the lines use.
        later: more tests, each with its inputs in a few words, a group of the table, and a function
            that draws its cases; `table.group()` without these groups belongs to the first test.
        ordered: a function that takes the arguments and an output of a call, and converts all
            equally right outputs to the same output.
    """

    name: str
    table: Table
    draw: Callable[[], Sequence[tuple[Any, ...]]]
    otherwise: Callable[[Outcome], Symptom | None] = nothing_known
    within: float = 0.0
    values: Mapping[str, Any] = field(default_factory=dict)
    later: Sequence[tuple[str, str, Callable[[], Sequence[tuple[Any, ...]]]]] = ()
    ordered: Callable[[Sequence[Any], Array], Array] | None = None

    def task(self) -> Task:
        """Return this exercise as a task."""
        return task(self.name, lambda function, way: self.mark(function))

    def solve(self, *arguments: Any, lines: Lines | None = None) -> Any:
        """Return the right result of a call, or the result with these wrong lines."""
        by_name = dict(zip(self._names, arguments, strict=True))
        return self.table.formula.run({**self.values, **by_name}, lines)["out"]

    def mark(self, function: Function) -> CheckResult:
        """Mark a learner's function."""
        options_of(function, self._names, {})
        fields, lines = self.table.fields, self.table.formula.lines
        right = Computation(self.name, self._compute, lines, fields["returns"])
        m = StepwiseMarking(right, function, lambda case: self._call(function, case))
        m.varied = () if self.values else None  # the values were measured for these inputs
        later = [(what, self.table.group(group), draw) for what, group, draw in self.later]
        known = [one for one in self.table.group() if not any(one in more for _, more, _ in later)]
        m.test_all(
            [
                Group(fields["tried"], self._cases(), known, self._describe),
                *(Group(what, self._name_arguments(draw()), more) for what, more, draw in later),
            ]
        )
        result = m.result()
        if not self._parts or not result.example:
            return result
        wanted = self.solve(*(result.example[name] for name in self._names))
        return replace(result, example=self._apart(result.example, wanted))

    @cached_property
    def _names(self) -> Sequence[str]:
        """The parameters of the function, from the task's signature."""
        signature: str = _TABLES[self.name]["signature"]
        return signature[signature.index("(") + 1 : signature.index(")")].split(", ")

    @property
    def _parts(self) -> Sequence[str]:
        parts: Sequence[str] = self.table.fields.get("parts", ())
        return parts

    @cached_property
    def _cases(self) -> Callable[[], list[Arguments]]:
        """Return a function that draws the cases, and caches them for each random seed."""
        return per_seed(lambda: self._name_arguments(self.draw()))

    def _name_arguments(self, calls: Sequence[tuple[Any, ...]]) -> list[Arguments]:
        return [Arguments(dict(zip(self._names, call, strict=True))) for call in calls]

    def _compute(self, case: Arguments, steps: Lines) -> Array:
        arguments = [*case.by_name.values()]
        output = self.solve(*arguments, lines=steps)
        out = _flatten(output) if self._parts else np.asarray(output)
        return out if self.ordered is None else self.ordered(arguments, out)

    def _call(self, function: Function, case: Arguments) -> Any:
        """Call a learner's function; return its result in a form that can be compared."""
        returned, right = function(*case.by_name.values()), self.solve(*case.by_name.values())
        if self._parts:
            return self._check_arrays(returned, right)
        if isinstance(returned, tuple) and isinstance(right, list):
            returned = [*returned]
        if self.within and (out := numbers(returned)) is not None:
            wrong = (way for known in self.table.group() for way in known.variants)
            ways = (self.table.formula.lines, *wrong)
            near = (a for way in ways if (a := self._compute(case, way)).shape == out.shape)
            return next((a for a in near if np.allclose(out, a, 0, self.within)), returned)
        if self.ordered is not None and (out := numbers(returned)) is not None:
            return self.ordered([*case.by_name.values()], out)
        return returned

    def _describe(self, wrong: Outcome) -> Symptom | None:
        """Describe a call that did not return the requested arrays, or another wrong call."""
        if not isinstance(wrong.error, _NotParts):
            return self.otherwise(wrong)
        return Symptom(
            "wrong-parts",
            str(wrong.error),
            "the caller unpacks these arrays from the result",
            self.table.fields["returns"],
            nudge="Print the returned object, and the shape of each array in it.",
            where="the return statement",
            run=replace(wrong, error=None, returned=wrong.error.returned),
        )

    def _check_arrays(self, returned: Any, wanted: Sequence[Array]) -> Array | None:
        """Check the arrays that a learner's function returned, and flatten them into one array."""
        if returned is None:
            return None
        arrays = [numbers(part) for part in returned] if isinstance(returned, tuple | list) else []
        several = f" of {len(arrays)}" if arrays else ""
        if len(arrays) != len(self._parts) or any(a is None for a in arrays):
            wanted_parts = ", ".join(self._parts)
            error = f"it returns {kind_of(returned)}{several}, but should return {wanted_parts}"
            raise _NotParts(returned, error)
        for part, a, right in zip(self._parts, arrays, wanted, strict=True):
            if a is not None and a.shape != right.shape:
                error = f"{part} has the shape {a.shape}, but should have the shape {right.shape}"
                raise _NotParts(returned, error)
        return _flatten([a for a in arrays if a is not None])

    def _apart(self, example: Mapping[str, Any], wanted: Sequence[Array]) -> dict[str, Any]:
        """Split the flattened outputs of an example into named arrays."""
        split: dict[str, Any] = {}
        ends = np.cumsum([a.size for a in wanted])
        for name, value in example.items():
            flat = name in ("yours", "right") and isinstance(value, np.ndarray)
            if flat and value.size == ends[-1]:
                pieces = zip(self._parts, np.split(value, ends[:-1]), wanted, strict=True)
                split |= {f"{name} {part}": piece.reshape(a.shape) for part, piece, a in pieces}
            else:
                split[name] = value
        return split


class _NotParts(TypeError):
    """The error for a result that does not consist of the requested arrays."""

    def __init__(self, returned: Any, error: str) -> None:
        super().__init__(error)
        self.returned = returned


def _flatten(returned: Sequence[Array]) -> Array:
    """Flatten several arrays into one array for a single comparison."""
    return np.concatenate([np.ravel(a) for a in returned])
