"""The third task of lesson 12: the induction score of a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import generator
from qkv.marking.tasks.exercise import DO, exercise
from qkv.marking.tasks.texts import Texts

_TEXTS = Texts(__name__)


def _returning(ids: Any, names: Any) -> Iterator[tuple[int, list[int]]]:
    """Yield each position of a name that occurred before, with the name's earlier positions."""
    for i, one in enumerate(ids):
        earlier = [j for j in range(i) if ids[j] == one]
        if earlier and one in names:
            yield i, earlier


def induction_score(weights: Array, ids: Any, names: Any) -> Any:
    """Return the mean weight that returning names give to words after their earlier mentions."""
    return np.mean(
        [sum(weights[i, j + 1] for j in earlier) for i, earlier in _returning(ids, names)]
    )


def _shifted(by: int) -> Callable[..., Any]:
    return lambda weights, ids, names: np.mean(
        [sum(weights[i, j + by] for j in earlier) for i, earlier in _returning(ids, names)]
    )


def _of_one(number: int) -> Callable[..., Any]:
    """Score only the first or only the last earlier position of each name."""
    return lambda weights, ids, names: np.mean(
        [weights[i, earlier[number] + 1] for i, earlier in _returning(ids, names)]
    )


def _later(*, itself: bool) -> Callable[..., Any]:
    """Score all positions of a name, later ones too, with or without the current position."""

    def of(weights: Array, ids: Any, names: Any) -> Any:
        found = []
        for i, one in enumerate(ids):
            behind = [j + 1 for j in range(len(ids) - 1) if ids[j] == one and (itself or j != i)]
            if behind and one in names:
                found.append(weights[i, behind].sum())
        return np.mean(found)

    return of


def _sum(weights: Array, ids: Any, names: Any) -> Any:
    return induction_score(weights, ids, names) * len([*_returning(ids, names)])


def _patterns() -> list[tuple[Any, ...]]:
    """Draw weights whose rows sum to 1, for texts in which names and other words return.

    The weights of all cases except the last are causal. The last case shows functions that read
    above the diagonal.
    """
    texts = [
        ([1, 4, 6, 1, 5], [1, 2]),
        ([2, 4, 7, 1, 5, 7, 2, 4], [1, 2]),
        ([3, 4, 7, 2, 5, 8, 3, 4, 7, 3, 4, 8, 2], [2, 3]),
    ]
    cases: list[tuple[Any, ...]] = []
    for number, (ids, names) in enumerate(texts):
        rng = generator(number)
        other = rng.permutation(30)  # a word may have any id
        weights = rng.integers(1, 20, (len(ids), len(ids))).astype(float)
        if number < len(texts) - 1:
            weights = np.tril(weights)
        weights /= weights.sum(axis=1, keepdims=True)
        cases.append((weights, other[ids], other[names]))
    return cases


INDUCTION_SCORE = exercise(
    "induction-score",
    induction_score,
    _patterns,
    *_TEXTS.mistakes(
        {
            "score-same-name": [_shifted(0)],
            "score-before-name": [_shifted(-1)],
            "score-transposed": [
                lambda weights, ids, names: induction_score(weights.T, ids, names)
            ],
            "score-one-place": [_of_one(-1), _of_one(0)],
            "score-pairs": [
                lambda weights, ids, names: np.mean(
                    [weights[i, j + 1] for i, earlier in _returning(ids, names) for j in earlier]
                )
            ],
            "score-first-mentions": [
                lambda weights, ids, names: _sum(weights, ids, names) / sum(np.isin(ids, names))
            ],
            "score-all-words": [
                lambda weights, ids, names: induction_score(weights, ids, ids),
                lambda weights, ids, names: _sum(weights, ids, ids) / len(ids),
            ],
            "score-all-places": [lambda weights, ids, names: _sum(weights, ids, names) / len(ids)],
            "score-later": [_later(itself=False), _later(itself=True)],
            "score-sum": [_sum],
            "score-previous": [
                lambda weights, ids, names: np.mean(
                    [weights[i, i - 1] for i, _ in _returning(ids, names)]
                )
            ],
        },
        DO,
    ),
    tried="texts in which names occur once, twice and three times",
    returns="return score",
)
