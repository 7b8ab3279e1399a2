"""A task that is one short function: the right one, wrong ones by name, and inputs for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature as parameters_of
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import per_seed
from qkv.marking.engine import Group, mark_in_steps, nothing_known
from qkv.marking.findings import Finding
from qkv.marking.functions import options_of
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.outcome import Outcome, kind_of, name_of, numbers
from qkv.marking.result import CheckResult
from qkv.marking.tasks.task import Task

DO = "do"


@dataclass(frozen=True)
class Call:
    """A call of the function with these arguments, by name."""

    arguments: Mapping[str, Any]

    def shown(self) -> dict[str, Any]:
        """The arguments."""
        return dict(self.arguments)


def exercise(
    name: str,
    right: Callable[..., Any],
    draw: Callable[[], Sequence[tuple[Any, ...]]],
    *mistakes: Mistake,
    signature: str,
    asks: str,
    what: str,
    returns: str,
    parts: Sequence[str] = (),
    otherwise: Callable[[Outcome], Finding | None] = nothing_known,
    within: float = 0.0,
    may_use: bool = False,
) -> Task:
    """A task whose function is compared with the right one on inputs of several sizes.

    Args:
        name: of the task.
        right: the right function, of the name that the learner's has.
        draw: the arguments of each call, smallest first.
        mistakes: each puts another function in the place of the step `DO`.
        signature: how it is called, and what it gives.
        asks: what is to be written, in a sentence.
        what: is tested, as in "Tried: angles".
        returns: the statement that returns what should be.
        parts: where several arrays are returned, what they are.
        otherwise: what else is known of the first call that went wrong.
        within: how far off a number may be that is measured on a trained model.
        may_use: the task is to use qkv, so that calls of it are no help.
    """
    names = tuple(parameters_of(right).parameters)
    cases = per_seed(lambda: [Call(dict(zip(names, one, strict=True))) for one in draw()])

    def compute(case: Call, steps: Steps) -> Array:
        made = steps[DO](*case.arguments.values())
        return _joined(made) if parts else np.asarray(made)

    def mark(function: Callable[..., Any], way: str) -> CheckResult:
        options_of(function, names, {})

        def call(case: Call) -> Any:
            returned = function(*case.arguments.values())
            if parts:
                return _checked(returned, right(*case.arguments.values()), parts)
            if isinstance(returned, tuple) and isinstance(right(*case.arguments.values()), list):
                returned = [*returned]
            if within and (out := numbers(returned)) is not None:
                ways = ({DO: right}, *(way for one in mistakes for way in one.variants))
                near = (a for way in ways if (a := compute(case, way)).shape == out.shape)
                return next((a for a in near if np.allclose(out, a, 0, within)), returned)
            return returned

        def unlike(wrong: Outcome) -> Finding | None:
            return _not_parts(wrong, returns) or otherwise(wrong)

        result = mark_in_steps(
            name,
            name_of(function),
            call,
            compute,
            {DO: right},
            [Group(what, cases(), mistakes, unlike)],
            returns=returns,
        )
        if not parts or not result.example:
            return result
        wanted = right(*(result.example[name] for name in names))
        return replace(result, example=_apart(result.example, wanted, parts))

    return Task(
        name, (right.__name__,), signature, asks, mark, everyday=(right.__name__,), may_use=may_use
    )


class _NotParts(TypeError):
    """Something else than the arrays that were asked for was returned."""

    def __init__(self, returned: Any, says: str) -> None:
        super().__init__(says)
        self.returned = returned


def _not_parts(wrong: Outcome, returns: str) -> Finding | None:
    """What to say where something else was returned than the arrays that were asked for."""
    if not isinstance(wrong.error, _NotParts):
        return None
    return Finding(
        "wrong-parts",
        str(wrong.error),
        "whoever calls it takes the arrays apart again",
        returns,
        nudge="Print what it returns, and the shape of each array in it.",
        where="the return statement",
        run=replace(wrong, error=None, returned=wrong.error.returned),
    )


def _joined(returned: Sequence[Array]) -> Array:
    """Several arrays as one row of numbers, as they are compared."""
    return np.concatenate([np.ravel(one) for one in returned])


def _checked(returned: Any, wanted: Sequence[Array], parts: Sequence[str]) -> Array | None:
    """The same of what a learner's function returned, which may be anything."""
    if returned is None:
        return None
    arrays = [numbers(one) for one in returned] if isinstance(returned, tuple | list) else []
    several = f" of {len(arrays)}" if arrays else ""
    if len(arrays) != len(parts) or any(a is None for a in arrays):
        said = f"it returns {kind_of(returned)}{several}, not the arrays {', '.join(parts)}"
        raise _NotParts(returned, said)
    for part, a, right in zip(parts, arrays, wanted, strict=True):
        if a is not None and a.shape != right.shape:
            said = f"{part} has the shape {a.shape}, it should be {right.shape}"
            raise _NotParts(returned, said)
    return _joined([a for a in arrays if a is not None])


def _apart(
    example: Mapping[str, Any], wanted: Sequence[Array], parts: Sequence[str]
) -> dict[str, Any]:
    """An example in which what was joined is several arrays again, each with its name."""
    found: dict[str, Any] = {}
    ends = np.cumsum([a.size for a in wanted])
    for name, value in example.items():
        if name in ("yours", "right") and isinstance(value, np.ndarray) and value.size == ends[-1]:
            pieces = zip(parts, np.split(value, ends[:-1]), wanted, strict=True)
            found |= {f"{name} {part}": piece.reshape(a.shape) for part, piece, a in pieces}
        else:
            found[name] = value
    return found
