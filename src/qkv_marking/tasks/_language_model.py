"""The tasks of lesson 13: the loss of a language model, its learning rate, top-k and top-p.

Sources: Vaswani et al. 2017, section 5.3 (warm-up), Fan et al. 2018, section 5.4 (top-k), Holtzman
et al. 2020, section 3.1 (top-p).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import generator
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Exercise
from qkv_marking.tasks.attention.mistakes import softmax

_Cases = Sequence[tuple[Any, ...]]


def _log_softmax(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """Compute the logarithm of softmax, also where the probability is too small for a float."""
    apart: Array = x - x.max(axis=axis, keepdims=True)
    out: Array = apart - np.log(np.exp(apart).sum(axis=axis, keepdims=True))
    return out


def _in_groups(arguments: Sequence[Any], out: Array) -> Array:
    """Sort the results of tokens with equal logits: a function may keep any of them."""
    first = np.asarray(arguments[0])
    if out.shape != first.shape:
        return out
    out = out.copy()
    for value in np.unique(first):
        out[first == value] = np.sort(out[first == value])[::-1]
    return out


# the loss: texts of different lengths, and logits so large that a probability underflows to 0


def _texts() -> _Cases:
    cases: list[tuple[Any, ...]] = []
    for number, lengths in enumerate([(2,), (4,), (3, 5), (6, 2, 4)]):
        rng = generator(number)
        most, words = max(lengths), 5 + number
        padding = int(rng.integers(words))
        ids = (padding + 1 + rng.integers(words - 1, size=(len(lengths), most))) % words
        ids[np.arange(most) >= np.array(lengths)[:, None]] = padding
        logits = rng.integers(-4, 5, (*ids.shape, words)) / 2 + np.arange(words) / 4
        cases.append((logits, ids, padding))
    return cases


def _rare_targets() -> _Cases:
    low, high = np.zeros((2, 1, 2, 3))
    low[0, 0, 2], high[0, 0, 2] = -1000, 1000
    return [(logits, np.array([[0, 2]]), 1) for logits in (low, high)]


LOSS = Exercise(
    "next-token-loss",
    Table(
        __package__,
        "language_model",
        {"log_softmax": _log_softmax, "softmax": softmax},
        section="next-token-loss",
    ),
    _texts,
    later=[("logits of 1000", "loss-large", _rare_targets)],
)


# the learning rate: the first, the last and other steps


def _steps() -> _Cases:
    warmup, highest = int(generator(0).integers(5, 9)), int(generator(1).integers(2, 9)) / 1000
    some = [(0, 10, 4, 1.0), (3, 10, 4, 1.0), (4, 10, 4, 1.0), (9, 10, 4, 1.0)]
    return some + [(step, 40, warmup, highest) for step in (0, 1, warmup - 1, warmup, 20, 39)]


LEARNING_RATE = Exercise(
    "learning-rate", Table(__package__, "language_model", section="learning-rate"), _steps
)


# sampling: logits with and without equal numbers, and probabilities whose sums are exact


def _logits() -> _Cases:
    cases: list[tuple[Any, ...]] = []
    for number, (words, k, temperature) in enumerate([(3, 2, 0.5), (5, 3, 2.0), (7, 4, 0.5)]):
        logits = generator(number).permutation(np.arange(words) - words // 2) * 0.75
        cases.append((logits, k, temperature))
    tied = generator(9).permutation([2.0, 1.0, 1.0, 1.0, -1.0, -2.0])
    return [*cases, (tied, 3, 2.0), (cases[1][0], 5, 0.5)]


def _sharp() -> _Cases:
    return [(np.array([20.0, 10.0, 19.0]), 2, 0.01)]


TOP_K = Exercise(
    "top-k",
    Table(__package__, "language_model", {"softmax": softmax}, section="top-k"),
    _logits,
    later=[("a temperature near 0", "top-k-large", _sharp)],
    ordered=_in_groups,
)


def _probabilities() -> _Cases:
    """Draw probabilities in sixty-fourths, and values of p between two possible sums."""
    sizes = [(32, 20, 12), (28, 17, 12, 7), (26, 16, 11, 8, 3), (40, 10, 6, 5, 3), (20, 20, 14, 10)]
    ends = (41, 35, 47, 33, 31)
    return [
        (generator(number).permutation(np.array(size)) / 64, end / 64 - 1 / 128)
        for number, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]


TOP_P = Exercise(
    "top-p",
    Table(__package__, "language_model", {"softmax": softmax}, section="top-p"),
    _probabilities,
    ordered=_in_groups,
)
