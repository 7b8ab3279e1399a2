"""Slips of the pen in attention: a fraction cut off, a loop that ends early, a wrong product."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.tasks.attention.steps import CONTEXT, PROJECT, SCALE, WEIGHTS, flip, same
from qkv.marking.tasks.mistakes.build import (
    FLOORED,
    cut,
    early_return,
    forgotten,
    integers,
    overwritten,
    products,
    without,
)

_SUM = "Add up the weights of a row: what should they give?"
_ONES = "Let all the values be 1: what should every output be?"


def _added_up(terms: Iterable[Array]) -> Array:
    """A sum that is kept in an array of integers."""
    total: Array = np.array(0.0)
    for term in terms:
        total = np.trunc(total + term)
    return total


def _scores_added_up(q: Array, k: Array) -> Array:
    columns = range(q.shape[-1])
    return _added_up(q[..., :, None, n] * k[..., None, :, n] for n in columns)


def _values_added_up(w: Array, v: Array, *_: object) -> Array:
    return _added_up(w[..., :, j, None] * v[..., None, j, :] for j in range(v.shape[-2]))


def _root(s: Array, d: int) -> Array:
    out: Array = s / np.sqrt(d)
    return out


_WHOLE_SCORES: Steps = {"scale": lambda s, n: np.trunc(_root(s, n.d))}

# slips in softmax as such: the steps of the task softmax are the same
HARD = mistake(
    "softmax-hard",
    "the largest score takes all the weight, by a maximum or by exponentials cut off to whole"
    " numbers",
    "the weights of a row are 0, but for those of its largest scores",
    {
        "shift": lambda s: s - s.max(axis=-1, keepdims=True),
        "exp": lambda s: (s == 0).astype(np.float64),
    },
    {"normalise": lambda e: np.eye(e.shape[-1])[e.argmax(axis=-1)]},
    nudge="Let the scores of a row be 0 and 1: should the first have no weight at all?",
    where="what is done to the scores: argmax, == and arrays of integers keep the largest alone",
)
WHOLE_WEIGHTS = mistake(
    "whole-weights",
    "the weights are cut off to whole numbers, by // in place of / or by an array of integers",
    "a weight below 1 becomes 0",
    {"normalise": lambda e: e // e.sum(axis=-1, keepdims=True)},
    remedy=f"{WEIGHTS}  # in an array of floats",
    nudge=_SUM,
    where="the division by the sum, and the array that the weights are written to",
)
WHOLE_EXPONENTIALS = integers(
    "the exponentials are",
    "exp(0.5) becomes 1, and exp(-1) becomes 0",
    {"shift": same, "exp": lambda s: np.trunc(np.exp(s))},
    array="e",
)
SUMS = (
    overwritten(
        "the sum of a row",
        "the weights of a row do not sum to 1",
        {"normalise": lambda e: e / e[..., -1:]},
        "total",
        _SUM,
    ),
    mistake(
        "sum-not-reset",
        "the sum of a row begins with that of the rows before: it is not set to 0 for each row",
        "only the first row of the weights sums to 1",
        {"normalise": lambda e: e / np.cumsum(e.sum(axis=-1, keepdims=True), axis=-2)},
        remedy="total = 0.0  # inside the loop over the rows",
        nudge="Add up the weights of each row: which of them give 1?",
        where="the line that sets the sum to 0: in which loop does it stand?",
    ),
)

_CUT_OFF = (
    mistake(
        "floor-division",
        f"the scores are {FLOORED}",
        "scores that differ by less than 1 become equal",
        {"scale": lambda s, n: s // np.sqrt(n.d)},
        remedy=SCALE,
        nudge="Print the scores: which of them has a fraction?",
        where="the division of the scores",
    ),
    mistake(
        "floor-division",
        f"the outputs are {FLOORED}",
        "every output is a whole number",
        {"normalise": same, "weigh": lambda e, v, n: e @ v // e.sum(axis=-1, keepdims=True)},
        remedy="out = e @ v / e.sum(axis=-1, keepdims=True)",
        nudge="Print the output: which of its numbers has a fraction?",
        where="the division by the sum",
    ),
    WHOLE_WEIGHTS,
    *mended(WEIGHTS, HARD),
    WHOLE_EXPONENTIALS,
    integers(
        "the scores are",
        "scores that differ by less than 1 become equal",
        _WHOLE_SCORES,
        {"score": lambda q, k: np.trunc(q @ flip(k))},
        {"score": _scores_added_up},
        {"score": _scores_added_up, **_WHOLE_SCORES},
        array="scores",
    ),
    integers(
        "the output is",
        "every output is a whole number",
        {"weigh": lambda w, v, n: np.trunc(w @ v)},
        {"weigh": _values_added_up},
    ),
    mistake(
        "scale-power",
        "the scores are divided by d / 2 or by 2 * d, not by sqrt(d): d ** 1/2 is (d ** 1) / 2",
        "right for d = 4 alone, or the weights are too even",
        {"scale": lambda s, n: s / (n.d / 2)},
        {"scale": lambda s, n: s / (2 * n.d)},
        remedy=f"{SCALE}  # or d ** 0.5",
        nudge="Let d be 9: by which number are the scores divided, and by which should they be?",
        where="the power, or the root: what is computed first?",
    ),
    mistake(
        "scale-whole",
        "the scores are divided by a root that is cut off to a whole number",
        "right where d is 1, 4, 9 ...",
        {"scale": lambda s, n: s / np.floor(np.sqrt(n.d))},
        {"scale": lambda s, n: s / (n.d // 2)},
        remedy=SCALE,
        nudge="Let d be 2: by which number are the scores divided, and by which should they be?",
        where="the root of d: does int, // or math.isqrt cut it off?",
    ),
)

_LOOPS = (
    early_return("weigh", lambda w, v, n: w @ v, "query"),
    *SUMS,
    overwritten(
        "a score",
        "the scores depend on the last number of each query and key alone",
        {"score": lambda q, k: q[..., -1:] @ flip(k[..., -1:])},
        "scores[i, j]",
        "Work one score out by hand: how many products does it add up?",
    ),
    overwritten(
        "the output",
        "the output depends on the last value alone",
        {"weigh": lambda w, v, n: w[..., -1:] @ v[..., -1:, :]},
        "out[i]",
        "Change the first value: does the output change?",
    ),
)


def _one_score_each(q: Array, k: Array) -> Array:
    out: Array = (q * k).sum(axis=-1)[..., None, :]
    return out


_PRODUCTS = (
    *products(
        "q @ k.T",
        (
            {"score": lambda q, k: q * k},
            {"score": lambda q, k: q * flip(k)},
            {"score": lambda q, k: q * k, "weigh": lambda w, v, n: w * v},
            {"score": lambda q, k: (q * k).sum(axis=-1, keepdims=True)},
            {"score": _one_score_each, "weigh": lambda w, v, n: (w @ v)[..., 0, :]},
            {"score": _one_score_each, "weigh": lambda w, v, n: flip(w) * v},
        ),
        (),
        SCALE,
        "Let there be 3 queries and 3 keys of 2 numbers: which shape have the scores?",
    ),
    *products(
        "weights @ v",
        [{"weigh": lambda w, v, n: w * v}],
        [{"weigh": lambda w, v, n: v @ w}],
        CONTEXT,
        _ONES,
    ),
)


def _each_number(*by: int) -> Steps:
    """Multiply some of the projections number by number."""
    return {
        "project": lambda x, *weights: [x * w if n in by else x @ w for n, w in enumerate(weights)]
    }


OF_WORDS = mended(
    PROJECT,
    *products(
        "x @ w",
        (_each_number(0, 1, 2), _each_number(0), _each_number(1), _each_number(2)),
        [{"project": lambda x, *weights: [w @ x for w in weights]}],
        PROJECT,
        "Let there be 2 words of 3 numbers: which shape have the queries?",
    ),
    alone=True,
)


def of_output(remedy: str) -> tuple[Mistake, ...]:
    """Return the slips in the product of the joined heads with w_o."""
    known = products(
        "out @ w_o",
        [{"output": lambda out, w_o: out * w_o}],
        [{"output": lambda out, w_o: w_o @ out}],
        remedy,
        "Let there be 2 words of 4 numbers: which shape has the result?",
    )
    return mended("", *known, alone=True)


_FORGOTTEN = (
    *forgotten(
        "key-forgotten",
        "the {} key is forgotten: its score, its weight or its value is left out",
        "the output does not depend on the {} key or value as it should",
        lambda at: {"scale": lambda s, n: without(_root(s, n.d), at, -1)},
        lambda at: {"scale": lambda s, n: without(_root(s, n.d), at, -1, -np.inf)},
        lambda at: {"normalise": lambda e: e / cut(e, at, -1).sum(axis=-1, keepdims=True)},
        lambda at: {"weigh": lambda w, v, n: cut(w, at, -1) @ cut(v, at, -2)},
        loop="j in range(len(k))",
        nudge="Change one value after the other: does every one change the output?",
        where="the loops over the keys, or the slices",
    ),
    *forgotten(
        "query-forgotten",
        "the {} query is forgotten: its row of the output stays 0, or is missing",
        "there should be a row for each query",
        lambda at: {"weigh": lambda w, v, n: without(w @ v, at, -2)},
        lambda at: {"weigh": lambda w, v, n: cut(w @ v, at, -2)},
        loop="i in range(len(q))",
        nudge="Print the output: which row is it that differs?",
        where="the loop over the queries",
    ),
    *forgotten(
        "dimension-forgotten",
        "the {} number of queries and keys is left out of their product",
        "the scores do not depend on the {} number of a query",
        lambda at: {"score": lambda q, k: cut(q, at, -1) @ flip(cut(k, at, -1))},
        loop="n in range(d)",
        nudge="Work one score out by hand: how many products does it add up?",
        where="the loop inside the product of a query and a key",
    ),
    *forgotten(
        "column-forgotten",
        "the {} column of the output is forgotten: it stays 0, or is missing",
        "there should be a column for each number of a value",
        lambda at: {"weigh": lambda w, v, n: without(w @ v, at, -1)},
        lambda at: {"weigh": lambda w, v, n: cut(w @ v, at, -1)},
        loop="c in range(dv)",
        nudge="Print the output: which column is it that differs?",
        where="the loop over the numbers of a value",
    ),
)
SLIPS = mended("", *_CUT_OFF, *_LOOPS, *_PRODUCTS, *_FORGOTTEN, alone=True)


def _seen_without(w: Array, at: int) -> Array:
    """Give no weight to the first key (0), or to the last one that a query sees (-1)."""
    positions = np.arange(w.shape[-1])
    last = np.where(w > 0, positions, -1).max(axis=-1, keepdims=True)
    return np.where(positions == (last if at else 0), 0.0, w)


# in causal tasks: loops over as many keys as a word sees
OF_CAUSAL = mended(
    "",
    *forgotten(
        "key-forgotten",
        "the {} key that a word sees is forgotten when the values are added up",
        "the output does not depend on the {} word as it should",
        lambda at: {"weigh": lambda w, v, n: _seen_without(w, at) @ v},
        loop="j in range(i + 1)",
        nudge="Change one value after the other: does every one change the output?",
        where="the loops over the keys, or the slices",
    ),
    alone=True,
)
