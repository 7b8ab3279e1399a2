"""The ways to get scores, softmax, values, projections and batches wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.tasks.attention.mistakes.lines import (
    CONTEXT,
    PROJECT,
    SCALE,
    WEIGHTS,
)
from qkv.marking.tasks.attention.steps import RAW, flip, same, softmax


def _max(**over: Any) -> dict[str, Any]:
    """Softmax that subtracts another maximum."""
    return {"shift": lambda s: s - s.max(**over)}


def _sum(**over: Any) -> dict[str, Any]:
    """Softmax that divides by another sum."""
    return {"normalise": lambda e: e / e.sum(**over)}


def _over(*axes: int) -> tuple[Steps, Steps]:
    """Softmax over other axes, of which the maximum may be right."""
    over: dict[str, Any] = {"axis": axes, "keepdims": True}
    return _max(**over) | _sum(**over), _sum(**over)


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
        *_over(-1, -2),
        nudge="Add up the weights of each row: what should each give?",
    ),
    mistake(
        "softmax-columns",
        "softmax runs over the queries (down the columns), not over the keys (along each row)",
        "the columns of the weights sum to 1 and the rows do not",
        *_over(-2),
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
        "the scores are divided by d, not by sqrt(d): either the root is missing, or sqrt(d) is"
        " divided by twice",
        "the weights are too even",
        {"scale": lambda s, n: s / n.d},
        remedy=f"{SCALE}  # once",
        nudge="Let d be 4: by which number should the scores be divided?",
    ),
    mistake(
        "scale-multiplied",
        "the scores are multiplied by sqrt(d) where they should be divided by it",
        "the weights are far too sharp",
        {"scale": lambda s, n: s * np.sqrt(n.d)},
        nudge="Let d be 4: by which number should the scores be divided?",
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
        "every query sees only the keys up to its own place, though no causal mask was asked for",
        "the first output is the first value, and nothing else",
        {"not_causal": lambda i, j: j <= i},
        remedy="apply the causal mask only where it is asked for: if is_causal: ...",
        nudge="Change the last value: does the first output change?",
    ),
    where="the last product, and what is returned",
)


_NAMED = {  # by which of query, key and value is used in whose place
    (1, 0, 2): (
        "query-key-swapped",
        "query and key are swapped, so that the scores are transposed",
        "a query's weights belong to the key of the same place",
    ),
    (0, 1, 1): (
        "key-as-value",
        "the key is used as the value",
        "the output does not change when the values do",
    ),
}


def _mixed(signature: str) -> Iterator[Mistake]:
    """Each way to use query, key and value, or their projections, in each other's place."""
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
        unused = [name for n, name in enumerate(arguments) if n not in used]
        if used in _NAMED:
            key, says, shows = _NAMED[used]
        elif unused:
            key, says = shared
            shows = f"the output does not depend on the {' or the '.join(unused)} at all"
        else:
            (key, says), shows = order, "the shapes still fit, the meaning does not"
        if used != (0, 1, 2):
            says = says.format(*(names[n] for n in used))
            choose = {"choose": lambda q, k, v, used=used: [(q, k, v)[n] for n in used]}
            nudge = "Change one of the three at a time: does the output change each time?"
            where = "the names in the product of the scores, and in the one with the values"
            yield mistake(key, says, shows, choose, remedy=remedy, nudge=nudge, where=where)


def _bare(*bare: int) -> Steps:
    """Use x itself in place of some of the three projections."""
    return {
        "project": lambda x, *weights: [
            x if n in bare else x @ weight for n, weight in enumerate(weights)
        ]
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
    ),
    mistake(
        "no-projection",
        "a projection is forgotten: x itself is used where x times a weight matrix should be",
        "the output does not depend on all of w_q, w_k and w_v",
        *(_bare(*n) for n in ((0, 1, 2), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))),
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

SHAPES = mended(
    SCALE,
    mistake(
        "scale-value-size",
        "the scores are divided by the root of the size of the values, not of the queries and keys",
        "the weights change with the number of columns of the values",
        {"scale": lambda s, n: s / np.sqrt(n.dv)},
        nudge="Give the values another column: do the weights change?",
    ),
    where="the size under the root: of which array is it?",
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

_ALONG_THE_SECOND: Steps = {"normalise": lambda e: e / e.sum(axis=-1)[:, None]}

BATCHES = mended(
    WEIGHTS,
    mistake(
        "batch-transpose",
        "right for one text (L, d), wrong for a batch (B, L, d): K.T turns all the axes round",
        "it fails, or mixes the texts of the batch with each other where the shapes happen to fit",
        {"score": lambda q, k: q @ k.T},
        remedy=SCALE,
        nudge="Print (2, 3, 4) before and after the transpose.",
    ),
    mistake(
        "batch-axis",
        "right for one text (L, d), wrong for a batch (B, L, d): softmax names an axis that is the"
        " last one only for one text",
        "the rows of the weights do not sum to 1",
        *_over(1),
        {"shift": lambda s: s - s.max(axis=-1)[:, None], **_ALONG_THE_SECOND},
        _ALONG_THE_SECOND,
        nudge="Give it two texts at once, and add up the weights of each row.",
    ),
    where="every axis and transpose that is counted from the front",
)


def core(signature: str) -> tuple[Mistake, ...]:
    """The mistakes that show without masks, heads or odd inputs."""
    of_projections = () if signature == "qkv" else PROJECTIONS
    return (*SOFTMAX, *SCALING, *RESULT, *of_projections, *_mixed(signature))
