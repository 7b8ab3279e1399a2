"""Find known defects that give the same results as a wrong function."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking.conformance._defects import Defect, conditions, defects, limits, under
from qkv_marking.conformance._random_arrays import draw, values
from qkv_marking.conformance._reference import GRADIENT, LINES, Expected, run
from qkv_marking.conformance._runs import Answer, CaseResult, answer, parts

_MAX_CASES = 120  # An explanation is compared with at most this many cases.
_LARGE = 30_000  # To save time, cases with more array elements than this are skipped.
_ROUNDING = 1e-5  # Allowed rounding error, relative to the largest number.
# A named defect must explain this share of a feature's wrong cases. The number of the feature's
# right cases that the defect would make wrong is at most `_REFUTING` times the number of wrong
# cases.
_ENOUGH, _REFUTING = 0.9, 0.7
# The number of cases that must show a condition of a defect: wrong cases that the defect explains,
# and right cases that the defect without its condition would make wrong.
_AT_LEAST = 3
# A defect explains a wrong output only if adding the defect to the formula brings the formula's
# result at least three times closer to this output.
_CLOSER = 3.0
_LIKE = 3.0  # A rough defect that predicts an error of 0.1 explains errors below 0.3.
# A rough defect is named only if the mean |log(predicted error / error)| is below `_UNLIKE`, and by
# `_CLEARLY` below that of all other rough defects.
_UNLIKE, _CLEARLY = 0.7, 0.1


@dataclass(frozen=True)
class Explanation:
    """The known defects that explain why a feature is wrong.

    The formula with these defects gives the same wrong results as the function.

    Attributes:
        says: the defects as text, such as "the kernel ignored softcap".
        defects: the short names of the defects.
        lines: pairs `(line of the formula, its replacement)`.
        explains: `(explained, tried)`: the number of wrong cases that the defects explain, and the
            number of wrong cases that were compared.
        beside: the names of features that were explained earlier. The explanation combines
            defects of these features with the new defects in `defects`.
        feature: the feature that the defects belong to.
    """

    says: str
    defects: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]
    explains: tuple[int, int]
    beside: tuple[str, ...] = ()
    feature: str = ""


@dataclass
class _Seen:
    """A case, its result, and the right answer."""

    result: CaseResult
    values: Mapping[str, Any]
    right: Answer
    error: float
    bound: float
    # for each set of defects: whether it gives the result of the case, and makes the case wrong
    known: dict[tuple[Defect, ...], tuple[bool, bool]] = field(default_factory=dict)
    true: dict[str, bool] = field(default_factory=dict)  # the known values of conditions

    @classmethod
    def of(cls, result: CaseResult) -> "_Seen":
        drawn = draw(result.case)
        right = answer(result.case, drawn)
        error, bound = (0.0, 0.0)
        if right.fits(result.outputs):
            error, bound = right.worst(result.outputs)
        return cls(result, values(result.case, drawn), right, error, bound)

    def shows(self, candidates: tuple[Defect, ...]) -> bool:
        """Return whether these defects together make the result of the case wrong."""
        return self._compare(candidates)[1]

    def is_explained_by(self, candidates: tuple[Defect, ...]) -> bool:
        """Return whether these defects together produce the result of the case."""
        return self._compare(candidates)[0]

    def has(self, condition: str) -> bool:
        """Return whether a condition is true for the call."""
        if condition not in self.true:
            self.true[condition] = bool(eval(condition, {"np": np, **self.values}))
        return self.true[condition]

    def _compare(self, candidates: tuple[Defect, ...]) -> tuple[bool, bool]:
        """Return `(is explained by, shows)`.

        For a defect with a condition, the defect has no effect if the condition is false.
        """
        if any(one.base is not None for one in candidates):
            candidates = tuple(
                one.base or one
                for one in candidates
                if not one.condition or self.has(one.condition)
            )
        if not candidates:
            return self.result.status == "right", False
        if candidates not in self.known:
            expected = _with(candidates, self.values)
            shows = False
            if expected is not None:
                predicted = parts(expected, self.right.names)
                shows = not self.right.fits(predicted) or (
                    self.right.worst(predicted)[0] > self.bound
                )
            self.known[candidates] = self._is_explained_by(candidates, expected), shows
        return self.known[candidates]

    def unlike(self, candidates: tuple[Defect, ...]) -> float:
        """Return |log(predicted error / actual error)|, which is 0 if both errors are equal."""
        expected = _with(candidates, self.values)
        error = 0.0
        if expected is not None:
            error = max(self.right.errors(parts(expected, self.right.names)))
        return abs(float(np.log((error + self.bound) / (self.error + self.bound))))

    def _is_explained_by(self, candidates: tuple[Defect, ...], expected: Expected | None) -> bool:
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
        # float32 rounds large mask values
        slack = max((abs(one.number or 0) for one in candidates if one.vague), default=0.0)
        slack = min(slack * 2.0**-22, 0.01)
        return all(
            _near(a, b, self.right.judged, 2 * bound, closer, slack)
            for a, b, bound in zip(predicted, outputs, self.right.bounds, strict=True)
        )


def _differs(result: CaseResult) -> bool:
    """Return whether the result has wrong values or shapes; ignore side effects."""
    return (
        result.status in ("wrong", "fragile")
        and bool(result.outputs)
        and (result.error is None or not result.message)
    )


def _near(
    a: Array, b: Array, judged: Any, bound: float, most: float = np.inf, slack: float = 0
) -> bool:
    """Return whether two arrays are equal, up to rounding, in the rows that `judged` selects."""
    a, b = a[judged], np.asarray(b, np.float64)[judged]
    largest = np.abs(a[np.isfinite(a)]).max(initial=0)
    off = min(max(bound, max(_ROUNDING, slack) * largest), most)
    return bool(np.allclose(a, b, rtol=0, atol=off, equal_nan=True))


def _with(candidates: Sequence[Defect], values: Mapping[str, Any]) -> Expected | None:
    """Run the formula with several defects; return None if two defects replace the same line."""
    lines: dict[str, str] = {}
    limited = [defect for defect in candidates if defect.only]
    for defect in candidates:
        if lines.keys() & defect.lines.keys():
            return None
        lines |= {} if defect.only else defect.filled
    try:
        found = run(values, lines)
        for defect in limited:
            found = defect.run(values, lines, found)
        return found
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
        self._wrong = {result.feature for result in results if result.status == "wrong"}
        right = (it for it in results if it.status == "right")
        right = (it for it in right if not it.case.poison or it.case.hides_nan)
        self._right = _of_each_feature(it for it in right if it.outputs)
        self._bad = _of_each_feature(filter(_differs, results))

    def explain(self, results: Sequence[CaseResult]) -> Explanation | None:
        """Find known defects that would produce the function's wrong results, or return None."""
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
        # the causal cases with q_offset are wrong too if a defect is typical of q_offset
        feature = next((name for one in best for name in one.features if name in self._wrong), "")
        feature = feature or results[0].feature
        new = [defect for defect in best if defect not in self.known]
        self.known += new
        self._at += [feature] * len(new)
        named = new or best
        wrong_cases = [case for case in seen if case.result.status != "right"]
        known = zip(self.known, self._at, strict=True)
        beside = [at for defect, at in known if new and defect in best]
        changed = {name: line for defect in named for name, line in defect.filled.items()}
        return Explanation(
            " and ".join(self._words(defect, best, seen) for defect in named),
            tuple(defect.key for defect in named),
            tuple(((LINES | GRADIENT)[name], line) for name, line in changed.items()),
            (sum(case.is_explained_by(best) for case in wrong_cases), len(wrong_cases)),
            tuple(dict.fromkeys(at for at in beside if at != feature)),
            feature,
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
                at = self._at[self.known.index(candidates[0])]
                return at if at != result.feature else ""
        return ""

    def _best(self, seen: list[_Seen]) -> tuple[Defect, ...]:
        """Return a small set of defects that explains the first case and nearly all other cases."""
        known = tuple(defect for defect in self.known if not defect.rough)
        exact = whole = [defect for defect in defects() if not defect.rough]
        true = [name for name, condition in conditions().items() if seen[0].has(condition)]
        if wrong := _wrong_results(seen):
            names = seen[0].right.names
            exact = [*whole, *(one for defect in whole for one in limits(defect, names, wrong))]

        def after(some: tuple[Defect, ...]) -> list[tuple[Defect, ...]]:
            """Add to `some` each new defect, with any condition, that explains the first result."""
            new = [one for one in exact if one not in some]
            fitting = [one for one in new if seen[0].is_explained_by((*some, one))]
            limited = (under(one, name) for one in fitting for name in true)
            return [(*some, one) for one in (*fitting, *limited)]

        def under_two() -> Iterator[tuple[Defect, ...]]:
            fitting = [one for one in exact if seen[0].is_explained_by((one,))]
            return ((under(one, *pair),) for one in fitting for pair in combinations(true, 2))

        steps: list[Callable[[], Iterable[tuple[Defect, ...]]]] = [
            lambda: _some(known),
            lambda: after(()),
            lambda: [one for some in _some(known) for one in after(some)],
            under_two,
            lambda: (
                [] if known else [*combinations([one for one in whole if seen[0].shows((one,))], 2)]
            ),
        ]
        for step in steps:
            fitting = [some for some in step() if self._explains(some, seen)]
            if fitting:
                return max(fitting, key=lambda some: self._score(some, seen))
        return self._best_rough(seen)

    def _explains(self, candidates: tuple[Defect, ...], seen: list[_Seen]) -> bool:
        """Return whether defects explain nearly all wrong cases, and spoil few right cases."""
        if not seen[0].is_explained_by(candidates):
            return False
        wrong = [case for case in seen if case.result.status != "right"]
        left = len(wrong) * (1 - _ENOUGH) + 1e-9  # the number of cases that need no explanation
        for case in wrong:
            left -= not case.is_explained_by(candidates)
            if left < 0:
                return False
        right = [case for case in seen if case.result.status == "right" and case.shows(candidates)]
        refuting = sum(not case.is_explained_by(candidates) for case in right)
        if refuting > _REFUTING * len(wrong):
            return False
        new = [defect for defect in candidates if defect not in self.known]
        if len(wrong) >= _AT_LEAST or not any(defect.condition for defect in new):
            return True
        always = tuple(defect.base or defect for defect in candidates)
        right = [case for case in (*seen, *self._right) if case.result.status == "right"]
        needed = sum(case.shows(always) and not case.shows(candidates) for case in right)
        return len(wrong) + needed >= _AT_LEAST

    def _score(
        self, candidates: tuple[Defect, ...], seen: list[_Seen]
    ) -> tuple[float, bool, int, int]:
        """Return the score of a set of defects, a tuple of four numbers; a larger tuple is better.

        The first number is the fraction of explained cases, among the cases that tell the defects
        apart from a right function. The second number tells whether the defects are typical of
        the feature. The third number counts the explained wrong cases of other features. The fourth
        number is `-n`. Here n is the number of changed lines; a number in a defect, such as a tile
        size, adds 2 to n, and a condition or a limit to some results adds 1.
        """
        feature = seen[0].result.feature
        cases = [*seen, *(case for case in self._right if case.result.feature != feature)]
        telling = [
            case for case in cases if case.result.status != "right" or case.shows(candidates)
        ]
        share = sum(case.is_explained_by(candidates) for case in telling) / len(telling)
        numbers = sum(defect.number is not None and not defect.vague for defect in candidates)
        lines = sum(
            len(defect.lines) + bool(defect.when) + bool(defect.only) for defect in candidates
        )
        typical = {feature, *self._wrong} if feature == "causal" else {feature}
        is_typical = any(typical.intersection(defect.features) for defect in candidates)
        others = [case for case in self._bad if case.result.feature != feature]
        elsewhere = sum(case.is_explained_by(candidates) for case in others)
        return round(share, 3), is_typical, elsewhere, -lines - 2 * numbers

    def _best_rough(self, seen: list[_Seen]) -> tuple[Defect, ...]:
        """Return the only defect whose errors are about as large as the function's, if any."""
        if any(defect.rough for defect in self.known):
            return ()
        wrong = [case for case in seen if case.result.status != "right"]
        unlike: dict[Defect, float] = {}
        for defect in (one for one in defects() if one.rough):
            if sum(case.is_explained_by((defect,)) for case in wrong) >= _ENOUGH * len(wrong):
                unlike[defect] = float(np.mean([case.unlike((defect,)) for case in seen]))
        best = min(unlike, key=lambda defect: unlike[defect], default=None)
        if best is None or unlike[best] > _UNLIKE:
            return ()
        others = [value for defect, value in unlike.items() if defect.key != best.key]
        return (best,) if all(value > unlike[best] + _CLEARLY for value in others) else ()

    def _words(self, defect: Defect, best: tuple[Defect, ...], seen: list[_Seen]) -> str:
        """Describe a defect; omit its number if other numbers fit equally well."""
        score = self._score(best, seen)
        base = defect.base or defect
        for one in defects():
            if defect.vague and one.key == base.key and one.number != base.number:
                other = base._replace(number=one.number)
                other = defect._replace(number=one.number, base=other) if defect.base else other
                changed = tuple(other if one == defect else one for one in best)
                if self._score(changed, seen) == score:
                    return defect.says.format(number=defect.vague)
        return defect.words(seen[0].values)


def _of_each_feature(results: Iterable[CaseResult]) -> list[_Seen]:
    """Return at most 12 of the small cases of each feature."""
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        if result.case.size()[1] < _LARGE:
            groups.setdefault(result.feature, []).append(result)
    few = (it for group in groups.values() for it in group[:: len(group) // 12 + 1])
    return [_Seen.of(result) for result in few]


def _wrong_results(seen: Iterable[_Seen]) -> tuple[str, ...]:
    """Return the names of the results that are wrong in some case; () if a shape is wrong."""
    wrong: dict[str, None] = {}
    for case in (case for case in seen if case.result.status != "right"):
        if not case.right.fits(case.result.outputs):
            return ()
        errors = case.right.errors(case.result.outputs)
        bounds = zip(case.right.names, errors, case.right.bounds, strict=True)
        wrong |= dict.fromkeys(name for name, error, bound in bounds if not error <= bound)
    return tuple(wrong)


def _spread(results: Sequence[CaseResult], count: int) -> list[CaseResult]:
    """Select the first `count // 2` results, and evenly spaced results from the rest."""
    first, rest = results[: count // 2], results[count // 2 :]
    return [*first, *rest[:: max(1, 2 * len(rest) // count)]]


def _some(known: tuple[Defect, ...]) -> list[tuple[Defect, ...]]:
    """Return sets of defects to try: each known defect alone, then all of them together."""
    return [*((defect,) for defect in known), *([known] if len(known) > 1 else [])]
