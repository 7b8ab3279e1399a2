"""Points for a function with wrong results: they depend on what works, not on named mistakes."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from statistics import fmean
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._outcome import Outcome, allowed_error

ALL_POINTS = 10  # the points of a right function
_POINTS_IF_WRONG = 8
_DEPENDS, _RIGHT = 5, 4  # points for dependences and for results; 9 points for results alone


def rate_results(
    tests: Sequence[Sequence[Outcome]],
    call: Callable[[Any], Outcome],
    varied: Collection[str] | None = None,
) -> tuple[int, str]:
    """Return the points (0 to 8) for a function with wrong results, and the reason.

    A function gets up to 5 points for results that depend on the same inputs as the right results,
    and up to 4 points for the share of right numbers in its results. Each test counts equally. If
    some calls raise an error or return a wrong shape, the points are reduced in proportion.

    Args:
        tests: the calls of each test. The first test has calls without special inputs.
        call: a function that calls the student's function on a case.
        varied: the fields of a case that hold inputs; by default, all fields.
    """
    runs = [run for test in tests for run in test]
    works = fmean(_has_right_shape(run) for run in runs) if runs else 0.0
    right = fmean([fmean(map(_share_right, test)) for test in tests if test] or [0.0])
    depends = _share_of_dependences(tests[0][-1].case, call, varied) if tests and tests[0] else None
    if depends is None:
        most, points = _DEPENDS + _RIGHT, works * (_DEPENDS + _RIGHT) * right
        reason = ""
    else:
        most, points = _RIGHT, works * (_DEPENDS * depends + _RIGHT * right)
        reason = (
            f"{depends:.0%} of your numbers change with the same inputs as the right numbers do"
        )
        reason += f" (up to {_DEPENDS} points), and "
    reason += f"{right:.0%} of your numbers are right (up to {most} points)"
    if works < 1:
        reason += f"; {works:.0%} of the calls return an array of the right shape"
    points = min(_POINTS_IF_WRONG, int(points + 1e-9))
    return points, f"{reason}. A wrong answer gets at most {_POINTS_IF_WRONG} points."


def _has_right_shape(run: Outcome) -> bool:
    return run.out is not None and run.out.shape == run.right.shape


def _share_right(run: Outcome) -> float:
    """Return the share of right numbers in a result."""
    if run.is_right:
        return 1.0
    if run.out is None or run.out.shape != run.right.shape:
        return 0.0
    return 1.0 - float(np.mean(_differ(run.out, run.right)))


def _differ(a: Array, b: Array) -> Array:
    """Return where two arrays differ; two nan count as equal."""
    return ~np.isclose(a, b, rtol=0, atol=allowed_error(b), equal_nan=True)


def _share_of_dependences(
    case: Any, call: Callable[[Any], Outcome], varied: Collection[str] | None
) -> float | None:
    """Change one input at a time; return the share of right numbers among those that change.

    Return None if no input of the case can be changed.
    """
    before = call(case)
    shares = []
    for changed in _variations(case, varied):
        after = call(changed)
        if not _has_right_shape(before) or not _has_right_shape(after):
            shares.append(0.0)
        elif after.out is not None and before.out is not None:
            moved = _differ(after.out, before.out)
            should = _differ(after.right, before.right)
            if (either := moved | should).any():
                shares.append(float((moved & should).sum() / either.sum()))
    return fmean(shares) if shares else None


def _variations(case: Any, varied: Collection[str] | None) -> Iterator[Any]:
    """Yield copies of a case, each with one changed input."""
    for field in fields(case):
        value = getattr(case, field.name)
        if varied is not None and field.name not in varied:
            continue
        if isinstance(value, Mapping):
            for name, one in value.items():
                if (moved := _move(one)) is not None:
                    yield replace(case, **{field.name: {**value, name: moved}})
        elif (moved := _move(value)) is not None:
            yield replace(case, **{field.name: moved})


def _move(value: Any) -> Any:
    """Change a number, or the last row of an array; return None if the value cannot be changed."""
    if type(value) is float:
        return value * 0.75
    if not isinstance(value, np.ndarray) or not value.size or not value.ndim:
        return None
    moved = value.copy()
    if value.dtype.kind == "f" and np.isfinite(value).all():
        np.moveaxis(moved, -min(value.ndim, 2), 0)[-1] += 0.5
        return moved
    if value.dtype.kind == "i":
        moved.flat[-1] = moved.flat[0]
        return moved if (moved != value).any() else None
    return None
