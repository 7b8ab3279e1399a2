"""Tasks that ask for one short function: the right function, known wrong functions, and inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature as parameters_of
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.engine import Group, mark_in_steps, nothing_known, per_seed
from qkv.marking.findings import Finding
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.outcome import Outcome, kind_of, name_of, numbers, options_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.task import Task, task

DO = "do"


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, keyed by name."""

    by_name: Mapping[str, Any]

    def shown(self) -> dict[str, Any]:
        """Return the arguments."""
        return dict(self.by_name)


def exercise(
    name: str,
    right: Callable[..., Any],
    draw: Callable[[], Sequence[tuple[Any, ...]]],
    *mistakes: Mistake,
    tried: str,
    returns: str,
    parts: Sequence[str] = (),
    otherwise: Callable[[Outcome], Finding | None] = nothing_known,
    within: float = 0.0,
) -> Task:
    """Return a task that compares a learner's function with the right function.

    Args:
        name: the task's name.
        right: the right function; the learner's function has the same name.
        draw: a function that draws the arguments of each call, smallest first.
        mistakes: the known mistakes, each of which replaces the step `DO`.
        tried: a description of the tested inputs, for example "angles" in "Tried: angles".
        returns: the right return statement.
        parts: the names of the returned arrays, if the function returns several.
        otherwise: a function that describes a wrong call if no known mistake explains the call.
        within: the tolerance for numbers measured on a trained model.
    """
    names = tuple(parameters_of(right).parameters)
    cases = per_seed(lambda: [Arguments(dict(zip(names, a, strict=True))) for a in draw()])

    def compute(case: Arguments, steps: Steps) -> Array:
        output = steps[DO](*case.by_name.values())
        return _joined(output) if parts else np.asarray(output)

    def mark(function: Callable[..., Any], way: str) -> CheckResult:
        options_of(function, names, {})

        def call(case: Arguments) -> Any:
            returned = function(*case.by_name.values())
            if parts:
                return _checked(returned, right(*case.by_name.values()), parts)
            if isinstance(returned, tuple) and isinstance(right(*case.by_name.values()), list):
                returned = [*returned]
            if within and (out := numbers(returned)) is not None:
                variants = ({DO: right}, *(v for known in mistakes for v in known.variants))
                near = (a for v in variants if (a := compute(case, v)).shape == out.shape)
                return next((a for a in near if np.allclose(out, a, 0, within)), returned)
            return returned

        def describe(wrong: Outcome) -> Finding | None:
            return _not_parts(wrong, returns) or otherwise(wrong)

        result = mark_in_steps(
            name,
            name_of(function),
            call,
            compute,
            {DO: right},
            [Group(tried, cases(), mistakes, describe)],
            returns=returns,
        )
        if not parts or not result.example:
            return result
        wanted = right(*(result.example[name] for name in names))
        return replace(result, example=_apart(result.example, wanted, parts))

    return task(name, mark)


class _NotParts(TypeError):
    """The error for a result that does not consist of the requested arrays."""

    def __init__(self, returned: Any, error: str) -> None:
        super().__init__(error)
        self.returned = returned


def _not_parts(wrong: Outcome, returns: str) -> Finding | None:
    """Describe a call that did not return the requested arrays."""
    if not isinstance(wrong.error, _NotParts):
        return None
    return Finding(
        "wrong-parts",
        str(wrong.error),
        "the caller unpacks these arrays from the result",
        returns,
        nudge="Print the returned object, and the shape of each array in it.",
        where="the return statement",
        run=replace(wrong, error=None, returned=wrong.error.returned),
    )


def _joined(returned: Sequence[Array]) -> Array:
    """Flatten several arrays into one array for a single comparison."""
    return np.concatenate([np.ravel(a) for a in returned])


def _checked(returned: Any, wanted: Sequence[Array], parts: Sequence[str]) -> Array | None:
    """Check the arrays that a learner's function returned, and flatten them into one array."""
    if returned is None:
        return None
    arrays = [numbers(part) for part in returned] if isinstance(returned, tuple | list) else []
    several = f" of {len(arrays)}" if arrays else ""
    if len(arrays) != len(parts) or any(a is None for a in arrays):
        wanted_parts = ", ".join(parts)
        error = f"it returns {kind_of(returned)}{several}, but should return {wanted_parts}"
        raise _NotParts(returned, error)
    for part, a, right in zip(parts, arrays, wanted, strict=True):
        if a is not None and a.shape != right.shape:
            error = f"{part} has the shape {a.shape}, but should have the shape {right.shape}"
            raise _NotParts(returned, error)
    return _joined([a for a in arrays if a is not None])


def _apart(
    example: Mapping[str, Any], wanted: Sequence[Array], parts: Sequence[str]
) -> dict[str, Any]:
    """Split the flattened outputs of an example into named arrays."""
    split: dict[str, Any] = {}
    ends = np.cumsum([a.size for a in wanted])
    for name, value in example.items():
        if name in ("yours", "right") and isinstance(value, np.ndarray) and value.size == ends[-1]:
            pieces = zip(parts, np.split(value, ends[:-1]), wanted, strict=True)
            split |= {f"{name} {part}": piece.reshape(a.shape) for part, piece, a in pieces}
        else:
            split[name] = value
    return split
