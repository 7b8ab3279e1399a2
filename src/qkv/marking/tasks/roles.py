"""The tasks of lesson 7: how much a head looks at a neighbour, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import generator
from qkv.marking.tasks.exercise import exercise, slip

_MEAN = "return np.diagonal(weights, step).mean()"


def neighbour_score(weights: Array, step: int) -> Any:
    """The mean weight of a pattern (T, T) on the token some steps on."""
    return np.diagonal(weights, step).mean()


def _wrapped(weights: Array, step: int) -> Any:
    return np.diagonal(np.roll(weights, -step, axis=1)).mean()


def _patterns() -> list[tuple[Any, ...]]:
    """Rows of weights that sum to 1, no two of which are alike."""
    cases: list[tuple[Any, ...]] = []
    for number, (tokens, step) in enumerate([(3, 1), (3, -1), (5, -2), (6, 2)]):
        weights = generator(number).integers(1, 10, (tokens, tokens)).astype(float)
        cases.append((weights / weights.sum(axis=1, keepdims=True), step))
    return cases


NEIGHBOUR_SCORE = exercise(
    "neighbour-score",
    neighbour_score,
    _patterns,
    slip(
        "neighbour-other-side",
        "it reads the neighbour on the other side, or columns for rows: row i has what token i"
        " gives to each",
        "step 1 gives what step -1 should give",
        lambda weights, step: neighbour_score(weights, -step),
        remedy=_MEAN,
        nudge="By hand, for three tokens: which numbers does step = 1 need?",
        where="the two indices of the weights",
    ),
    slip(
        "neighbour-all-tokens",
        "it divides by the number of all tokens; those without such a neighbour do not count",
        "the score is too small, the more so the shorter the text",
        lambda weights, step: np.diagonal(weights, step).sum() / len(weights),
        lambda weights, step: np.diagonal(weights, step).sum() / (len(weights) - 1),
        remedy=_MEAN,
        nudge="How many of three tokens have a next one?",
        where="the number that it divides by",
    ),
    slip(
        "neighbour-wraps",
        "the last token gets the first as its neighbour: an index below 0 counts from the end",
        "a token without such a neighbour counts too",
        _wrapped,
        lambda weights, step: (_wrapped if step < 0 else neighbour_score)(weights, step),
        remedy=_MEAN,
        nudge="Which token stands before the first?",
        where="the index of the neighbour at both ends of the text",
    ),
    slip(
        "neighbour-sum",
        "the weights are added up, and the mean was asked for",
        "the score grows with the length of the text",
        lambda weights, step: np.diagonal(weights, step).sum(),
        remedy=_MEAN,
        nudge="Can a mean of weights be above 1?",
        where="the last step",
    ),
    slip(
        "neighbour-itself",
        "it reads what each token gives to itself",
        "step makes no difference",
        lambda weights, step: np.diagonal(weights).mean(),
        remedy=_MEAN,
        nudge="Which column belongs to the neighbour of token i?",
        where="the place where step is used",
    ),
    slip(
        "neighbour-one-step",
        "it always reads the next token, whatever step is",
        "it is right for step = 1",
        lambda weights, step: np.diagonal(weights, 1).mean(),
        lambda weights, step: np.diagonal(weights, np.sign(step)).mean(),
        remedy=_MEAN,
        nudge="Try step = -1, then step = 2.",
        where="the place where step is used",
    ),
    slip(
        "neighbour-whole-rows",
        "it takes the mean of all weights",
        "the score is one divided by the number of tokens",
        lambda weights, step: weights.mean(),
        remedy=_MEAN,
        nudge="How many numbers does the mean of three tokens and step = 1 have?",
        where="what is put into the mean",
    ),
    signature="neighbour_score(weights, step) -> one number",
    asks="the mean weight that tokens give to the token `step` places on, of weights (T, T); tokens"
    " without such a neighbour do not count",
    what="one and two steps, forwards and back",
    returns="return score",
)

# of the two bank that qkv's own encoder gives without these heads: their cosine; that with the
# heads taken from the first text alone, and from the second; with layer and head exchanged; and
# their product (a test measures them)
_MEASURED = {
    (): (0.3904, 0.3904, 0.3904, 0.3904, 71.9944),
    ((0, 3),): (0.5601, 0.4324, 0.5238, 0.3640, 102.9154),
    ((1, 3),): (0.4456, 0.4253, 0.4106, 0.3973, 82.1055),
    ((2, 1), (3, 0)): (0.3878, 0.3483, 0.3858, 0.5521, 71.4075),
}
_COSINE = "return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))  # of traces with ablate=heads"


def _measured(column: int) -> Callable[..., Any]:
    return lambda heads: _MEASURED[tuple(map(tuple, heads))][column]


def closeness(heads: Any) -> Any:
    """The cosine of the two bank without some heads."""
    return _measured(0)(heads)


CLOSENESS = exercise(
    "closeness",
    closeness,
    lambda: [([*heads],) for heads in _MEASURED],
    slip(
        "closeness-heads-ignored",
        "the heads are not taken away: it is the same number whatever `heads` is",
        "it is right for an empty list alone",
        lambda heads: _MEASURED[()][0],
        remedy="model.trace(text, ablate=heads)",
        nudge="Try two lists of heads: is it the same number?",
        where="the call of model.trace: does it get the heads?",
    ),
    slip(
        "closeness-one-text",
        "the heads are taken away in one of the two texts alone",
        "one of the two vectors is that of the whole model",
        _measured(1),
        _measured(2),
        remedy="model.trace(text, ablate=heads)  # for both texts",
        nudge="How many traces are there, and which of them get the heads?",
        where="the calls of model.trace",
    ),
    slip(
        "closeness-exchanged",
        "layer and head have changed places: a pair is (layer, head)",
        "other heads are taken away",
        _measured(3),
        remedy="model.trace(text, ablate=heads)  # as they come",
        nudge="What does (0, 3) name: head 3 of layer 0, or head 0 of layer 3?",
        where="whatever is done to the list before the trace",
    ),
    slip(
        "closeness-product",
        "it is the product of the two vectors, not yet divided by their lengths",
        "the number is far above 1",
        _measured(4),
        remedy=_COSINE,
        nudge="Can a cosine be above 1?",
        where="the last step",
    ),
    slip(
        "closeness-distance",
        "it is how far the two are apart (1 - cosine), not how alike they are",
        "the number falls where it should rise",
        lambda heads: 1 - closeness(heads),
        remedy=_COSINE,
        nudge="What should it be for two equal vectors?",
        where="the last step",
    ),
    signature="closeness(heads) -> one number",
    asks="the cosine of bank in the lesson's two sentences, after the last layer of qkv's own"
    " encoder, without these heads",
    what="no head, one and two",
    returns=_COSINE,
    within=2e-3,
    may_use=True,
)
