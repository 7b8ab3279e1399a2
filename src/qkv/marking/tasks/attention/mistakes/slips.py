"""Slips of the pen: a fraction cut off, a loop that ends too early, a product of another kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, mended, mistake
from qkv.marking.tasks.attention.mistakes.lines import CONTEXT, PROJECT, SCALE, WEIGHTS
from qkv.marking.tasks.attention.steps import flip, same


def without(a: Array, at: int, axis: int, number: float = 0) -> Array:
    """A number in the place of the first (0) or the last (-1) along an axis."""
    a = np.array(a)
    np.moveaxis(a, axis, 0)[at] = number
    return a


def cut(a: Array, at: int, axis: int) -> Array:
    """Without the first (0) or the last (-1) along an axis: one shorter."""
    return np.delete(a, at, axis)


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


def _whole_exp(s: Array) -> Array:
    out: Array = np.trunc(np.exp(s))
    return out


_DTYPE = "Print the dtype of the array that is written to."
_FLOATS = "{} = np.zeros(...)  # of floats: no dtype=int, no np.full(..., 0)"

CUT_OFF = (
    mistake(
        "floor-division",
        "the scores are divided with //, which rounds down to whole numbers",
        "scores that differ by less than 1 become equal",
        {"scale": lambda s, n: s // np.sqrt(n.d)},
        remedy=SCALE,
        nudge="Print the scores: which of them has a fraction?",
        where="the division of the scores",
    ),
    mistake(
        "floor-division",
        "the outputs are divided with //, which rounds down to whole numbers",
        "every output is a whole number",
        {"normalise": same, "weigh": lambda e, v, n: e @ v // e.sum(axis=-1, keepdims=True)},
        remedy="out = e @ v / e.sum(axis=-1, keepdims=True)",
        nudge="Print the output: which of its numbers has a fraction?",
        where="the division by the sum",
    ),
    mistake(
        "whole-weights",
        "the weights are cut off to whole numbers, by // in place of / or by an array of integers",
        "a weight below 1 becomes 0",
        {"normalise": lambda e: e // e.sum(axis=-1, keepdims=True)},
        remedy=f"{WEIGHTS}  # in an array of floats",
        nudge="Add up the weights of a row: what should they give?",
        where="the division by the sum, and the array that the weights are written to",
    ),
    mistake(
        "softmax-hard",
        "the largest score takes all the weight, by a maximum or by exponentials that are cut off"
        " to whole numbers",
        "the weights of a row are 0, but for those of its largest scores",
        {
            "shift": lambda s: s - s.max(axis=-1, keepdims=True),
            "exp": lambda s: (s == 0).astype(np.float64),
        },
        {"normalise": lambda e: np.eye(e.shape[-1])[e.argmax(axis=-1)]},
        remedy=WEIGHTS,
        nudge="Let the scores of a row be 0 and 1: should the first have no weight at all?",
        where="what is done to the scores: argmax and == forget all but the largest, and so does an"
        " array of integers",
    ),
    *mended(
        _FLOATS.format("e"),
        mistake(
            "integer-table",
            "the exponentials are stored in an array of integers, which cuts off their fractions",
            "exp(0.5) becomes 1, and exp(-1) becomes 0",
            {"shift": same, "exp": _whole_exp},
        ),
        mistake(
            "integer-table",
            "the scores are stored in an array of integers, which cuts off their fractions",
            "scores that differ by less than 1 become equal",
            {"scale": lambda s, n: np.trunc(_root(s, n.d))},
            {"score": lambda q, k: np.trunc(q @ flip(k))},
            {"score": _scores_added_up},
            {"score": _scores_added_up, "scale": lambda s, n: np.trunc(_root(s, n.d))},
            remedy=_FLOATS.format("scores"),
        ),
        mistake(
            "integer-table",
            "the output is stored in an array of integers, which cuts off its fractions",
            "every output is a whole number",
            {"weigh": lambda w, v, n: np.trunc(w @ v)},
            {"weigh": _values_added_up},
            remedy=_FLOATS.format("out"),
        ),
        nudge=_DTYPE,
        where="the line that makes this array: which numbers can it hold?",
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


def only_first(a: Array) -> Array:
    """0 in all rows but the first."""
    out = np.zeros_like(a)
    out[..., :1, :] = a[..., :1, :]
    return out


def returned_early(step: str, of: Callable[..., Array], row: str) -> Mistake:
    """A return statement inside the loop over rows: the first is the only one.

    Args:
        step: gives what is returned, by this function.
        of: the function.
        row: what a row belongs to.
    """
    return mistake(
        "return-in-loop",
        f"only the first {row} is computed, as where the return statement stands inside the loop",
        "the other rows are missing, or stay 0",
        {step: lambda *given: only_first(of(*given))},
        {step: lambda *given: of(*given)[..., :1, :]},
        remedy="return out  # indented as the for of the loop is",
        nudge="Print the output: which of its rows are right?",
        where="the return statement: how far is it indented?",
    )


LOOPS = (
    returned_early("weigh", lambda w, v, n: w @ v, "query"),
    mistake(
        "sum-overwritten",
        "the sum of a row is overwritten and not added to: only its last term is left",
        "the weights of a row do not sum to 1",
        {"normalise": lambda e: e / e[..., -1:]},
        remedy="total += ...  # not total = ...",
        nudge="Add up the weights of a row: what should they give?",
        where="the loop that makes the sum: = or +=?",
    ),
    mistake(
        "sum-overwritten",
        "a score is overwritten and not added to: only its last product is left",
        "the scores depend on the last number of each query and key alone",
        {"score": lambda q, k: q[..., -1:] @ flip(k[..., -1:])},
        remedy="scores[i, j] += ...  # not scores[i, j] = ...",
        nudge="Work one score out by hand: how many products does it add up?",
        where="the loop inside the product of a query and a key: = or +=?",
    ),
    mistake(
        "sum-overwritten",
        "the output is overwritten and not added to: only the last value is left",
        "the output depends on the last value alone",
        {"weigh": lambda w, v, n: w[..., -1:] @ v[..., -1:, :]},
        remedy="out[i] += ...  # not out[i] = ...",
        nudge="Change the first value: does the output change?",
        where="the loop that adds up the values: = or +=?",
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

_FITS = "Let there be 3 queries and 3 keys of 2 numbers: which shape have the scores?"
PRODUCTS = (
    *mended(
        SCALE,
        mistake(
            "product-elementwise",
            "queries and keys are multiplied number by number; a score is the sum of the products",
            "it fails, or gives other numbers where the shapes happen to fit",
            {"score": lambda q, k: q * k},
            {"score": lambda q, k: q * flip(k)},
            {"score": lambda q, k: q * k, "weigh": lambda w, v, n: w * v},
            {"score": lambda q, k: (q * k).sum(axis=-1, keepdims=True)},
            {
                "score": lambda q, k: (q * k).sum(axis=-1)[..., None, :],
                "weigh": lambda w, v, n: (w @ v)[..., 0, :],
            },
            {
                "score": lambda q, k: (q * k).sum(axis=-1)[..., None, :],
                "weigh": lambda w, v, n: flip(w) * v,
            },
        ),
        nudge=_FITS,
        where="the product of queries and keys: which sign stands there?",
    ),
    *mended(
        CONTEXT,
        mistake(
            "product-elementwise",
            "weights and values are multiplied number by number; an output is the sum of products",
            "it fails, or gives other numbers where the shapes happen to fit",
            {"weigh": lambda w, v, n: w * v},
        ),
        mistake(
            "product-order",
            "the values stand before the weights in the product: it is weights @ value",
            "it fails, or mixes the columns of the values where the shapes happen to fit",
            {"weigh": lambda w, v, n: v @ w},
        ),
        nudge="Let all the values be 1: what should every output be?",
        where="the product of weights and values: which sign, and in which order?",
    ),
)

OF_WORDS = mended(
    PROJECT,
    mistake(
        "product-elementwise",
        "words and weights are multiplied number by number; a projection is x @ w",
        "it fails, or gives other numbers where the shapes happen to fit",
        *(
            {
                "project": lambda x, *weights, by=by: [
                    x * w if n in by else x @ w for n, w in enumerate(weights)
                ]
            }
            for by in ((0, 1, 2), (0,), (1,), (2,))
        ),
    ),
    mistake(
        "product-order",
        "the weights stand before x in the product: it is x @ w",
        "it fails, or mixes the words where there are as many of them as numbers in one",
        {"project": lambda x, *weights: [w @ x for w in weights]},
    ),
    nudge="Let there be 2 words of 3 numbers: which shape have the queries?",
    where="the lines that make q, k and v of x: which sign, and in which order?",
    alone=True,
)


def of_output(step: str, remedy: str) -> tuple[Mistake, ...]:
    """Slips in the product of the joined heads with w_o, which is this step."""
    return mended(
        remedy,
        mistake(
            "product-elementwise",
            "the joined heads and w_o are multiplied number by number; the projection is out @ w_o",
            "it fails, or gives other numbers where the shapes happen to fit",
            {step: lambda out, w_o: out * w_o},
        ),
        mistake(
            "product-order",
            "w_o stands before the joined heads in the product: it is out @ w_o",
            "it fails, or mixes words where there are as many of them as numbers in one",
            {step: lambda out, w_o: w_o @ out},
        ),
        nudge="Let there be 2 words of 4 numbers: which shape has the result?",
        where="the product with w_o: which sign, and in which order?",
        alone=True,
    )


def _forgotten(at: int) -> Iterator[Mistake]:
    """What a loop leaves out that ends one too early (-1), or begins one too late (0)."""
    one = "last" if at else "first"
    yield mistake(
        "key-forgotten",
        f"the {one} key is forgotten: its score, its weight or its value is left out",
        f"the output does not depend on the {one} key or value as it should",
        {"scale": lambda s, n: without(_root(s, n.d), at, -1)},
        {"scale": lambda s, n: without(_root(s, n.d), at, -1, -np.inf)},
        {"normalise": lambda e: e / cut(e, at, -1).sum(axis=-1, keepdims=True)},
        {"weigh": lambda w, v, n: cut(w, at, -1) @ cut(v, at, -2)},
        remedy="for j in range(len(k)): ...  # from 0 to len(k) - 1",
        nudge="Change one value after the other: does every one change the output?",
        where="the loops over the keys, or the slices: where do they begin and end?",
    )
    yield mistake(
        "query-forgotten",
        f"the {one} query is forgotten: its row of the output stays 0, or is missing",
        "there should be a row for each query",
        {"weigh": lambda w, v, n: without(w @ v, at, -2)},
        {"weigh": lambda w, v, n: cut(w @ v, at, -2)},
        remedy="for i in range(len(q)): ...  # from 0 to len(q) - 1",
        nudge="Print the output: which row is it that differs?",
        where="the loop over the queries: where does it begin and end?",
    )
    yield mistake(
        "dimension-forgotten",
        f"the {one} number of queries and keys is left out of their product",
        f"the scores do not depend on the {one} number of a query",
        {"score": lambda q, k: cut(q, at, -1) @ flip(cut(k, at, -1))},
        remedy="for n in range(d): ...  # from 0 to d - 1",
        nudge="Work one score out by hand: how many products does it add up?",
        where="the loop inside the product of a query and a key: where does it begin and end?",
    )
    yield mistake(
        "column-forgotten",
        f"the {one} column of the output is forgotten: it stays 0, or is missing",
        "there should be a column for each number of a value",
        {"weigh": lambda w, v, n: without(w @ v, at, -1)},
        {"weigh": lambda w, v, n: cut(w @ v, at, -1)},
        remedy="for c in range(dv): ...  # from 0 to dv - 1",
        nudge="Print the output: which column is it that differs?",
        where="the loop over the numbers of a value: where does it begin and end?",
    )


FORGOTTEN = (*_forgotten(-1), *_forgotten(0))
SLIPS = mended("", *CUT_OFF, *LOOPS, *PRODUCTS, *FORGOTTEN, alone=True)


def _seen_without(w: Array, at: int) -> Array:
    """The weight of the first key, or of the last one that a query sees, is 0."""
    places = np.arange(w.shape[-1])
    last = np.where(w > 0, places, -1).max(axis=-1, keepdims=True)
    return np.where(places == (last if at else 0), 0.0, w)


# of what is causal: loops over as many keys as a word sees
OF_CAUSAL = mended(
    "for j in range(i + 1): ...  # from 0 to i",
    *(
        mistake(
            "key-forgotten",
            f"the {one} key that a word sees is forgotten when the values are added up",
            f"the output does not depend on the {one} word as it should",
            {"weigh": lambda w, v, n, at=at: _seen_without(w, at) @ v},
        )
        for at, one in ((-1, "last"), (0, "first"))
    ),
    nudge="Change one value after the other: does every one change the output?",
    where="the loops over the keys, or the slices: where do they begin and end?",
    alone=True,
)
