"""Is what a function gave right, by the bounds that `qkv.attention` itself is held to?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.conformance.cases import Case
from qkv.marking.conformance.inputs import Drawn, float_type, values
from qkv.marking.conformance.reference import Expected, run

_EXACT = 1e-13  # of float64
_RELATIVE, _OF_SCORES = 2e-6, 2.0**-23
_ROUNDINGS = 5  # as large as that of outputs is the bound of gradients, relative to the largest
_JUDGED = 1e4  # scores beyond have no bound: what is judged is that weights sum to 1


@dataclass(frozen=True)
class Answer:
    """What a call should give: of each array that comes back its name, numbers and bound."""

    names: tuple[str, ...]
    arrays: tuple[Array, ...]
    bounds: tuple[float, ...]
    judged: Any  # bool (B, Hq, L): the rows that count; of gradients all

    def errors(self, given: Sequence[Array]) -> list[float]:
        """How far each array is off; infinite where a NaN stands on one side alone."""
        return [
            _distance(a[self.judged], np.asarray(b, np.float64)[self.judged])
            for a, b in zip(self.arrays, given, strict=True)
        ]

    def worst(self, given: Sequence[Array]) -> tuple[float, float]:
        """The error and the bound of the array that is worst."""
        errors = self.errors(given)
        return max(zip(errors, self.bounds, strict=True), key=lambda pair: pair[0] / (pair[1] or 1))

    def fits(self, given: Sequence[Array]) -> bool:
        """Does each array have the right shape?"""
        return [a.shape for a in self.arrays] == [np.shape(b) for b in given]


def answer(case: Case, drawn: Drawn) -> Answer:
    """The right answer to a case, with its bounds."""
    right = run(values(case, drawn))
    names = returned(case)
    every = case.feature in ("rows that see nothing", "empty")
    judged: Any = ...
    if not every and case.feature != "gradient":
        judged = right.seen.any(axis=-1)
    bounds = [_bound(case, drawn, right, name) for name in names]
    if case.dtype in ("float16", "bfloat16"):
        bounds = _half_bounds(case, drawn, right, names, judged)
    return Answer(names, tuple(parts(right, names)), tuple(bounds), judged)


def returned(case: Case) -> tuple[str, ...]:
    """What comes back, in order."""
    if case.feature == "gradient":
        return ("d_query", "d_key", "d_value")
    names = ["out"]
    names += ["weights"] if case.options.get("return_weights") else []
    names += ["lse"] if case.options.get("return_lse") else []
    return tuple(names)


def parts(found: Expected, names: Sequence[str]) -> list[Array]:
    """What comes back, of all that the formula gives."""
    return [getattr(found, name) for name in names]


def _bound(case: Case, drawn: Drawn, right: Expected, name: str) -> float:
    """What an array may be off by."""
    relative, of_scores = _RELATIVE, _OF_SCORES
    if case.dtype == "float64":
        relative, of_scores = _EXACT, 2.0**-52
    value = np.abs(drawn["value"].astype(np.float64))
    largest = float(value[np.isfinite(value)].max(initial=0))
    lse = np.abs(right.lse[np.isfinite(right.lse)])
    if name == "lse":
        return relative * max(1.0, float(lse.max(initial=0)))
    if name in ("d_query", "d_key", "d_value"):  # sums of as many products as there are rows
        there = float(np.abs(getattr(right, name)).max(initial=0))
        return (_ROUNDINGS * relative + of_scores * right.largest) * max(1.0, there)
    scores = 0.0 if case.constant else min(right.largest, _JUDGED)
    return (relative + of_scores * scores) * (largest if name == "out" else 1.0)


def _half_bounds(
    case: Case, drawn: Drawn, right: Expected, names: Sequence[str], judged: Any
) -> list[float]:
    """Twice the error of the formula computed in the type itself, and the type's own rounding."""
    dtype = float_type(case.dtype)
    own = run(values(case, drawn, dtype), dtype=dtype)
    rounding = 2.0 ** -(11 if case.dtype == "float16" else 8)
    bounds = []
    for exact, rough in zip(parts(right, names), parts(own, names), strict=True):
        exact, rough = exact[judged], rough.astype(np.float64)[judged]
        finite = np.isfinite(exact) & np.isfinite(rough)
        error = np.abs(exact - rough)[finite].max(initial=0)
        bounds.append(
            float(2 * error + rounding * np.abs(exact[np.isfinite(exact)]).max(initial=0))
        )
    return bounds


def _distance(right: Array, given: Array) -> float:
    """The largest difference; equal infinities and two NaN differ by nothing."""
    with np.errstate(invalid="ignore"):
        away = np.abs(right - given)
    away = np.where((right == given) | (np.isnan(right) & np.isnan(given)), 0, away)
    away = np.where(np.isnan(away), np.inf, away)
    return float(away.max(initial=0))
