"""Find known defects that give the same results as a wrong function."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking.conformance._random_arrays import draw, values
from qkv_marking.conformance._reference import GRADIENT, LINES, Defect, Expected, defects
from qkv_marking.conformance._runs import Answer, CaseResult, answer, parts

_MAX_CASES = 120  # An explanation is compared with at most this many cases.
_LARGE = 30_000  # To save time, cases with more array elements than this are skipped.
_ROUNDING = 1e-5  # Allowed rounding error, relative to the largest number.
# If the defects of earlier features explain more than 80% of the cases, no new defect is tried.
_ENOUGH = 0.8
# A defect explains a wrong output only if adding the defect to the formula brings the formula's
# result at least three times closer to this output.
_CLOSER = 3.0
# If a defect predicts only the size of the errors, `_score` limits the fraction of explained cases
# to 0.6.
_ROUGH = 0.6
_LIKE = 3.0  # A defect that predicts an error of 0.1 explains errors below 0.3.


@dataclass(frozen=True)
class Explanation:
    """The known defects that explain why a feature is wrong.

    The formula with these defects gives the same wrong results as the function.

    Attributes:
        says: the defects as text, such as "the kernel ignored softcap".
        defects: the short names of the defects.
        lines: pairs `(line of the formula, its replacement)`.
        explains: `(explained, tried)`: the number of cases that the defects explain, and the number
            of cases that were tried.
        beside: the names of features that were explained earlier. The explanation combines
            defects of these features with the new defects in `defects`.
    """

    says: str
    defects: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]
    explains: tuple[int, int]
    beside: tuple[str, ...] = ()


@dataclass
class _Seen:
    """A case, its result, and the right answer."""

    result: CaseResult
    values: Mapping[str, Any]
    right: Answer
    error: float
    bound: float
    known: dict[tuple[tuple[str, float | None], ...], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, result: CaseResult) -> "_Seen":
        drawn = draw(result.case)
        right = answer(result.case, drawn)
        error, bound = (0.0, 0.0)
        if right.fits(result.outputs):
            error, bound = right.worst(result.outputs)
        return cls(result, values(result.case, drawn), right, error, bound)

    def shows(self, defect: Defect) -> bool:
        """Does this defect alone make the result of the case wrong?"""
        expected = _with((defect,), self.values)
        if expected is None:
            return False
        predicted = parts(expected, self.right.names)
        return not self.right.fits(predicted) or self.right.worst(predicted)[0] > self.bound

    def is_explained_by(self, candidates: tuple[Defect, ...]) -> bool:
        """Do these defects, applied together, give the result of the case?"""
        name = tuple((defect.key, defect.number) for defect in candidates)
        if name not in self.known:
            self.known[name] = self._is_explained_by(candidates)
        return self.known[name]

    def unlike(self, candidates: tuple[Defect, ...]) -> float:
        """Return |log(predicted error / actual error)|, which is 0 if both errors are equal."""
        expected = _with(candidates, self.values)
        error = 0.0
        if expected is not None:
            error = max(self.right.errors(parts(expected, self.right.names)))
        return abs(float(np.log((error + self.bound) / (self.error + self.bound))))

    def _is_explained_by(self, candidates: tuple[Defect, ...]) -> bool:
        expected = _with(candidates, self.values)
        several = len(candidates) > 1
        if expected is None or (several and any(defect.rough for defect in candidates)):
            return False
        predicted = parts(expected, self.right.names)
        outputs = self.result.outputs
        if [a.shape for a in predicted] != [a.shape for a in outputs]:
            return False
        if not self.right.fits(outputs):
            return all(_near(a, b, ..., 1e-5) for a, b in zip(predicted, outputs, strict=True))
        if candidates[-1].rough and self.error > self.bound:
            return self.error < max(self.right.errors(predicted)) * _LIKE < np.inf
        closer = self.error / _CLOSER if self.result.status != "right" else np.inf
        return all(
            _near(a, b, self.right.judged, 2 * bound, closer)
            for a, b, bound in zip(predicted, outputs, self.right.bounds, strict=True)
        )


def _differs(result: CaseResult) -> bool:
    """Does the result have wrong values or shapes? Side effects alone give False."""
    return (
        result.status in ("wrong", "fragile")
        and bool(result.outputs)
        and (result.error is None or not result.message)
    )


def _near(a: Array, b: Array, judged: Any, bound: float, most: float = np.inf) -> bool:
    """Are two arrays equal up to rounding in the rows that `judged` selects?"""
    a, b = a[judged], np.asarray(b, np.float64)[judged]
    largest = np.abs(a[np.isfinite(a)]).max(initial=0)
    off = min(max(bound, _ROUNDING * largest), most)
    return bool(np.allclose(a, b, rtol=0, atol=off, equal_nan=True))


def _with(candidates: Sequence[Defect], values: Mapping[str, Any]) -> Expected | None:
    """Run the formula with several defects; return None if two defects replace the same line."""
    lines: dict[str, str] = {}
    for defect in candidates:
        if lines.keys() & defect.lines.keys():
            return None
        lines |= defect.filled
    try:
        return candidates[-1].run(values, lines)
    except (ArithmeticError, IndexError, ValueError):  # a replaced line raised an error
        return None


class Explainer:
    """Finds known defects that explain the wrong results of a feature.

    The features are explained one by one. For each feature, the `Explainer` first tries the defects
    that it found for earlier features.

    Args:
        results: the results of all cases. A defect gets a lower score if it would change results
            that are right.
    """

    def __init__(self, results: Sequence[CaseResult]) -> None:
        self.known: list[Defect] = []
        self._at: list[str] = []  # for each defect in `known`, the feature for which it was found
        right: dict[str, list[CaseResult]] = {}
        for result in results:
            if result.status == "right" and result.outputs:
                right.setdefault(result.feature, []).append(result)
        few = [result for group in right.values() for result in group[:: len(group) // 6 + 1]]
        self._right = [_Seen.of(result) for result in few if result.case.size()[1] < _LARGE]

    def explain(self, results: Sequence[CaseResult]) -> Explanation | None:
        """Find known defects that would give the function's wrong results, or return None."""
        results = [result for result in results if result.case.size()[1] < _LARGE]
        wrong = sorted(filter(_differs, results), key=lambda result: result.case.size())
        if not wrong:
            return None
        others = [result for result in results if result.status == "right" and result.outputs]
        chosen = [*_spread(wrong, _MAX_CASES // 2), *_spread(others, _MAX_CASES // 2)]
        seen = [_Seen.of(result) for result in chosen]
        best = self._best(seen)
        if not best:
            return None
        feature = results[0].feature
        new = [defect for defect in best if defect not in self.known]
        self.known += new
        self._at += [feature] * len(new)
        named = new or best
        known = zip(self.known, self._at, strict=True)
        beside = [at for defect, at in known if new and defect in best]
        changed = {name: line for defect in named for name, line in defect.filled.items()}
        return Explanation(
            " and ".join(defect.words(seen[0].values) for defect in named),
            tuple(defect.key for defect in named),
            tuple(((LINES | GRADIENT)[name], line) for name, line in changed.items()),
            (sum(case.is_explained_by(best) for case in seen), len(seen)),
            tuple(dict.fromkeys(at for at in beside if at != feature)),
        )

    def known_at(self, result: CaseResult) -> str:
        """Return the name of an earlier feature whose defects explain this result.

        Return "" if no such feature exists.
        """
        if not self.known or result.status != "wrong" or not _differs(result):
            return ""
        seen = _Seen.of(result)
        for candidates in _some(tuple(self.known)):
            if seen.is_explained_by(candidates):
                return self._at[self.known.index(candidates[0])]
        return ""

    def _best(self, seen: list[_Seen]) -> tuple[Defect, ...]:
        """Return a small set of defects that explains the first case and most other cases."""
        known = tuple(defect for defect in self.known if not defect.rough)
        steps: list[list[tuple[Defect, ...]]] = [
            _some(known),
            [(defect,) for defect in defects()],
            [(*some, new) for some in _some(known) for new in defects() if new not in some],
            [],
        ]
        best: tuple[Defect, ...] = ()
        score = (0.0, 0.0, 0)
        for step in steps:
            if step is steps[-1] and not best and not known:
                exact = [defect for defect in defects() if not defect.rough]
                step = [*itertools.combinations(filter(seen[0].shows, exact), 2)]
            for candidates in step:
                if not seen[0].is_explained_by(candidates):
                    continue
                new_score = self._score(candidates, seen)
                if new_score > score:
                    best, score = candidates, new_score
            if score[:2] == (1.0, 1.0) or (step is steps[0] and score[1] > _ENOUGH):
                break
        return best

    def _score(self, candidates: tuple[Defect, ...], seen: list[_Seen]) -> tuple[float, float, int]:
        """Return the score of a set of defects, a tuple of three numbers; a larger tuple is better.

        Some cases test other features, and the function gives right results for them. The first
        number is the fraction of these cases in which the formula with the defects also gives right
        results. The second number is the fraction of the feature's cases that the defects explain.
        The third number is `-n`. Here n is the number of changed lines. A defect can contain a
        number, such as a tile size; each defect that contains a number adds 2 to n.
        """
        share = sum(case.is_explained_by(candidates) for case in seen) / len(seen)
        if candidates[-1].rough:
            unlike = float(np.mean([case.unlike(candidates) for case in seen]))
            return 1.0, min(share, _ROUGH) - 0.1 * min(unlike, 1.0), 0
        feature = seen[0].result.feature
        others = [case for case in self._right if case.result.feature != feature]
        matches = [case.is_explained_by(candidates) for case in others] or [True]
        lines = sum(len(defect.lines) + 2 * (defect.number is not None) for defect in candidates)
        return sum(matches) / len(matches), share, -lines


def _spread(results: Sequence[CaseResult], count: int) -> list[CaseResult]:
    """Select the first `count // 2` results, and evenly spaced results from the rest."""
    first, rest = results[: count // 2], results[count // 2 :]
    return [*first, *rest[:: max(1, 2 * len(rest) // count)]]


def _some(known: tuple[Defect, ...]) -> list[tuple[Defect, ...]]:
    """Return sets of defects to try: each known defect alone, then all of them together."""
    return [*((defect,) for defect in known), *([known] if len(known) > 1 else [])]
