"""A task that is one short function: the right one, wrong ones by name, and inputs for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature as parameters_of
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import per_seed
from qkv.marking.engine import Group, mark_in_steps, nothing_known
from qkv.marking.findings import Finding
from qkv.marking.mistake import Mistake, Steps, mistake
from qkv.marking.outcome import Outcome, name_of, numbers
from qkv.marking.parameters import options_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.task import Task

_DO = "do"


@dataclass(frozen=True)
class Call:
    """A call of the function with these arguments, by name."""

    arguments: Mapping[str, Any]

    def shown(self) -> dict[str, Any]:
        """The arguments."""
        return dict(self.arguments)


def slip(
    key: str,
    says: str,
    shows: str,
    *wrong: Callable[..., Any],
    remedy: str,
    nudge: str,
    where: str = "",
) -> Mistake:
    """A mistake, as the functions that make it in one way or another."""
    variants = [{_DO: one} for one in wrong]
    return mistake(key, says, shows, *variants, remedy=remedy, nudge=nudge, where=where)


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
        mistakes: made by `slip`.
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
        return np.asarray(_joined(steps[_DO](*case.arguments.values()), parts))

    def mark(function: Callable[..., Any], way: str) -> CheckResult:
        options_of(function, names, {})

        def call(case: Call) -> Any:
            returned = _joined(function(*case.arguments.values()), parts)
            if isinstance(returned, tuple) and isinstance(right(*case.arguments.values()), list):
                return [*returned]
            if within and (out := numbers(returned)) is not None:
                ways = ({_DO: right}, *(way for one in mistakes for way in one.variants))
                near = (a for way in ways if (a := compute(case, way)).shape == out.shape)
                return next((a for a in near if np.allclose(out, a, 0, within)), returned)
            return returned

        return mark_in_steps(
            name,
            name_of(function),
            call,
            compute,
            {_DO: right},
            [Group(what, cases(), mistakes, otherwise)],
            returns=returns,
        )

    return Task(
        name, (right.__name__,), signature, asks, mark, everyday=(right.__name__,), may_use=may_use
    )


def _joined(returned: Any, parts: Sequence[str]) -> Any:
    """Several arrays as one row of numbers, as they are compared; one array as it is."""
    if not parts or returned is None:
        return returned
    if not isinstance(returned, tuple | list) or len(returned) != len(parts):
        raise TypeError(f"{len(parts)} arrays should come back: {', '.join(parts)}")
    arrays = [numbers(one) for one in returned]
    if any(a is None for a in arrays):
        raise TypeError(f"each of {', '.join(parts)} should be an array of numbers")
    # shapes stand before the numbers, so that no array passes for its transpose
    return np.concatenate([np.r_[a.shape, a.ravel()] for a in arrays if a is not None])
