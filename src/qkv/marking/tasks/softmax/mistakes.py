"""The ways to get softmax wrong: each replaces a step of the right computation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qkv.marking.mistake import Mistake, mended, mistake
from qkv.marking.tasks.attention.mistakes.slips import cut, returned_early, without
from qkv.marking.tasks.attention.steps import same
from qkv.marking.tasks.softmax.steps import softmax

LINES = "e = np.exp(x - x.max(axis=-1, keepdims=True)); weights = e / e.sum(axis=-1, keepdims=True)"
RETURN = "return e / e.sum(axis=-1, keepdims=True)"


def _forgotten(at: int) -> Iterator[Mistake]:
    """What a loop leaves out that ends one too early (-1), or begins one too late (0)."""
    one = "last" if at else "first"
    yield mistake(
        "score-forgotten",
        f"the {one} score of a row is forgotten, in the sum or where the weights are filled in",
        "the weights of a row do not sum to 1, or one is 0",
        {"normalise": lambda e, axis: e / cut(e, at, -1).sum(axis=-1, keepdims=True)},
        {"exp": lambda x: without(np.exp(x), at, -1)},
        {"give": lambda w: without(w, at, -1)},
        {"read": lambda x: cut(x, at, -1)},
        remedy="for j in range(len(row)): ...  # from 0 to len(row) - 1",
        nudge="Add up the weights of a row: what should they give?",
        where="the loops over the scores of a row: where do they begin and end?",
    )
    yield mistake(
        "row-forgotten",
        f"the {one} row is forgotten: its weights stay 0, or are missing",
        "there should be a row of weights for each row of scores",
        {"give": lambda w: without(w, at, 0)},
        {"give": lambda w: cut(w, at, 0)},
        remedy="for i in range(len(x)): ...  # from 0 to len(x) - 1",
        nudge="Print the output: which row is it that differs?",
        where="the loop over the rows: where does it begin and end?",
    )


CORE = mended(
    LINES,
    mistake(
        "no-exp",
        "the scores are divided by their sum, without exp: that is not softmax",
        "a score below zero gives a weight below zero",
        {"shift": same, "exp": same},
        nudge="Give it a score below zero: can a weight be below zero?",
        where="the step before the division: what is done to each score?",
    ),
    mistake(
        "softmax-whole-matrix",
        "the sum runs over the whole matrix, not over each row",
        "all the weights together sum to 1, so each row has only a part of that",
        {"shift": lambda x, axis: x - x.max(), "normalise": lambda e, axis: e / e.sum()},
        {"normalise": lambda e, axis: e / e.sum()},
        nudge="Give it two rows, and add up the weights of each.",
        where="the sum: over which axis does it run?",
    ),
    mistake(
        "softmax-columns",
        "the sum runs down the columns, not along each row",
        "the columns of the weights sum to 1 and the rows do not",
        {"axis": lambda axis: -2},
        {"axis": lambda axis: 0},
        nudge="Add up the weights of a row, then those of a column: which of them give 1?",
        where="the axis of the maximum and of the sum",
    ),
    mistake(
        "softmax-keepdims",
        "the maximum or the sum of each row is taken without keepdims=True, so that row i's number"
        " is used on column i",
        "the rows of the weights do not sum to 1, or are shifted against each other",
        {"shift": same, "normalise": lambda e, axis: e / e.sum(axis=-1)},
        {"normalise": lambda e, axis: e / e.sum(axis=-1)},
        {"shift": lambda x, axis: x - x.max(axis=-1)},
        {
            "shift": lambda x, axis: x - x.max(axis=-1),
            "normalise": lambda e, axis: e / e.sum(axis=-1),
        },
        nudge="Print the shape of what you divide by: what does (2, 2) / (2,) do?",
        where="the maximum and the sum: what shape do they have?",
    ),
    mistake(
        "softmax-not-normalised",
        "the exponentials are never divided by their sum",
        "the weights of a row do not sum to 1",
        {"shift": same, "normalise": same},
        {"normalise": same},
        nudge="Add up the weights of a row: what should they give?",
        where="after exp: what is it divided by?",
    ),
    mistake(
        "softmax-divided-by-mean",
        "the exponentials are divided by their mean, not by their sum",
        "the weights of a row sum to the number of scores",
        {"normalise": lambda e, axis: e / e.mean(axis=axis, keepdims=True)},
        nudge="Add up the weights of a row: what should they give?",
        where="the division: by what?",
    ),
    mistake(
        "softmax-divided-by-norm",
        "the exponentials are divided by their length (the root of the sum of squares), not by"
        " their sum",
        "the squares of the weights sum to 1, not the weights",
        {"normalise": lambda e, axis: e / np.sqrt((e * e).sum(axis=axis, keepdims=True))},
        nudge="Add up the weights of a row: what should they give?",
        where="the division: by what?",
    ),
    mistake(
        "softmax-twice",
        "softmax is taken twice",
        "the weights are too even",
        {"give": softmax},
        remedy=f"{LINES}  # once",
        nudge="Give it the scores 0 and 100: should the first have any weight to speak of?",
        where="after the division: is there anything left to do?",
    ),
    mistake(
        "softmax-logarithm",
        "the logarithm of the weights is returned",
        "all the numbers are below zero; their exponentials sum to 1",
        {"give": np.log},
        remedy=RETURN,
        nudge="Can a weight be below zero?",
        where="the return statement, and the last thing done before it",
    ),
    mistake(
        "softmax-sign",
        "the sign is turned: the lowest score takes the largest weight",
        "a row of rising scores gives falling weights",
        {"read": np.negative},
        nudge="Give it the scores 0 and 1: which should have the larger weight?",
        where="what is given to exp: is there a minus too many?",
    ),
    mistake(
        "softmax-base-two",
        "powers of 2 are taken, not of e",
        "the weights are too even: one score more by 1 doubles the weight, where it is 2.718 times",
        {"exp": np.exp2},
        nudge="Give it the scores 0 and 1: the second weight should be 2.718 times the first.",
        where="the step that makes the scores positive",
    ),
    mistake(
        "softmax-sigmoid",
        "each score goes through the sigmoid on its own: a weight does not depend on the other"
        " scores",
        "the weights of a row do not sum to 1",
        {"shift": same, "exp": lambda x: 1 / (1 + np.exp(-x)), "normalise": same},
        {"shift": same, "exp": lambda x: 1 / (1 + np.exp(-x))},
        nudge="Change one score of a row: do the other weights change too?",
        where="what is done to each score: 1 / (1 + exp(-x)) is another function",
    ),
    mistake(
        "softmax-hard",
        "the largest score takes all the weight, by a maximum or by exponentials that are cut off"
        " to whole numbers",
        "the weights are 0 and 1 only",
        {
            "shift": lambda x, axis: x - x.max(axis=axis, keepdims=True),
            "exp": lambda x: (x == 0).astype(np.float64),
        },
        {"give": lambda w: np.eye(w.shape[-1])[w.argmax(axis=-1)]},
        nudge="Give it the scores 0 and 1: should the first have no weight at all?",
        where="how the weights come of the scores: argmax and == forget all but the largest, and so"
        " does an array of integers",
    ),
    mistake(
        "softmax-rounded",
        "the weights are rounded",
        "they no longer sum to 1, and small ones are gone",
        *({"give": lambda w, n=n: np.round(w, n)} for n in range(1, 6)),
        remedy=f"{RETURN}  # round what you print, not what you compute",
        nudge="Print 1 - weights.sum(axis=-1): is it 0?",
        where="the return statement: is something rounded there?",
    ),
    *mended(
        LINES,
        mistake(
            "whole-weights",
            "the weights are cut off to whole numbers, by // in place of / or by an array of"
            " integers",
            "a weight below 1 becomes 0",
            {"give": np.floor},
            remedy=f"{LINES}  # in an array of floats",
            nudge="Add up the weights of a row: what should they give?",
            where="the division by the sum, and the array that the weights are written to",
        ),
        mistake(
            "integer-table",
            "the exponentials are stored in an array of integers, which cuts off their fractions",
            "exp(0.5) becomes 1, and exp(-1) becomes 0",
            {"shift": same, "exp": lambda x: np.trunc(np.exp(x))},
            remedy="e = np.zeros(x.shape)  # of floats: no dtype=int, no np.full(..., 0)",
            nudge="Print the dtype of the array that is written to.",
            where="the line that makes this array: which numbers can it hold?",
        ),
        mistake(
            "sum-overwritten",
            "the sum of a row is overwritten and not added to: only its last term is left",
            "the weights of a row do not sum to 1",
            {"normalise": lambda e, axis: e / e[..., -1:]},
            remedy="total += ...  # not total = ...",
            nudge="Add up the weights of a row: what should they give?",
            where="the loop that makes the sum: = or +=?",
        ),
        mistake(
            "sum-not-reset",
            "the sum of a row begins with that of the rows before: it is not set to 0 for each row",
            "only the first row of the weights sums to 1",
            {"normalise": lambda e, axis: e / np.cumsum(e.sum(axis=-1, keepdims=True), axis=-2)},
            remedy="total = 0.0  # inside the loop over the rows",
            nudge="Add up the weights of each row: which of them give 1?",
            where="the line that sets the sum to 0: in which loop does it stand?",
        ),
        returned_early("give", same, "row"),
        *_forgotten(-1),
        *_forgotten(0),
        alone=True,
    ),
)

BATCHES = mended(
    LINES,
    mistake(
        "softmax-second-axis",
        "right for a matrix (L, S), wrong for a batch (B, L, S): the axis named is the last one"
        " of a matrix only",
        "the rows of the weights do not sum to 1",
        {"axis": lambda axis: 1},
        nudge="Give it an array of three axes, and add up the weights along the last.",
        where="the axis: 1 is the second, -1 is the last whatever there is before",
    ),
    mistake(
        "softmax-first-axis",
        "right for one row (S,), wrong for more: the axis named is the first",
        "the rows of the weights do not sum to 1",
        {"axis": lambda axis: 0},
        nudge="Give it two rows, and add up the weights of each.",
        where="the axis: 0 is the first, -1 is the last whatever there is before",
    ),
)

LARGE = mended(
    LINES,
    mistake(
        "softmax-no-max",
        "the maximum of the row is not subtracted before exp",
        "exp(1000) overflows to inf, and inf / inf is nan",
        {"shift": same},
        nudge="Give it the scores 1000 and 1000: what is exp(1000)?",
        where="what is given to exp: the weights do not change if the row's maximum is taken away",
    ),
    mistake(
        "softmax-global-max",
        "the maximum of the whole matrix is subtracted, not that of each row",
        "a row far below it underflows to 0, and 0 / 0 is nan",
        {"shift": lambda x, axis: x - x.max()},
        nudge="Give it two rows, one of them lower by 1000.",
        where="the maximum: over which axis does it run?",
    ),
    mistake(
        "softmax-mean-subtracted",
        "the mean of the row is subtracted before exp, not the maximum",
        "a score far above the mean still overflows",
        {"shift": lambda x, axis: x - x.mean(axis=axis, keepdims=True)},
        {"shift": lambda x, axis: x - x.mean()},
        nudge="Give it the scores 2000 and 0: how large is the number that goes into exp?",
        where="what is subtracted: it must leave nothing above 0",
    ),
    mistake(
        "softmax-min-subtracted",
        "the minimum of the row is subtracted before exp, not the maximum",
        "a score far above the minimum overflows",
        {"shift": lambda x, axis: x - x.min(axis=axis, keepdims=True)},
        {"shift": lambda x, axis: x - x.min()},
        nudge="Give it the scores 2000 and 0: how large is the number that goes into exp?",
        where="what is subtracted: it must leave nothing above 0",
    ),
    kind="fragile",
)

AXIS = mended(
    LINES.replace("-1", "axis"),
    mistake(
        "axis-ignored",
        "the axis that was asked for makes no difference",
        "the weights sum to 1 along the last axis whatever is asked for",
        {"axis": lambda axis: -1},
        nudge="Call it with axis=0, and add up the columns.",
        where="the parameter axis: where is it used?",
    ),
)
