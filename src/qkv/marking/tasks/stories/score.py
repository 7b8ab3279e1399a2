"""The third task of lesson 12: how much of an induction head a head is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import generator
from qkv.marking.tasks.exercise import exercise, slip

_BEHIND = "behind = [j + 1 for j in range(i) if ids[j] == ids[i]]"
_MEAN = "return np.mean(found)  # of one number for each name that returns"
_FOUND = "found.append(weights[i, behind].sum())"


def _returning(ids: Any, names: Any) -> Iterator[tuple[int, list[int]]]:
    """Each place of a name that stood earlier, with the earlier places."""
    for i, one in enumerate(ids):
        earlier = [j for j in range(i) if ids[j] == one]
        if earlier and one in names:
            yield i, earlier


def induction_score(weights: Array, ids: Any, names: Any) -> Any:
    """The mean weight of a pattern (T, T), over names that return, behind their earlier places."""
    return np.mean(
        [sum(weights[i, j + 1] for j in earlier) for i, earlier in _returning(ids, names)]
    )


def _shifted(by: int) -> Callable[..., Any]:
    return lambda weights, ids, names: np.mean(
        [sum(weights[i, j + by] for j in earlier) for i, earlier in _returning(ids, names)]
    )


def _of_one(number: int) -> Callable[..., Any]:
    """The score, of the first or the last earlier place alone."""
    return lambda weights, ids, names: np.mean(
        [weights[i, earlier[number] + 1] for i, earlier in _returning(ids, names)]
    )


def _later(*, itself: bool) -> Callable[..., Any]:
    """The score of all places of a name, with or without its present one."""

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


def _pairs(weights: Array, ids: Any, names: Any) -> Any:
    return np.mean([weights[i, j + 1] for i, earlier in _returning(ids, names) for j in earlier])


def _patterns() -> list[tuple[Any, ...]]:
    """Rows of weights that sum to 1, over words of which some return, names among them.

    All but the last are causal. In the last what is read on the wrong side of the diagonal shows.
    """
    texts = [
        ([1, 4, 6, 1, 5], [1, 2]),
        ([2, 4, 7, 1, 5, 7, 2, 4], [1, 2]),
        ([3, 4, 7, 2, 5, 8, 3, 4, 7, 3, 4, 8, 2], [2, 3]),
    ]
    cases: list[tuple[Any, ...]] = []
    for number, (ids, names) in enumerate(texts):
        rng = generator(number)
        other = rng.permutation(30)  # which number a word has says nothing
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
    slip(
        "score-same-name",
        "it reads the weight on the earlier name itself; the word behind it is the one to copy",
        "what an induction head looks at stands one place further on",
        _shifted(0),
        remedy=_BEHIND,
        nudge="Where does the last name stand that is to be copied?",
        where="the column of the weights: j, or the place behind it?",
    ),
    slip(
        "score-before-name",
        "it reads the weight on the word before the earlier name, not behind it",
        "what is to be copied stands behind the name",
        _shifted(-1),
        remedy=_BEHIND,
        nudge="Where does the last name stand that is to be copied?",
        where="the sign in the column of the weights",
    ),
    slip(
        "score-transposed",
        "rows and columns have changed places: row i has what word i gives to each",
        "what stands later gives weight to what stands earlier, never the other way round",
        lambda weights, ids, names: induction_score(weights.T, ids, names),
        remedy="weights[i, j + 1]  # and not weights[j + 1, i]",
        nudge="Which of the two places comes later in the text? It has the row.",
        where="the two indices of the weights",
    ),
    slip(
        "score-one-place",
        "it takes one earlier place of a name alone; a head may look behind each of them",
        "it is right for names that come twice",
        _of_one(-1),
        _of_one(0),
        remedy=_BEHIND,
        nudge="Try a text in which a name comes three times.",
        where="the search for earlier places: where does it stop?",
    ),
    slip(
        "score-pairs",
        "it is the mean over all pairs of places; a name with two earlier places counts twice, and"
        " its weights should be added up first",
        "the score is too small where names come three times",
        _pairs,
        remedy=_FOUND,
        nudge="Try a text in which a name comes three times: how many numbers go into the mean?",
        where="what is put into the list of which the mean is taken",
    ),
    slip(
        "score-first-mentions",
        "names that come for the first time count too, with 0; there is nothing to copy for them",
        "the score is too small",
        lambda weights, ids, names: _sum(weights, ids, names) / sum(one in names for one in ids),
        remedy="if behind: found.append(...)",
        nudge="What goes into the mean for the first name of a text?",
        where="the number that the sum is divided by",
    ),
    slip(
        "score-all-words",
        "words that are no names count too",
        "what follows the word the is no name to copy",
        lambda weights, ids, names: induction_score(weights, ids, ids),
        lambda weights, ids, names: _sum(weights, ids, ids) / len(ids),
        remedy="if ids[i] in names: ...",
        nudge="Which words of the smallest example does the mean take in?",
        where="the condition on the word at place i",
    ),
    slip(
        "score-all-places",
        "the sum is divided by the number of all words; only names that return count",
        "the score falls as the text gets longer",
        lambda weights, ids, names: _sum(weights, ids, names) / len(ids),
        remedy=_MEAN,
        nudge="How many names return in the smallest example?",
        where="the number that the sum is divided by",
    ),
    slip(
        "score-later",
        "it looks behind later places of the name too, not behind earlier ones alone",
        "a decoder never looks there, so it is right for causal weights alone",
        _later(itself=False),
        _later(itself=True),
        remedy=_BEHIND,
        nudge="Which places of the name come before place i?",
        where="the search for other places: where does it stop?",
    ),
    slip(
        "score-sum",
        "the weights are added up, and the mean was asked for",
        "the score grows with the number of names that return",
        _sum,
        remedy=_MEAN,
        nudge="Can a mean of weights be above 1?",
        where="the last step",
    ),
    slip(
        "score-previous",
        "it reads the weight on the word before, as for a previous-token head",
        "the earlier name makes no difference",
        lambda weights, ids, names: np.mean([weights[i, i - 1] for i, _ in _returning(ids, names)]),
        remedy=_BEHIND,
        nudge="Which places does it read for the last name of the smallest example?",
        where="the column of the weights",
    ),
    signature="induction_score(weights, ids, names) -> one number",
    asks="the mean weight, over the names that return in a text, on the places behind their earlier"
    " ones: weights (T, T), ids (T,), and the ids that are first names",
    what="texts in which names come once, twice and three times",
    returns="return score",
)
