"""The tasks of lesson 9: back through the softmax, and through a whole head."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import generator
from qkv.marking.tasks.attention.steps import softmax
from qkv.marking.tasks.exercise import exercise, slip

_BACK = "return weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))"


def softmax_back(weights: Array, d_weights: Array) -> Array:
    """The gradient of the scores, from the weights and their gradient (L, S)."""
    out: Array = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    return out


def _weights() -> list[tuple[Any, ...]]:
    cases: list[tuple[Any, ...]] = []
    for number, shape in enumerate([(1, 2), (2, 3), (4, 4)]):
        rng = generator(number)
        scores, up = rng.integers(-4, 5, shape) / 2, rng.integers(-4, 5, shape) / 2
        cases.append((softmax(scores + np.arange(shape[1]) / 4), up + np.arange(shape[1]) / 2))
    return cases


SOFTMAX_BACK = exercise(
    "softmax-back",
    softmax_back,
    _weights,
    slip(
        "back-without-mean",
        "the mean is not subtracted: no weight rises alone, since the row sums to 1",
        "the gradients of a row do not sum to 0",
        lambda a, g: a * g,
        remedy=_BACK,
        nudge="Add up the gradients of a row of scores: what should they give?",
        where="the bracket: what does a word's number have to beat?",
    ),
    slip(
        "back-plain-mean",
        "the mean is the plain one; it should be taken with the weights",
        "the gradients of a row do not sum to 0",
        lambda a, g: a * (g - g.mean(axis=-1, keepdims=True)),
        lambda a, g: a * (g - (a * g).mean(axis=-1, keepdims=True)),
        remedy=_BACK,
        nudge="In the formula, what stands before g in the sum?",
        where="the mean that is subtracted",
    ),
    slip(
        "back-columns",
        "the mean runs down the columns, not along each row",
        "the gradients of a row do not sum to 0",
        lambda a, g: a * (g - (a * g).sum(axis=0, keepdims=True)),
        remedy=_BACK,
        nudge="Add up the weights of a row, then those of a column: which of them give 1?",
        where="the axis of the sum",
    ),
    slip(
        "back-whole-matrix",
        "the mean is that of the whole matrix, not of each row",
        "it is right for one row",
        lambda a, g: a * (g - (a * g).sum()),
        remedy=_BACK,
        nudge="Print the shape of what is subtracted.",
        where="the axis of the sum",
    ),
    slip(
        "back-keepdims",
        "the mean of row i is subtracted from column i, for want of keepdims=True",
        "it fails, or only a square matrix comes through",
        lambda a, g: a * (g - (a * g).sum(axis=-1)),
        remedy=_BACK,
        nudge="Print the shape of what is subtracted: what does (2, 2) - (2,) do?",
        where="the sum: does it keep its axis?",
    ),
    slip(
        "back-without-weights",
        "the factor in front, the weight itself, is missing",
        "a word of weight 0 gets a gradient",
        lambda a, g: g - (a * g).sum(axis=-1, keepdims=True),
        remedy=_BACK,
        nudge="What should the gradient of a score be whose weight is nearly 0?",
        where="the factor before the bracket",
    ),
    slip(
        "back-sign",
        "the sign is turned",
        "every number is the negative of the right one",
        lambda a, g: -softmax_back(a, g),
        remedy=_BACK,
        nudge="A word gets a higher gradient than the mean: should its score rise?",
        where="the order of the difference",
    ),
    slip(
        "back-squared",
        "only the derivative of each weight by its own score is taken, a (1 - a)",
        "the gradients of a row do not sum to 0",
        lambda a, g: a * (1 - a) * g,
        remedy=_BACK,
        nudge="Does a word's score change the weights of the other words?",
        where="the whole formula: each score changes every weight of its row",
    ),
    signature="softmax_back(weights, d_weights) -> (L, S)",
    asks="the gradient of the scores, given the weights that softmax made of them and the gradient"
    " of these (L, S)",
    what="one row and more",
    returns="return weights * (...)  # (L, S)",
)

_PARTS = ("d_w_q", "d_w_k", "d_w_v")
_HEAD = "d_q, d_k = d_scores @ k, d_scores.T @ q; return x.T @ d_q, x.T @ d_k, x.T @ d_v"


def gradients(x: Array, w_q: Array, w_k: Array, w_v: Array, d_context: Array) -> Any:
    """The gradients of a head's projections, from that of its context (T, d_v)."""
    return _head(x, w_q, w_k, w_v, d_context)


def _head(
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    up: Array,
    *,
    root: float = -0.5,
    back: Any = softmax_back,
    transposed: bool = True,
    values: bool = True,
    changed: bool = False,
) -> tuple[Array, Array, Array]:
    """The same with a part of it done otherwise."""
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    weights = softmax(q @ k.T / np.sqrt(q.shape[-1]))
    d_v = (weights.T if values else weights) @ up
    d_scores = back(weights, up @ v.T) * q.shape[-1] ** root
    d_q, d_k = d_scores @ k, (d_scores.T if transposed else d_scores) @ q
    if changed:
        d_q, d_k = d_k, d_q
    return x.T @ d_q, x.T @ d_k, x.T @ d_v


def _heads() -> list[tuple[Any, ...]]:
    cases: list[tuple[Any, ...]] = []
    for number, (tokens, width, d, d_v) in enumerate([(2, 2, 2, 2), (3, 4, 3, 2), (5, 3, 2, 4)]):
        rng = generator(10 + number)
        shapes = (tokens, width), (width, d), (width, d), (width, d_v), (tokens, d_v)
        cases.append(tuple(rng.integers(-5, 6, shape) / 4 for shape in shapes))
    return cases


GRADIENTS = exercise(
    "gradients",
    gradients,
    _heads,
    slip(
        "gradients-no-root",
        "the scores are divided by the root on the way there, and not on the way back",
        "the gradients of w_q and w_k are sqrt(d) times too large",
        lambda *given: _head(*given, root=0.0),
        remedy="d_scores = softmax_back(weights, d_weights) / np.sqrt(q.shape[-1])",
        nudge="By which factor are yours larger than the right ones?",
        where="the gradient of the scores",
    ),
    slip(
        "gradients-root-twice",
        "on the way back the scores are divided by the root twice, or by d",
        "the gradients of w_q and w_k are sqrt(d) times too small",
        lambda *given: _head(*given, root=-1.0),
        remedy="d_scores = softmax_back(weights, d_weights) / np.sqrt(q.shape[-1])",
        nudge="By which factor are yours smaller than the right ones?",
        where="the gradient of the scores",
    ),
    slip(
        "gradients-times-root",
        "on the way back the scores are multiplied by the root, and should be divided by it",
        "the gradients of w_q and w_k are d times too large",
        lambda *given: _head(*given, root=0.5),
        remedy="d_scores = softmax_back(weights, d_weights) / np.sqrt(q.shape[-1])",
        nudge="By which factor are yours larger than the right ones?",
        where="the gradient of the scores",
    ),
    slip(
        "gradients-keys-not-transposed",
        "the gradient of the keys takes d_scores as it is; a key's is collected from a column",
        "the gradient of w_k is wrong, the other two are right",
        lambda *given: _head(*given, transposed=False),
        remedy=_HEAD,
        nudge="scores = q @ k.T: by the rule of the product, what is the gradient of k?",
        where="the product that makes d_k",
    ),
    slip(
        "gradients-values-not-transposed",
        "the gradient of the values takes the weights as they are, and should take weights.T",
        "the gradient of w_v is wrong, the other two are right",
        lambda *given: _head(*given, values=False),
        remedy="d_v = weights.T @ d_context",
        nudge="context = weights @ v: by the rule of the product, what is the gradient of v?",
        where="the product that makes d_v",
    ),
    slip(
        "gradients-softmax-left-out",
        "the softmax is left out on the way back: the gradient of the weights is used as that of"
        " the scores",
        "the gradient of w_v is right, those of w_q and w_k are not",
        lambda *given: _head(*given, back=lambda a, g: g),
        remedy="d_scores = softmax_back(weights, d_weights) / np.sqrt(q.shape[-1])",
        nudge="Which step of the way there lies between the scores and the weights?",
        where="between d_weights and d_scores",
    ),
    slip(
        "gradients-softmax-without-mean",
        "on the way back through the softmax the mean is not subtracted",
        "the gradient of w_v is right, those of w_q and w_k are not",
        lambda *given: _head(*given, back=lambda a, g: a * g),
        remedy=_BACK,
        nudge="Does qkv.check(softmax_back, task='softmax-back') pass?",
        where="softmax_back",
    ),
    slip(
        "gradients-changed-places",
        "the gradients of w_q and w_k have changed places",
        "each is what the other should be",
        lambda *given: _head(*given, changed=True),
        remedy=_HEAD,
        nudge="scores = q @ k.T: does the gradient of q hold k, or q?",
        where="the products that make d_q and d_k, and the order of what is returned",
    ),
    signature="gradients(x, w_q, w_k, w_v, d_context) -> (d_w_q, d_w_k, d_w_v)",
    asks="the gradients of w_q, w_k (D, d) and w_v (D, d_v) of one head without a mask, given that"
    " of its context (T, d_v)",
    what="square projections and others",
    returns=_HEAD,
    parts=_PARTS,
)
