"""Mistakes in softmax(Q K^T / sqrt(d)) V itself: roles, scores, scale, softmax and output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.tasks.attention.steps import (
    CONTEXT,
    PROJECT,
    SCALE,
    WEIGHTS,
    flip,
    same,
    softmax,
)
from qkv.marking.tasks.mistakes.slips import OF_WORDS, SLIPS

_NAMED: dict[
    tuple[int, ...], tuple[str, str, str]
] = {  # by the array that is used as query, as key and as value
    (1, 0, 2): (
        "query-key-swapped",
        "query and key are swapped, so that the scores are transposed",
        "a query's weights belong to the key of the same position",
    ),
    (0, 1, 1): (
        "key-as-value",
        "the key is used as the value",
        "the output does not change when the values do",
    ),
}


def mixed(signature: str) -> Iterator[Mistake]:
    """Yield each way to exchange query, key and value, or their projections."""
    arguments = ("query", "key", "value")
    names, remedy = arguments, f"{SCALE}; {CONTEXT}"
    roles = "the {} is used as query, the {} as key and the {} as value"
    order = "arguments-order", f"the arguments are in another order: {roles}"
    shared = "arguments-shared", f"one of the three is used in place of another: {roles}"
    if signature != "qkv":
        names, remedy = ("w_q", "w_k", "w_v"), PROJECT
        roles = "q comes from {}, k from {} and v from {}"
        order = "projections-swapped", f"the projections have changed places: {roles}"
        shared = "projections-shared", f"one projection is used in place of another: {roles}"
    for used in product(range(3), repeat=3):
        if used == (0, 1, 2):
            continue
        unused = " or the ".join(name for n, name in enumerate(arguments) if n not in used)
        (key, says), shows = shared, f"the output does not depend on the {unused} at all"
        if not unused:
            (key, says), shows = order, "the shapes still fit, the meaning does not"
        key, says, shows = _NAMED.get(used, (key, says, shows))
        yield mistake(
            key,
            says.format(*(names[n] for n in used)),
            shows,
            {"choose": lambda *qkv, used=used: [qkv[n] for n in used]},
            remedy=remedy,
            nudge="Change one of the three at a time: does the output change each time?",
            where="the names in the product of the scores, and in the product with the values",
        )


def _unprojected(*bare: int) -> Steps:
    """Use x itself in place of some of the three projections."""
    return {
        "project": lambda x, *weights: [x if n in bare else x @ w for n, w in enumerate(weights)]
    }


PROJECTIONS = mended(
    PROJECT,
    mistake(
        "scale-model-width",
        "the scores are divided by the root of the width D of x, not of the size d of the queries",
        "the weights are too even where d is smaller than D",
        {"scale": lambda s, n: s / np.sqrt(n.width)},
        remedy=SCALE,
        nudge="Let x be wider than the queries: whose size counts?",
        where="the line of the scores: what are they divided by?",
    ),
    mistake(
        "no-projection",
        "a projection is forgotten: x itself is used where x times a weight matrix should be",
        "the output does not depend on all of w_q, w_k and w_v",
        *(_unprojected(*n) for n in ((0, 1, 2), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))),
        nudge="Change w_q, then w_k, then w_v: does the output change each time?",
    ),
    mistake(
        "projection-transposed",
        "the weights are used transposed: they are (in, out), so x @ w projects",
        "it fails where the weights are not square and is silently wrong where they are",
        {"project": lambda x, *weights: [x @ w.T for w in weights]},
        nudge="Let w_q have 3 rows and 2 columns.",
    ),
    where="the lines that make q, k and v of x",
)

SCORES = (
    mistake(
        "key-not-transposed",
        "the keys are not transposed: q @ k.T has a score for each query and key, q @ k has not",
        "it fails, or is silently wrong where there are as many keys as numbers in a key",
        {"score": lambda q, k: q @ k},
        remedy=SCALE,
        nudge="Print the shapes of q and k: which two sizes meet in the product?",
        where="the product of queries and keys",
    ),
)

_BY_FOUR = "Let d be 4: by which number should the scores be divided?"
SCALING = mended(
    SCALE,
    mistake(
        "no-scaling",
        "the scores are not scaled: the division by sqrt(d) is missing",
        "the weights are too sharp, the more so the larger d is",
        {"scale": same},
        nudge="Make d four times as large: how much larger do the scores get?",
    ),
    mistake(
        "scale-d",
        "the scores are divided by d, not by sqrt(d): the root is missing, or they are divided"
        " twice",
        "the weights are too even",
        {"scale": lambda s, n: s / n.d},
        remedy=f"{SCALE}  # once",
        nudge=_BY_FOUR,
    ),
    mistake(
        "scale-multiplied",
        "the scores are multiplied by sqrt(d) where they should be divided by it",
        "the weights are far too sharp",
        {"scale": lambda s, n: s * np.sqrt(n.d)},
        nudge=_BY_FOUR,
    ),
    mistake(
        "scale-tokens",
        "the scores are divided by the root of the number of tokens, not of the head size d",
        "the same two words score differently in a longer sentence",
        {"scale": lambda s, n: s / np.sqrt(n.tokens)},
        nudge="Add a word that nobody looks at: do the other scores change?",
    ),
    mistake(
        "scale-after-softmax",
        "the weights are divided by sqrt(d) after softmax, where the scores should be before it",
        "the weights of a row sum to 1/sqrt(d)",
        {"scale": same, "weigh": lambda w, v, n: w @ v / np.sqrt(n.d)},
        {"weigh": lambda w, v, n: w @ v / np.sqrt(n.d)},
        remedy=f"{SCALE}  # before softmax; the weights stay as they are",
        nudge="Add up the weights of a row: what should they give?",
    ),
    where="the line of the scores: what are they divided by, and when?",
)
SHAPES = (
    mistake(
        "scale-value-size",
        "the scores are divided by the root of the size of the values, not of the queries and keys",
        "the weights change with the number of columns of the values",
        {"scale": lambda s, n: s / np.sqrt(n.dv)},
        remedy=SCALE,
        nudge="Give the values another column: do the weights change?",
        where="the size under the root: of which array is it?",
    ),
)


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


OF_WEIGHTS = "the lines that make weights of the scores: exp, the sum, and their axis"
SUM_OF_A_ROW = "Add up the weights of a row: what should they give?"
_ROW_MAX, _ROW_SUM = _max(axis=-1), _sum(axis=-1)
_LATE_SUM: Steps = {"normalise": same, "weigh": lambda e, v, n: e @ v / e.sum(axis=-1)}

# softmax as such: the steps of the task softmax are the same
SOFTMAX_ROWS = mended(
    "",
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
        "all the weights together sum to 1, so each row has only a part of that",
        *over(-1, -2),
        nudge="Add up the weights of each row: what should each give?",
    ),
    mistake(
        "softmax-columns",
        "softmax runs down the columns (the queries), not along each row (the keys)",
        "the columns of the weights sum to 1 and the rows do not",
        *over(-2),
        nudge="Add up the weights of a row, then those of a column: which of them give 1?",
    ),
    mistake(
        "softmax-keepdims",
        "softmax takes the maximum or the sum of each row without keepdims=True, so that the number"
        " of row i is used on column i",
        "the rows of the weights do not sum to 1, or are shifted against each other",
        _ROW_SUM,
        {"shift": same, **_ROW_SUM},
        _ROW_MAX,
        _ROW_MAX | _ROW_SUM,
        nudge="Print the shape of what you divide by: what does (L, S) / (L,) do?",
    ),
    mistake(
        "softmax-not-normalised",
        "the exponentials are never divided by their sum",
        "the weights of a row do not sum to 1",
        {"shift": same, "normalise": same},
        {"normalise": same},
        {**_max(axis=(-1, -2), keepdims=True), "normalise": same},
        nudge=SUM_OF_A_ROW,
    ),
    mistake(
        "softmax-twice",
        "softmax is taken twice",
        "the weights are too even: after the second softmax even a masked position has some",
        {"weigh": lambda w, v, n: softmax(w) @ v},
        nudge="Let one score be 100 above the others: how much weight should they have?",
    ),
    where=OF_WEIGHTS,
)
SOFTMAX = mended(
    WEIGHTS,
    mistake(
        "no-softmax",
        "the values are weighted by the scores themselves: softmax is missing",
        "the weights of a row do not sum to 1, and a score below zero takes a value away",
        {"shift": same, "exp": same, "normalise": same},
        nudge=SUM_OF_A_ROW,
    ),
    mistake(
        "softmax-after-values",
        "the values are weighted by the scores first and softmax is taken of the result",
        "every row of the output sums to 1, whatever the values are",
        {"shift": same, "exp": same, "normalise": same, "weigh": lambda w, v, n: softmax(w @ v)},
        remedy=f"{WEIGHTS}; {CONTEXT}",
        nudge="Add up a row of the output: why is it 1 whatever the values are?",
    ),
    *SOFTMAX_ROWS[:3],
    replace(
        SOFTMAX_ROWS[3],
        variants=(
            *SOFTMAX_ROWS[3].variants,
            _LATE_SUM,
            {"shift": same, **_LATE_SUM},
            {**_ROW_MAX, **_LATE_SUM},
        ),
    ),
    *SOFTMAX_ROWS[4:],
    where=OF_WEIGHTS,
)

LARGE_ROWS = mended(
    "",
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
LARGE = mended(WEIGHTS, *LARGE_ROWS)

RESULT = mended(
    CONTEXT,
    mistake(
        "weights-returned",
        "the weights are returned, not the context: the last product with the values is missing",
        "the output has a column for each key, not for each dimension of the values",
        {"weigh": lambda w, v, n: w},
        nudge="Print the shape of the output: it should have a column for each of the values'.",
    ),
    mistake(
        "weights-transposed",
        "the values are mixed with the weights transposed",
        "each output mixes values by the weights of a column, which do not sum to 1",
        {"weigh": lambda w, v, n: flip(w) @ v},
        nudge="Let all the values be 1: what should every output be?",
    ),
    mistake(
        "causal-always",
        "every query sees only the keys up to its own position, without being asked to",
        "the first output is the first value, and nothing else",
        {"not_causal": lambda i, j: j <= i},
        remedy="apply the causal mask only where it is asked for: if is_causal: ...",
        nudge="Change the last value: does the first output change?",
        where="the mask that is put on the scores in every call",
    ),
    where="the last product, and what is returned",
)


def core(signature: str) -> tuple[Mistake, ...]:
    """Return the mistakes that show without masks, heads or odd inputs."""
    of_projections = () if signature == "qkv" else (*PROJECTIONS, *OF_WORDS)
    return (*SOFTMAX, *SCORES, *SCALING, *RESULT, *of_projections, *mixed(signature), *SLIPS)


_ALONG_THE_SECOND: Steps = {"normalise": lambda e: e / e.sum(axis=-1)[:, None]}
_FROM_THE_FRONT = "every axis and transpose that is counted from the front, and loops over rows"
BATCHES = (
    mistake(
        "batch-transpose",
        "right for one text (L, d), wrong for a batch (B, L, d): K.T reverses all the axes",
        "it fails, or mixes the texts of the batch with each other where the shapes happen to fit",
        {"score": lambda q, k: q @ k.T},
        remedy=SCALE,
        nudge="Print (2, 3, 4) before and after the transpose.",
        where=_FROM_THE_FRONT,
    ),
    mistake(
        "batch-axis",
        "right for one text (L, d), wrong for a batch (B, L, d): the axis of softmax is the last"
        " one of one text only",
        "the rows of the weights do not sum to 1",
        *over(1),
        {"shift": lambda s: s - s.max(axis=-1)[:, None], **_ALONG_THE_SECOND},
        _ALONG_THE_SECOND,
        remedy=WEIGHTS,
        nudge="Give it two texts at once, and add up the weights of each row.",
        where=_FROM_THE_FRONT,
    ),
)
ONE_TEXT = mistake(
    "one-text-only",
    "it takes one text (L, d) at a time, and batches (B, L, d) are asked for",
    "a batch fails, or comes out misshapen",
    remedy=SCALE,
    nudge="Give it two texts at once, q (2, 3, 4): which line fails first?",
    where=_FROM_THE_FRONT,
)
