"""Mistakes in masks: the causal comparison, masks that are given, and what stands for masked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.tasks.attention.steps import HIDE, flip, same

_TRIANGLE = "np.tril(np.ones((L, L), dtype=bool))"
_FIRST_SEES = "What does the first word see?"
# by key: what is wrong, how it shows, a nudge, and which keys j query i sees, from its position
_COMPARED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "ignored": (
            "the causal mask is missing: each word sees the words after it",
            "right for one word; the last word changes the outputs of the words before it",
            "Change the last value: does the first output change?",
            lambda i, j, first: (i >= 0) & (j >= 0),
        ),
        "upper": (
            "the causal mask is the upper triangle: each word sees the future and not the past",
            "the last word sees nothing of what came before it",
            "Rows are queries, columns are keys: what does the last row see?",
            lambda i, j, first: j >= first + i,
            lambda i, j, first: j > first + i,
        ),
        "diagonal": (
            "the causal mask is off by one: a word may see itself too",
            "the diagonal is masked, and the first word sees nothing at all",
            _FIRST_SEES,
            lambda i, j, first: j < first + i,
        ),
        "ahead": (
            "the causal mask is off by one: a word may not see the next word",
            "each word sees one word of the future",
            _FIRST_SEES,
            lambda i, j, first: j <= first + i + 1,
        ),
    }
)


def causal(keys: Mapping[str, str], remedy: str) -> tuple[Mistake, ...]:
    """Return mistakes of the causal comparison, under the keys that a task gives them."""
    return mended(
        remedy,
        *(
            mistake(key, says, shows, *({"sees": sees} for sees in rules), nudge=nudge)
            for name, key in keys.items()
            for says, shows, nudge, *rules in [_COMPARED[name]]
        ),
        where="the comparison of positions, or np.tril and np.triu and their k",
    )


OFF = {name: f"causal-{name}" for name in ("diagonal", "ahead", "upper")}
CAUSAL = causal(
    OFF | {"ignored": "causal-ignored"}, f"visible = {_TRIANGLE}; {HIDE.replace('mask', 'visible')}"
)

HIDING = mended(
    HIDE,
    mistake(
        "mask-multiplied",
        "a masked score becomes 0, as where the mask is multiplied on the scores",
        "masked keys still take weight, since exp(0) is 1",
        {"hide": lambda s, visible: s * visible, "blank": same},
        nudge="Which weight does the score 0 get?",
    ),
    mistake(
        "mask-added",
        "the mask is added to the scores as it is: True counts as 1, and False as 0",
        "a masked key only loses a factor e against a visible one",
        {"hide": lambda s, visible: s + visible, "blank": same},
        remedy="scores = scores + np.where(mask, 0.0, -np.inf)",
        nudge="Print the weight of a masked key: is it 0?",
    ),
    mistake(
        "mask-after-softmax",
        "the mask is applied after softmax, and the weights that are left no longer sum to 1",
        "the output shrinks towards 0 where much is masked",
        {"hide": same, "blank": lambda w, visible: w * visible},
        remedy=f"{HIDE}  # before softmax",
        nudge="Add up the weights of a row with a masked key.",
    ),
    where="the line that puts the mask on the scores: before softmax, with which number?",
)

MASK = mended(
    HIDE,
    mistake(
        "mask-inverted",
        "the mask is read the wrong way round: True means that the query may attend",
        "each query sees only what the mask should keep from it",
        {"mask": np.logical_not},
        nudge="Let a mask be True in one position only: which key takes all the weight?",
    ),
    mistake(
        "mask-ignored",
        "the mask makes no difference",
        "masked keys take their full weight",
        {"mask": np.ones_like},
        nudge="Mask a key and change its value: does the output change?",
    ),
    mistake(
        "mask-transposed",
        "the mask is used transposed: its rows are the queries, its columns the keys",
        "it fails where there are more keys than queries and is silently wrong where not",
        {"mask": flip},
        nudge="Give it one query and three keys, with a mask (1, 3).",
    ),
    where="the place where the mask is read: rows are queries, columns keys, True = may attend",
)

EMPTY = mended(
    "weights = np.where(mask.any(axis=-1, keepdims=True), weights, 0.0)",
    mistake(
        "masked-row-nan",
        "a query that may attend to nothing gives nan; its output should be zeros",
        "softmax of a row of -inf alone is 0 / 0",
        {"blank": same},
    ),
    mistake(
        "masked-row-uniform",
        "a query that may attend to nothing still attends; its output should be zeros",
        "a large negative number in place of -inf masks a key only beside a visible one",
        {"hide": lambda s, visible: np.where(visible, s, -1e9), "blank": same},
        {"hide": lambda s, visible: s + np.where(visible, 0.0, -1e9), "blank": same},
    ),
    kind="fragile",
    nudge="Mask every key of one query: what is its output?",
    where="what softmax makes of a row in which everything is masked",
)

BOTH = (
    mistake(
        "mask-or-causal",
        "of a mask and a causal mask together one is obeyed; a key is visible where both allow",
        "one of the two makes no difference beside the other",
        {"both": lambda mask, allowed: mask},
        {"both": lambda mask, allowed: allowed},
        {"both": np.logical_or},
        remedy=f"visible = mask & {_TRIANGLE}",
        nudge="Mask with one what the other shows, and the other way round.",
        where="the line where the two masks meet",
    ),
)

OFFSET = (
    mistake(
        "causal-offset",
        "q_offset is not the position of query 0 among the keys: key j is visible where"
        " j <= i + q_offset",
        "with a cache the new token does not see all the tokens before it, or sees later ones",
        {"sees": lambda i, j, first: j <= i},
        {"sees": lambda i, j, first: j <= i - first},
        {"sees": lambda i, j, first: j <= i + j.max() - i.max()},
        remedy="visible = np.arange(S) <= np.arange(L)[:, None] + q_offset",
        nudge="Let one query stand at position 2 of three keys: which of them does it see?",
        where="the comparison of positions: query i stands at i + q_offset",
    ),
)


def _instead(*numbers: float, blank: Callable[..., Array] = same) -> Iterator[Steps]:
    """Put a number in the place of a masked score, or add it."""
    for number in numbers:
        yield {"hide": lambda s, visible, n=number: np.where(visible, s, n), "blank": blank}
        yield {"hide": lambda s, visible, n=number: s + np.where(visible, 0.0, n), "blank": blank}


def _seen(weights: Array, visible: Array) -> Array:
    """Give no weight to masked keys, and keep the other weights."""
    return np.where(visible, weights, 0.0)


def _less_the_largest(scores: Array, visible: Array) -> Array:
    """Subtract the largest score of a row, which may be masked then."""
    return np.where(visible, scores - scores.max(axis=-1, keepdims=True), -np.inf)


def _over_no_zero(e: Array) -> Array:
    """Divide by the sum of the row, where the sum is not 0."""
    total = e.sum(axis=-1, keepdims=True)
    out: Array = e / np.where(total == 0, 1, total)
    return out


def _over_a_little_more(*numbers: float) -> Iterator[Steps]:
    """Divide by the sum of the row and a small number, which is never 0."""
    for number in numbers:
        yield {
            "hide": _less_the_largest,
            "shift": same,
            "normalise": lambda e, n=number: e / (e.sum(axis=-1, keepdims=True) + n),
        }


# by masks that a task asks for
WEAK = mended(
    f"{HIDE}  # before softmax",
    mistake(
        "mask-too-weak",
        "the number in the place of a masked score is not far enough below the others",
        "masked keys still take a little weight",
        *_instead(-1, -2, -3, -5, -10),
        nudge="Print the weight of a masked key: is it 0?",
        where="the number that stands for masked",
    ),
    mistake(
        "mask-times-inf",
        "-inf is multiplied by 0 where a key is visible, which gives nan",
        "everything is nan as soon as there is a mask",
        {"hide": lambda s, visible: s + (1 - visible) * -np.inf, "blank": same},
        {"hide": lambda s, visible: s * visible + (1 - visible) * -np.inf, "blank": same},
        nudge="What is 0 * -np.inf?",
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
        "a masked score is multiplied by -inf, or by a large negative number, not replaced by it",
        "a score below zero becomes a large one above zero, and takes all the weight",
        {"hide": lambda s, visible: np.where(visible, s, s * -np.inf), "blank": same},
        {"hide": lambda s, visible: np.where(visible, s, s * -1e9), "blank": same},
        nudge="What does a masked score of -1 become?",
    ),
    mistake(
        "mask-plus-inf",
        "a masked score becomes inf, nan or as large a number; it should be -inf",
        "the masked keys take all the weight, or inf - inf gives nan",
        {"hide": lambda s, visible: np.where(visible, s, np.inf), "blank": same},
        *_instead(1e9),
        nudge="Which score gives the weight 0?",
        where="the sign of the number that stands for masked",
    ),
    where="the line that puts the mask on the scores",
)

_TOO_HIGH = (-20, -50, -100, -200, -500, -999, -1000)
LARGE = mended(
    f"{HIDE}  # before softmax",
    mistake(
        "mask-not-low-enough",
        "a number such as -100 stands for masked, and scores may be lower than that",
        "where a visible score is far below 0, the masked keys take its weight",
        *_instead(*_TOO_HIGH),
        *_instead(*_TOO_HIGH, blank=_seen),
        nudge="Let a visible score be -1000: which key takes the weight?",
        where="the number that stands for masked",
    ),
    mistake(
        "mask-max-of-hidden",
        "the maximum that softmax subtracts may be a masked score",
        "where a masked score is far above the visible ones, exp makes 0 of all of those",
        {"hide": _less_the_largest, "shift": same},
        {"hide": _less_the_largest, "shift": same, "normalise": _over_no_zero},
        *_over_a_little_more(1e-6, 1e-8, 1e-9, 1e-10, 1e-12),
        nudge="Let a masked score be 1000 and a visible one 0: what is left after exp?",
        where="the maximum before exp: is it taken before the mask is applied, or after?",
    ),
    kind="fragile",
)

TEXTS = mended(
    f"{HIDE}  # mask (B, 1, S), one row for each text",
    mistake(
        "mask-of-first-text",
        "every text of a batch gets the mask of the first text",
        "the padding of the first text is masked in the others, and their own is not",
        {"mask": lambda visible: visible[:1]},
    ),
    mistake(
        "mask-of-all-texts",
        "the masks of all the texts of a batch are joined into one",
        "the padding of one text is masked in the others too",
        {"mask": lambda visible: visible.all(axis=0)},
        {"mask": lambda visible: visible.any(axis=0)},
    ),
    nudge="Give it two texts of different lengths, each with its own mask.",
    where="the place where the mask of a batch is read",
)
