"""Which known defects would give exactly what a function gives?"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.conformance.inputs import draw, values
from qkv.marking.conformance.judge import Answer, answer, parts
from qkv.marking.conformance.reference import GRADIENT, LINES, Defect, Expected, defects
from qkv.marking.conformance.runs import CaseResult

_MOST = 120  # cases that an explanation is held against
_LARGE = 10_000  # numbers of a case beyond which it takes too long to try all defects
_ROUNDING = 1e-5  # of the largest number: what a defect makes large has large errors too
_ENOUGH = 0.8  # of a feature's cases, explained by what is known: nothing else is looked for
_CLOSER = 3.0  # times closer than the right answer is what explains a wrong one
_ROUGH = 0.6  # of a feature's cases must be explained exactly, or a rough explanation does
_LIKE = 3.0  # times larger may an error be that is explained roughly


@dataclass(frozen=True)
class Explanation:
    """What would give what a function gives.

    Attributes:
        says: in words.
        defects: the short names of what is wrong.
        lines: pairs of a line of the formula and what stands in its place.
        explains: how many of the feature's cases it explains, and how many were tried.
        beside: earlier features at which other defects were found that show here too.
    """

    says: str
    defects: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]
    explains: tuple[int, int]
    beside: tuple[str, ...] = ()


@dataclass
class _Seen:
    """A case with what came of it, and what is needed to compare."""

    result: CaseResult
    values: Mapping[str, Any]
    right: Answer
    error: float
    bound: float
    known: dict[tuple[tuple[str, float | None], ...], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, result: CaseResult) -> _Seen:
        drawn = draw(result.case)
        right = answer(result.case, drawn)
        error, bound = (0.0, 0.0)
        if right.fits(result.given):
            error, bound = right.worst(result.given)
        return cls(result, values(result.case, drawn), right, error, bound)

    def shows(self, one: Defect) -> bool:
        """Would this defect alone be seen here?"""
        there = _with((one,), self.values)
        if there is None:
            return False
        would = parts(there, self.right.names)
        return not self.right.fits(would) or self.right.worst(would)[0] > self.bound

    def explained(self, found: tuple[Defect, ...]) -> bool:
        """Would these defects give what came?"""
        name = tuple((one.key, one.number) for one in found)
        if name not in self.known:
            self.known[name] = self._explained(found)
        return self.known[name]

    def unlike(self, found: tuple[Defect, ...]) -> float:
        """How much larger or smaller errors would be, as a logarithm."""
        there = _with(found, self.values)
        would = 0.0 if there is None else max(self.right.errors(parts(there, self.right.names)))
        return abs(float(np.log((would + self.bound) / (self.error + self.bound))))

    def _explained(self, found: tuple[Defect, ...]) -> bool:
        there = _with(found, self.values)
        if there is None or (len(found) > 1 and any(one.rough for one in found)):
            return False
        would = parts(there, self.right.names)
        given = self.result.given
        if [a.shape for a in would] != [a.shape for a in given]:
            return False
        rough = found[-1].rough and self.error > self.bound
        if not self.right.fits(given):
            judged: Any = ...
            return all(_near(a, b, judged, 1e-5) for a, b in zip(would, given, strict=True))
        if rough:
            errors = self.right.errors(would)
            return self.error < max(errors) * _LIKE < np.inf
        closer = self.error / _CLOSER if self.result.status == "wrong" else np.inf
        return all(
            _near(a, b, self.right.judged, 2 * bound, closer)
            for a, b, bound in zip(would, given, self.right.bounds, strict=True)
        )


def _differs(result: CaseResult) -> bool:
    """Are the numbers or the shape wrong, and not what else it did?"""
    return (
        result.status == "wrong"
        and bool(result.given)
        and (result.error is None or not result.message)
    )


def _near(one: Array, other: Array, judged: Any, bound: float, most: float = np.inf) -> bool:
    """Alike but for rounding, where rows count."""
    one, other = one[judged], np.asarray(other, np.float64)[judged]
    largest = np.abs(one[np.isfinite(one)]).max(initial=0)
    off = min(max(bound, _ROUNDING * largest), most)
    return bool(np.allclose(one, other, rtol=0, atol=off, equal_nan=True))


def _with(found: Sequence[Defect], given: Mapping[str, Any]) -> Expected | None:
    """What the formula gives with several defects; None where they are about the same line."""
    lines: dict[str, str] = {}
    for one in found:
        if lines.keys() & one.lines.keys():
            return None
        lines |= one.filled
    try:
        return found[-1].run(given, lines)
    except (ArithmeticError, IndexError, ValueError):  # a line that has no meaning for these sizes
        return None


class Explainer:
    """Explains features one after the other; what is found at one is known at the next ones.

    Args:
        results: what came of all cases: those that are right speak against some defects.
    """

    def __init__(self, results: Sequence[CaseResult]) -> None:
        self.known: list[Defect] = []
        self._at: list[str] = []  # the feature of each
        right: dict[str, list[CaseResult]] = {}
        for one in results:
            if one.status == "right" and one.given:
                right.setdefault(one.feature, []).append(one)
        few = [one for mine in right.values() for one in mine[:: len(mine) // 6 + 1]]
        self._right = [_Seen.of(one) for one in few if one.case.size()[1] < _LARGE]

    def explain(self, results: Sequence[CaseResult]) -> Explanation | None:
        """What would give what these cases of a feature gave; None where nothing known does."""
        results = [one for one in results if one.case.size()[1] < _LARGE]
        wrong = [one for one in results if _differs(one)]
        wrong.sort(key=lambda one: one.case.size())
        if not wrong:
            return None
        others = [one for one in results if one.status == "right" and one.given]
        chosen = [*_spread(wrong, _MOST // 2), *_spread(others, _MOST // 2)]
        seen = [_Seen.of(one) for one in chosen]
        best = self._best(seen)
        if not best:
            return None
        before = [*self.known]
        for one in best:
            if one not in self.known:
                self.known.append(one)
                self._at.append(results[0].feature)
        new = [one for one in best if one not in before]
        told = new or best
        beside = [at for one, at in zip(self.known, self._at, strict=True) if new and one in best]
        changed = {name: line for one in told for name, line in one.filled.items()}
        return Explanation(
            " and ".join(one.words(seen[0].values) for one in told),
            tuple(one.key for one in told),
            tuple(((LINES | GRADIENT)[name], line) for name, line in changed.items()),
            (sum(one.explained(best) for one in seen), len(seen)),
            tuple(dict.fromkeys(at for at in beside if at != results[0].feature)),
        )

    def known_at(self, result: CaseResult) -> str:
        """The earlier feature at which was found what explains this; empty where there is none."""
        if not self.known or not _differs(result):
            return ""
        seen = _Seen.of(result)
        for found in _some(tuple(self.known)):
            if seen.explained(found):
                return self._at[self.known.index(found[0])]
        return ""

    def _best(self, seen: Sequence[_Seen]) -> tuple[Defect, ...]:
        """What explains most cases, the first one among them; the fewest defects win."""
        known = tuple(one for one in self.known if not one.rough)
        steps: list[list[tuple[Defect, ...]]] = [
            _some(known),
            [(one,) for one in defects()],
            [(*some, one) for some in _some(known) for one in defects() if one not in some],
            [],
        ]
        best: tuple[Defect, ...] = ()
        score = (0.0, 0.0, 0)
        for candidates in steps:
            if candidates is steps[-1] and not best and not known:
                shown = [one for one in defects() if not one.rough and seen[0].shows(one)]
                candidates = [*itertools.combinations(shown, 2)]
            for found in candidates:
                if not seen[0].explained(found):
                    continue
                new = self._score(found, seen)
                if new > score:
                    best, score = found, new
            if score[:2] == (1.0, 1.0) or (candidates is steps[0] and score[1] > _ENOUGH):
                break
        return best

    def _score(self, found: tuple[Defect, ...], seen: Sequence[_Seen]) -> tuple[float, float, int]:
        """Shares of right cases that it leaves as they are, and of the feature's it explains.

        Of several that are alike in this, the one that changes the fewest lines comes first.
        """
        mine = [one.explained(found) for one in seen]
        share = sum(mine) / len(mine)
        if found[-1].rough:
            unlike = float(np.mean([one.unlike(found) for one in seen]))
            return 1.0, min(share, _ROUGH) - 0.1 * min(unlike, 1.0), 0
        feature = seen[0].result.feature
        others = [one for one in self._right if one.result.feature != feature]
        kept = [one.explained(found) for one in others] or [True]
        lines = sum(len(one.lines) + 2 * (one.number is not None) for one in found)
        return sum(kept) / len(kept), share, -lines


def _spread(results: Sequence[CaseResult], count: int) -> list[CaseResult]:
    """The first ones, and some of the others."""
    first, rest = results[: count // 2], results[count // 2 :]
    return [*first, *rest[:: max(1, 2 * len(rest) // count)]]


def _some(known: tuple[Defect, ...]) -> list[tuple[Defect, ...]]:
    """Those that are known, each alone and all together."""
    return [*((one,) for one in known), *([known] if len(known) > 1 else [])]
