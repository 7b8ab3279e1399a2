"""The ways to get masks wrong that masked attention alone shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps, mended, mistake
from qkv.marking.tasks.attention.steps import same

HIDE = "scores = np.where(mask, scores, -np.inf)  # before softmax"
_WHERE = "the line that puts the mask on the scores"


def _instead(*numbers: float, blank: Callable[..., Array] = same) -> Iterator[Steps]:
    """A number in the place of a hidden score, or added to it."""
    for number in numbers:
        yield {"hide": lambda s, visible, n=number: np.where(visible, s, n), "blank": blank}
        yield {"hide": lambda s, visible, n=number: s + np.where(visible, 0.0, n), "blank": blank}


def _seen(weights: Array, visible: Array) -> Array:
    """No weight for what is hidden; the others as they are."""
    return np.where(visible, weights, 0.0)


def _less_the_largest(scores: Array, visible: Array) -> Array:
    """The largest score of a row is subtracted, and may be one that is hidden then."""
    return np.where(visible, scores - scores.max(axis=-1, keepdims=True), -np.inf)


def _over_no_zero(e: Array) -> Array:
    """Divided by the sum of the row, where that is not 0."""
    total = e.sum(axis=-1, keepdims=True)
    out: Array = e / np.where(total == 0, 1, total)
    return out


def _over_a_little_more(*numbers: float) -> Iterator[Steps]:
    """Divided by the sum of the row and a small number, so that it is never 0."""
    for number in numbers:
        yield {
            "hide": _less_the_largest,
            "shift": same,
            "normalise": lambda e, n=number: e / (e.sum(axis=-1, keepdims=True) + n),
        }


WEAK = mended(
    HIDE,
    mistake(
        "mask-too-weak",
        "what takes the place of a hidden score is not far enough below the others",
        "hidden keys still take a little weight",
        *_instead(-1, -2, -3, -5, -10),
        nudge="Print the weight of a hidden key: is it 0?",
        where="the number that stands for hidden",
    ),
    mistake(
        "mask-times-inf",
        "-inf is multiplied by 0 where a key is visible, which gives nan",
        "everything is nan as soon as there is a mask",
        {"hide": lambda s, visible: s + (1 - visible) * -np.inf, "blank": same},
        {"hide": lambda s, visible: s * visible + (1 - visible) * -np.inf, "blank": same},
        nudge="What is 0 * -np.inf?",
        where=_WHERE,
    ),
    mistake(
        "mask-inf-after-softmax",
        "-inf is written into the weights, after softmax; it belongs into the scores, before",
        "the output is -inf, inf or nan",
        {"hide": same, "blank": lambda w, visible: np.where(visible, w, -np.inf)},
        nudge="Print the weights: may there be -inf among them?",
        where="the order of the mask and softmax",
    ),
    mistake(
        "mask-times-large",
        "a hidden score is multiplied by -inf, or by a large negative number, not replaced by it",
        "a score below zero becomes a large one above zero, and takes all the weight",
        {"hide": lambda s, visible: np.where(visible, s, s * -np.inf), "blank": same},
        {"hide": lambda s, visible: np.where(visible, s, s * -1e9), "blank": same},
        nudge="What does a hidden score of -1 become?",
        where=_WHERE,
    ),
    mistake(
        "mask-plus-inf",
        "a hidden score becomes inf, nan or as large a number; it should be -inf",
        "the hidden keys take all the weight, or inf - inf gives nan",
        {"hide": lambda s, visible: np.where(visible, s, np.inf), "blank": same},
        {"hide": lambda s, visible: np.where(visible, s, 1e9), "blank": same},
        {"hide": lambda s, visible: s + np.where(visible, 0.0, 1e9), "blank": same},
        nudge="Which score gives the weight 0?",
        where="the sign of the number that stands for hidden",
    ),
)

_TOO_HIGH = (-20, -50, -100, -200, -500, -999, -1000)
LARGE = mended(
    HIDE,
    mistake(
        "mask-not-low-enough",
        "a number such as -100 stands for hidden, and scores may be lower than that",
        "where a visible score is far below 0, the hidden keys take its weight",
        *_instead(*_TOO_HIGH),
        *_instead(*_TOO_HIGH, blank=_seen),
        nudge="Let a visible score be -1000: which key takes the weight?",
        where="the number that stands for hidden",
    ),
    mistake(
        "mask-max-of-hidden",
        "the maximum that softmax subtracts may be that of a hidden score",
        "where a hidden score is far above the visible ones, exp makes 0 of all of those",
        {"hide": _less_the_largest, "shift": same},
        {"hide": _less_the_largest, "shift": same, "normalise": _over_no_zero},
        *_over_a_little_more(1e-6, 1e-8, 1e-9, 1e-10, 1e-12),
        nudge="Let a hidden score be 1000 and a visible one 0: what is left after exp?",
        where="the maximum before exp: is it taken before anything is hidden, or after?",
    ),
    kind="fragile",
)

TEXTS = mended(
    "scores = np.where(mask, scores, -np.inf)  # mask (B, 1, S), one row for each text",
    mistake(
        "mask-of-first-text",
        "every text of a batch is masked as the first one is",
        "what is padding in one text is hidden in the others, and theirs is not",
        {"mask": lambda visible: visible[:1]},
        nudge="Give it two texts of different lengths, each with its own mask.",
        where="the place where the mask of a batch is read",
    ),
    mistake(
        "mask-of-all-texts",
        "the masks of all the texts of a batch are joined into one",
        "what is padding in one text is hidden in the others too",
        {"mask": lambda visible: visible.all(axis=0)},
        {"mask": lambda visible: visible.any(axis=0)},
        nudge="Give it two texts of different lengths, each with its own mask.",
        where="the place where the mask of a batch is read",
    ),
)
