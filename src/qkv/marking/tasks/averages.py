"""The tasks of lesson 1: a recurrence as a table of weights, and the score that a weight needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import generator
from qkv.marking.tasks.exercise import exercise, slip

_TABLE = "return np.where(steps >= 0, (1 - keep) * keep ** abs(steps), 0)  # steps = j - i"
_SCORE = "return np.log(others * weight / (1 - weight))"


def _steps(length: int) -> Array:
    places = np.arange(length)
    steps: Array = places - places[:, None]
    return steps


def recurrence_table(length: int, keep: float) -> Array:
    """The weights (length, length) of a state that keeps a part of itself at each word."""
    steps = _steps(length)
    return np.where(steps >= 0, (1 - keep) * keep ** abs(steps), 0)


def _lower(length: int, keep: float) -> Array:
    return recurrence_table(length, keep).T


def _from_first(length: int, keep: float) -> Array:
    """The state begins at the word that is read first, and not at zero."""
    table = recurrence_table(length, keep)
    table[:, -1] /= 1 - keep
    return table


def _tables() -> list[tuple[Any, ...]]:
    rng = generator(0)
    return [(2, 0.5), (4, 0.8), (7, int(rng.integers(12, 18)) / 20)]


RECURRENCE_TABLE = exercise(
    "recurrence-table",
    recurrence_table,
    _tables,
    slip(
        "table-other-way",
        "a word takes from the words before it; the loop reads from the last word to the first",
        "the table is the transpose of the right one",
        _lower,
        remedy=_TABLE,
        nudge="Which words has the loop read when it comes to word 0?",
        where="the comparison of the row's number with the column's",
    ),
    slip(
        "table-both-ways",
        "a word takes from the words on both sides of it",
        "the table is symmetric",
        lambda n, keep: (1 - keep) * keep ** abs(_steps(n)),
        remedy=_TABLE,
        nudge="Which words has the loop read when it comes to the last word of the sentence?",
        where="the condition under which a weight is 0",
    ),
    slip(
        "table-not-scaled",
        "each word adds the whole of its vector to the state, not the part 1 - keep",
        "the diagonal is 1, where it should be 1 - keep",
        lambda n, keep: recurrence_table(n, keep) / (1 - keep),
        remedy=_TABLE,
        nudge="Which part of its own vector does a word's state hold?",
        where="the diagonal of the table",
    ),
    slip(
        "table-keep-for-take",
        "keep and 1 - keep have changed places",
        "the diagonal is keep, where it should be 1 - keep",
        lambda n, keep: recurrence_table(n, 1 - keep),
        remedy=_TABLE,
        nudge="With keep = 0.8: which part of a new word comes into the state?",
        where="the two numbers keep and 1 - keep",
    ),
    slip(
        "table-off-by-one",
        "the power is one too high: a word's own vector has not been kept at any step yet",
        "the diagonal is (1 - keep) * keep, where it should be 1 - keep",
        lambda n, keep: recurrence_table(n, keep) * keep,
        remedy=_TABLE,
        nudge="How often was the state multiplied by keep since it read its own word?",
        where="the exponent",
    ),
    slip(
        "table-rows-of-one",
        "the rows are made to sum to 1; those of the loop do not, since its state begins at zero",
        "each weight is too large, those of the last rows most",
        lambda n, keep: (
            recurrence_table(n, keep) / recurrence_table(n, keep).sum(axis=1, keepdims=True)
        ),
        _from_first,
        remedy=_TABLE,
        nudge="What is the state of the word that the loop reads first?",
        where="whatever is done to the last column, or to the rows at the end",
    ),
    signature="recurrence_table(length, keep) -> (length, length)",
    asks="the weights of the loop state = keep * state + (1 - keep) * word, which begins at zero"
    " and reads from the last word to the first: row i has what word i's state takes from each",
    what="tables of 2, 4 and 7 words",
    returns="return table  # (length, length)",
)


def score_needed(weight: float, others: float) -> Any:
    """The score with which one word gets this weight among others of score 0."""
    return np.log(others * weight / (1 - weight))


SCORE_NEEDED = exercise(
    "score-needed",
    score_needed,
    lambda: [(0.5, 3), (0.9, 1000), (int(generator(1).integers(1, 8)) / 16, 17)],
    slip(
        "score-without-others",
        "how many other words there are does not count",
        "the score is the same among 10 words and among a million",
        lambda weight, others: np.log(weight / (1 - weight)),
        remedy=_SCORE,
        nudge="Should a word have to shout louder among more words?",
        where="the number of the others: where does it go into the formula?",
    ),
    slip(
        "score-upside-down",
        "the fraction is upside down",
        "a larger weight needs a smaller score",
        lambda weight, others: np.log(others * (1 - weight) / weight),
        lambda weight, others: np.log((1 - weight) / (others * weight)),
        remedy=_SCORE,
        nudge="Which score does a weight of 0.9 need, and which one a weight of 0.1?",
        where="the fraction inside the logarithm",
    ),
    slip(
        "score-other-logarithm",
        "the logarithm is not the natural one, to which exp belongs",
        "all scores are off by one factor",
        lambda weight, others: np.log10(others * weight / (1 - weight)),
        lambda weight, others: np.log2(others * weight / (1 - weight)),
        remedy=_SCORE,
        nudge="What is exp of your score?",
        where="the name of the logarithm",
    ),
    slip(
        "score-without-logarithm",
        "this is exp of the score: the logarithm is missing",
        "the score is far too large",
        lambda weight, others: others * weight / (1 - weight),
        remedy=_SCORE,
        nudge="Solve e^s / (e^s + n) = weight for s: what is the last step?",
        where="the last step",
    ),
    slip(
        "score-without-rest",
        "what is left for the others, 1 - weight, is missing",
        "the score is too small, the more so the nearer the weight is to 1",
        lambda weight, others: np.log(others * weight),
        lambda weight, others: np.log(weight * (others + 1)),
        remedy=_SCORE,
        nudge="Multiply weight = e^s / (e^s + n) by the denominator, and collect the e^s.",
        where="the denominator inside the logarithm",
    ),
    signature="score_needed(weight, others) -> the score",
    asks="the score s with e^s / (e^s + others) = weight",
    what="weights among 3, 17 and 1000 others",
    returns="return score",
)
