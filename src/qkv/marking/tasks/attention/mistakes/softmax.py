"""The ways to get softmax wrong: over which numbers it runs, and what it divides by."""

from __future__ import annotations

from typing import Any

from qkv.marking.mistake import Steps, mended, mistake
from qkv.marking.tasks.attention.mistakes.lines import CONTEXT, WEIGHTS
from qkv.marking.tasks.attention.steps import RAW, same, softmax


def _max(**over: Any) -> dict[str, Any]:
    """Softmax that subtracts another maximum."""
    return {"shift": lambda s: s - s.max(**over)}


def _sum(**over: Any) -> dict[str, Any]:
    """Softmax that divides by another sum."""
    return {"normalise": lambda e: e / e.sum(**over)}


def over(*axes: int) -> tuple[Steps, Steps]:
    """Softmax over other axes, of which the maximum may be right."""
    over: dict[str, Any] = {"axis": axes, "keepdims": True}
    return _max(**over) | _sum(**over), _sum(**over)


_DIVIDED_AFTER_VALUES: Steps = {
    "normalise": same,
    "weigh": lambda e, v, n: e @ v / e.sum(axis=-1),
}

SOFTMAX = mended(
    WEIGHTS,
    mistake(
        "no-softmax",
        "the values are weighted by the scores themselves: softmax is missing",
        "the weights of a row do not sum to 1, and a score below zero takes a value away",
        RAW,
        nudge="Add up the weights of a row: what should they give?",
    ),
    mistake(
        "softmax-after-values",
        "the values are weighted by the scores first and softmax is taken of the result",
        "every row of the output sums to 1, whatever the values are",
        {**RAW, "weigh": lambda w, v, n: softmax(w @ v)},
        remedy=f"{WEIGHTS}; {CONTEXT}",
        nudge="Add up a row of the output: why is it 1 whatever the values are?",
    ),
    mistake(
        "no-exp",
        "the scores are divided by their sum, without exp: that is not softmax",
        "a score below zero gives a weight below zero, and scores that sum to 0 divide by 0",
        {"shift": same, "exp": same},
        nudge="Let a score be below zero: may a weight be?",
    ),
    mistake(
        "softmax-whole-matrix",
        "softmax runs over the whole matrix, not over each row",
        "all the weights together sum to 1, so each query has only a part of that",
        *over(-1, -2),
        nudge="Add up the weights of each row: what should each give?",
    ),
    mistake(
        "softmax-columns",
        "softmax runs over the queries (down the columns), not over the keys (along each row)",
        "the columns of the weights sum to 1 and the rows do not",
        *over(-2),
        nudge="Add up the weights of a row, then those of a column: which of them give 1?",
    ),
    mistake(
        "softmax-keepdims",
        "softmax takes the maximum or the sum of each row without keepdims=True, so that row i's"
        " number is used on column i",
        "the rows of the weights do not sum to 1, or are shifted against each other",
        _sum(axis=-1),
        {"shift": same, **_sum(axis=-1)},
        _max(axis=-1),
        _max(axis=-1) | _sum(axis=-1),
        _DIVIDED_AFTER_VALUES,
        {"shift": same, **_DIVIDED_AFTER_VALUES},
        {**_max(axis=-1), **_DIVIDED_AFTER_VALUES},
        nudge="Print the shape of what you divide by: what does (L, S) / (L,) do?",
    ),
    mistake(
        "softmax-not-normalised",
        "the exponentials are never divided by their sum",
        "the weights of a row do not sum to 1",
        {"shift": same, "normalise": same},
        {"normalise": same},
        {**_max(axis=(-1, -2), keepdims=True), "normalise": same},
        nudge="Add up the weights of a row: what should they give?",
    ),
    mistake(
        "softmax-twice",
        "softmax is taken twice",
        "the weights are too even: after the second softmax even a hidden place has some",
        {"weigh": lambda w, v, n: softmax(w) @ v},
        remedy=f"{WEIGHTS}  # once",
        nudge="Let one score be 100 above the others: how much weight should they have?",
    ),
    where="the lines that make weights of the scores: exp, the sum, and their axis",
)

LARGE = mended(
    WEIGHTS,
    mistake(
        "softmax-no-max",
        "softmax does not subtract the maximum of the row before exp",
        "exp(1000) overflows to inf, and inf / inf is nan",
        {"shift": same},
        nudge="Let a score be 1000: what is exp(1000)?",
    ),
    mistake(
        "softmax-global-max",
        "softmax subtracts the maximum of the whole matrix, not of each row",
        "a row far below it underflows to 0, and 0 / 0 is nan",
        _max(axis=(-1, -2), keepdims=True),
        nudge="Let the scores of one row be 2000 below those of another.",
    ),
    kind="fragile",
    where="what is subtracted before exp, and over which axis",
)
