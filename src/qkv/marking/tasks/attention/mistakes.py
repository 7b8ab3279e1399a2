"""The ways to get attention wrong: each replaces a step of the right computation.

A mistake names the steps it gets wrong; where learners write the same mistake in several ways there
are several variants. Because steps are independent, two mistakes together are simply both
replacements.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.tasks.attention.steps import RAW, flip, same, softmax

_SCORES = "scores = q @ np.swapaxes(k, -1, -2)"
SCALE = f"{_SCORES} / np.sqrt(q.shape[-1])"
_SOFTMAX = (
    "e = np.exp(scores - scores.max(axis=-1, keepdims=True));"
    " weights = e / e.sum(axis=-1, keepdims=True)"
)
_CONTEXT = "out = weights @ v"
_HIDE = "scores = np.where(mask, scores, -np.inf)"
_PROJECT = "q, k, v = x @ w_q, x @ w_k, x @ w_v"
FLOATS = "out = np.zeros((L, dv), dtype=float)  # not zeros_like(v); or x.astype(float) first"
_SEES = "weights = np.where(mask.any(axis=-1, keepdims=True), weights, 0.0)"


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
    _SOFTMAX,
    mistake(
        "no-softmax",
        "the values are weighted by the scores themselves: softmax is missing",
        "the weights of a row do not sum to 1, and a score below zero takes a value away",
        RAW,
    ),
    mistake(
        "softmax-after-values",
        "the values are weighted by the scores first and softmax is taken of the result",
        "every row of the output sums to 1, whatever the values are",
        {**RAW, "weigh": lambda w, v, n: softmax(w @ v)},
        remedy=f"{_SOFTMAX}; {_CONTEXT}",
    ),
    mistake(
        "no-exp",
        "the scores are divided by their sum, without exp: that is not softmax",
        "a score below zero gives a weight below zero, and scores that sum to 0 divide by 0",
        {"shift": same, "exp": same},
    ),
    mistake(
        "softmax-whole-matrix",
        "softmax runs over the whole matrix, not over each row",
        "all the weights together sum to 1, so each query has only a part of that",
        *_over(-1, -2),
    ),
    mistake(
        "softmax-columns",
        "softmax runs over the queries (down the columns), not over the keys (along each row)",
        "the columns of the weights sum to 1 and the rows do not",
        *_over(-2),
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
    ),
    mistake(
        "softmax-not-normalised",
        "the exponentials are never divided by their sum",
        "the weights of a row do not sum to 1",
        {"shift": same, "normalise": same},
        {"normalise": same},
        {**_max(axis=(-1, -2), keepdims=True), "normalise": same},
    ),
    mistake(
        "softmax-twice",
        "softmax is taken twice",
        "the weights are too even: after the second softmax even a hidden place has some",
        {"weigh": lambda w, v, n: softmax(w) @ v},
        remedy=f"{_SOFTMAX}  # once",
    ),
)

SCALING = mended(
    SCALE,
    mistake(
        "no-scaling",
        "the scores are not scaled: the division by sqrt(d) is missing",
        "the weights are too sharp, the more so the larger d is",
        {"scale": same},
    ),
    mistake(
        "scale-d",
        "the scores are divided by d, not by sqrt(d): either the root is missing, or sqrt(d) is"
        " divided by twice",
        "the weights are too even",
        {"scale": lambda s, n: s / n.d},
        remedy=f"{SCALE}  # once",
    ),
    mistake(
        "scale-multiplied",
        "the scores are multiplied by sqrt(d) where they should be divided by it",
        "the weights are far too sharp",
        {"scale": lambda s, n: s * np.sqrt(n.d)},
    ),
    mistake(
        "scale-tokens",
        "the scores are divided by the root of the number of tokens, not of the head size d",
        "the same two words score differently in a longer sentence",
        {"scale": lambda s, n: s / np.sqrt(n.tokens)},
    ),
    mistake(
        "scale-after-softmax",
        "the weights are divided by sqrt(d) after softmax, where the scores should be before it",
        "the weights of a row sum to 1/sqrt(d)",
        {"scale": same, "weigh": lambda w, v, n: w @ v / np.sqrt(n.d)},
        {"weigh": lambda w, v, n: w @ v / np.sqrt(n.d)},
        remedy=f"{SCALE}  # before softmax; the weights stay as they are",
    ),
)

RESULT = mended(
    _CONTEXT,
    mistake(
        "weights-returned",
        "the weights are returned, not the context: the last product with the values is missing",
        "the output has a column for each key, not for each dimension of the values",
        {"weigh": lambda w, v, n: w},
    ),
    mistake(
        "weights-transposed",
        "the values are mixed with the weights transposed",
        "each output mixes values by the weights of a column, which do not sum to 1",
        {"weigh": lambda w, v, n: flip(w) @ v},
    ),
    mistake(
        "causal-always",
        "every query sees only the keys up to its own place, though no causal mask was asked for",
        "the first output is the first value, and nothing else",
        {"not_causal": lambda i, j: j <= i},
        remedy="apply the causal mask only where it is asked for: if is_causal: ...",
    ),
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
    names, remedy = arguments, f"{SCALE}; {_CONTEXT}"
    roles = "the {} is used as query, the {} as key and the {} as value"
    order = "arguments-order", f"the arguments are in another order: {roles}"
    shared = "arguments-shared", f"one of the three is used in place of another: {roles}"
    if signature != "qkv":
        names, remedy = ("w_q", "w_k", "w_v"), _PROJECT
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
            yield mistake(key, says, shows, choose, remedy=remedy)


def _bare(*bare: int) -> Steps:
    """Use x itself in place of some of the three projections."""
    return {
        "project": lambda x, *weights: [
            x if n in bare else x @ weight for n, weight in enumerate(weights)
        ]
    }


PROJECTIONS = mended(
    _PROJECT,
    mistake(
        "scale-model-width",
        "the scores are divided by the root of the width D of x, not of the size d of the queries",
        "the weights are too even where d is smaller than D",
        {"scale": lambda s, n: s / np.sqrt(n.width)},
        remedy=SCALE,
    ),
    mistake(
        "no-projection",
        "a projection is forgotten: x itself is used where x times a weight matrix should be",
        "the output does not depend on all of w_q, w_k and w_v",
        *(_bare(*n) for n in ((0, 1, 2), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))),
    ),
    mistake(
        "projection-transposed",
        "the weights are used transposed: they are (in, out), so x @ w projects",
        "it fails where the weights are not square and is silently wrong where they are",
        {"project": lambda x, *weights: [x @ w.T for w in weights]},
    ),
)

SHAPES = mended(
    SCALE,
    mistake(
        "scale-value-size",
        "the scores are divided by the root of the size of the values, not of the queries and keys",
        "the weights change with the number of columns of the values",
        {"scale": lambda s, n: s / np.sqrt(n.dv)},
    ),
)

LARGE = mended(
    _SOFTMAX,
    mistake(
        "softmax-no-max",
        "softmax does not subtract the maximum of the row before exp",
        "exp(1000) overflows to inf, and inf / inf is nan",
        {"shift": same},
    ),
    mistake(
        "softmax-global-max",
        "softmax subtracts the maximum of the whole matrix, not of each row",
        "a row far below it underflows to 0, and 0 / 0 is nan",
        _max(axis=(-1, -2), keepdims=True),
    ),
    kind="fragile",
)

_ALONG_THE_SECOND: Steps = {"normalise": lambda e: e / e.sum(axis=-1)[:, None]}

BATCHES = mended(
    _SOFTMAX,
    mistake(
        "batch-transpose",
        "right for one text (L, d), wrong for a batch (B, L, d): K.T turns all the axes round",
        "it fails, or mixes the texts of the batch with each other where the shapes happen to fit",
        {"score": lambda q, k: q @ k.T},
        remedy=SCALE,
    ),
    mistake(
        "batch-axis",
        "right for one text (L, d), wrong for a batch (B, L, d): softmax names an axis that is the"
        " last one only for one text",
        "the rows of the weights do not sum to 1",
        *_over(1),
        {"shift": lambda s: s - s.max(axis=-1)[:, None], **_ALONG_THE_SECOND},
        _ALONG_THE_SECOND,
    ),
)

HIDING = mended(
    _HIDE,
    mistake(
        "mask-multiplied",
        "the mask is multiplied on the scores: a hidden place only gets the score 0",
        "hidden keys still take weight, since exp(0) is 1",
        {"hide": lambda s, visible: s * visible, "blank": same},
    ),
    mistake(
        "mask-added",
        "the mask is added to the scores as 0 and 1",
        "a hidden place only loses a factor e against a visible one",
        {"hide": lambda s, visible: s + visible, "blank": same},
        remedy="scores = scores + np.where(mask, 0.0, -np.inf)",
    ),
    mistake(
        "mask-after-softmax",
        "the mask is applied after softmax, and the weights that are left no longer sum to 1",
        "the output shrinks towards 0 where much is hidden",
        {"hide": same, "blank": lambda w, visible: w * visible},
        remedy=f"{_HIDE}  # before softmax",
    ),
)

MASK = mended(
    _HIDE,
    mistake(
        "mask-inverted",
        "the mask is read the wrong way round: True means that the query may attend",
        "each query sees what was hidden from it, and nothing else",
        {"mask": np.logical_not},
    ),
    mistake(
        "mask-ignored",
        "the mask makes no difference",
        "hidden keys take their full weight",
        {"mask": np.ones_like},
    ),
    mistake(
        "mask-transposed",
        "the mask is used transposed: its rows are the queries, its columns the keys",
        "it fails where there are more keys than queries and is silently wrong where not",
        {"mask": flip},
    ),
)

EMPTY = mended(
    _SEES,
    mistake(
        "masked-row-nan",
        "a query that may attend to nothing gives nan; its output should be zeros",
        "softmax of a row of -inf alone is 0 / 0",
        {"blank": same},
    ),
    mistake(
        "masked-row-uniform",
        "a query that may attend to nothing still attends; its output should be zeros",
        "a large negative number in place of -inf hides a key only beside one that is visible",
        {"hide": lambda s, visible: np.where(visible, s, -1e9), "blank": same},
        {"hide": lambda s, visible: s + np.where(visible, 0.0, -1e9), "blank": same},
    ),
    kind="fragile",
)

CAUSAL = mended(
    "visible = np.tril(np.ones((L, L), dtype=bool)); scores = np.where(visible, scores, -np.inf)",
    mistake(
        "causal-diagonal",
        "the causal mask is off by one: a token may attend to itself too",
        "the diagonal is hidden, and the first query sees nothing at all",
        {"causal": lambda i, j, offset, ahead: j < i + offset},
    ),
    mistake(
        "causal-ahead",
        "the causal mask is off by one: a token may not attend to the one after it",
        "each query sees one key of the future",
        {"causal": lambda i, j, offset, ahead: j <= i + offset + 1},
    ),
    mistake(
        "causal-upper",
        "the causal mask is the upper triangle: each token sees the future and not the past",
        "the last query sees nothing of what came before it",
        {"causal": lambda i, j, offset, ahead: j >= i + offset},
        {"causal": lambda i, j, offset, ahead: j > i + offset},
    ),
    mistake(
        "causal-ignored",
        "asking for a causal mask makes no difference",
        "each query sees the future too",
        {"causal": lambda i, j, offset, ahead: (i >= 0) & (j >= 0)},
    ),
)

BOTH = mended(
    "visible = mask & np.tril(np.ones((L, L), dtype=bool))",
    mistake(
        "mask-or-causal",
        "of a mask and a causal mask together one is obeyed; a key is visible where both allow",
        "one of the two makes no difference beside the other",
        {"both": lambda given, allowed: given},
        {"both": lambda given, allowed: allowed},
        {"both": np.logical_or},
    ),
)

OFFSET = mended(
    "visible = np.arange(S) <= np.arange(L)[:, None] + q_offset",
    mistake(
        "causal-offset",
        "q_offset is not where query 0 stands among the keys: key j is visible where"
        " j <= i + q_offset",
        "with a cache the new token does not see all the tokens before it, or sees later ones",
        {"causal": lambda i, j, offset, ahead: j <= i},
        {"causal": lambda i, j, offset, ahead: j <= i - offset},
        {"causal": lambda i, j, offset, ahead: j <= i + ahead},
    ),
)

_SPLIT = "q = np.swapaxes(q.reshape(T, num_heads, d), 0, 1)  # (T, H * d) -> (H, T, d)"
_JOINED = "out = np.swapaxes(out, 0, 1).reshape(T, num_heads * d)  # (H, T, d) -> (T, H * d)"


def _reshape(a: Array, heads: int) -> Array:
    """(..., T, H * d) -> (..., H, T, d) without the transpose."""
    return a.reshape(*a.shape[:-2], heads, a.shape[-2], -1)


def _rejoin(a: Array) -> Array:
    """(..., H, T, d) -> (..., T, H * d) without the transpose."""
    return a.reshape(*a.shape[:-3], a.shape[-2], -1)


HEADS = mended(
    _SPLIT,
    mistake(
        "heads-reshape",
        "the heads are split by a reshape without the transpose",
        "numbers of different tokens land in one head's vector",
        {"split": _reshape},
        {"split": _reshape, "join": _rejoin},
        {
            "split": lambda a, heads: a.reshape(*a.shape[:-1], heads, -1),
            "join": lambda a: a.reshape(*a.shape[:-2], -1),
        },
    ),
    mistake(
        "heads-join",
        "the heads are joined by a reshape without the transpose",
        "a row of the output holds numbers of different tokens",
        {"join": _rejoin},
        remedy=_JOINED,
    ),
    mistake(
        "heads-not-joined",
        "the heads are not joined: their outputs stand side by side in one row per token",
        "the output has one dimension too many",
        {"join": same},
        remedy=_JOINED,
    ),
    mistake(
        "heads-ignored",
        "num_heads makes no difference: all the dimensions are one head",
        "each token has one row of weights where every head should have its own",
        {"split": same, "join": same},
    ),
    mistake(
        "heads-scale",
        "the scores of a head are divided by the root of all heads' size, not of its own",
        "the weights are too even, the more so the more heads there are",
        {"scale": lambda s, n: s / np.sqrt(n.all_heads)},
        remedy=f"{_SCORES} / np.sqrt(d)  # d = q.shape[-1] after the split",
    ),
)


# what is found without a formula

WEIGHTS_FIRST = Mistake(
    "tuple-order",
    "the weights come first and the output second",
    "the second of the two arrays returned is the output",
    "return weights @ v, weights",
    kind="convention",
)
PER_KEY = Mistake(
    "mask-per-key",
    "the mask is one for the keys, (S,), where others have one for each query and key, (L, S)",
    "a causal mask cannot be given in it",
    "scores = np.where(mask, scores, -np.inf)  # takes both",
    kind="convention",
)


def core(signature: str) -> tuple[Mistake, ...]:
    """The mistakes that show without masks, heads or odd inputs."""
    of_projections = () if signature == "qkv" else PROJECTIONS
    return (*SOFTMAX, *SCALING, *RESULT, *of_projections, *_mixed(signature))
