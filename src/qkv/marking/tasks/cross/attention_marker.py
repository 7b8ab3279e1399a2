"""Mark cross-attention: a function of two texts, of projections, and of a mask of the second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import generator, per_seed
from qkv.marking.engine import Group, mark_in_steps
from qkv.marking.findings import Finding, of_mistake
from qkv.marking.functions import options_of
from qkv.marking.outcome import Outcome, name_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.cross.mistakes import BATCHES, KNOWN
from qkv.marking.tasks.cross.steps import RIGHT, Call, compute
from qkv.marking.tasks.mistakes.formula import LARGE, ONE_TEXT
from qkv.marking.tasks.task import Task

_NAMES = ("x", "context", "w_q", "w_k", "w_v", "mask")


def _drawn(seed: int, sizes: tuple[int, ...], *masks: str) -> Call:
    """Multiples of 1/2 between -2 and 2, of sizes L, D, d, dv; a batch where there are two masks.

    Args:
        seed: of the numbers.
        sizes: these four.
        masks: of each text one, a digit for each word of its context: 1 where there is a word.
    """
    rng = generator(seed)
    words, width, d, dv = sizes
    mask = np.array([[digit == "1" for digit in one] for one in masks])
    mask = mask if len(masks) > 1 else mask[0]

    def draw(*shape: int) -> Array:
        return rng.integers(-4, 5, shape) / 2

    x, context = draw(*mask.shape[:-1], words, width), draw(*mask.shape, width)
    weights = {"w_q": draw(width, d), "w_k": draw(width, d), "w_v": draw(width, dv)}
    return Call(x, context, weights, mask)


@per_seed
def one_text() -> list[Call]:
    """Single texts, smallest first; a mask never hides the first word."""
    return [
        _drawn(600, (2, 2, 2, 2), "11"),
        _drawn(601, (3, 3, 4, 4), "111"),
        _drawn(602, (2, 2, 2, 2), "10"),
        _drawn(603, (3, 3, 2, 2), "101"),
        _drawn(604, (2, 4, 3, 3), "1101"),
        _drawn(605, (4, 4, 5, 2), "110"),
        _drawn(606, (3, 5, 4, 5), "10110"),
    ]


@per_seed
def _others() -> tuple[Group, ...]:
    two = _drawn(610, (2, 4, 3, 3), "110", "101")
    three = _drawn(611, (3, 4, 4, 2), "1100", "1111", "1010")
    four = _drawn(612, (3, 3, 2, 4), "11000", "10011", "11110", "10101")
    large = Call(
        np.array([[1.0], [-1]]),
        np.array([[1.0], [0]]),
        {"w_q": np.array([[1000.0]]), "w_k": np.array([[1.0]]), "w_v": np.array([[1.0]])},
        np.array([True, True]),
    )
    return (
        Group("batches", [two, three, four], BATCHES, _one_text_only),
        Group("scores of 1000", [large], LARGE),
    )


def _one_text_only(wrong: Outcome) -> Finding | None:
    """A function that fails for a batch, or gives another shape, in a way that is not known."""
    misshapen = wrong.out is None or wrong.out.shape != wrong.right.shape
    return of_mistake(ONE_TEXT, wrong) if misshapen and wrong.error is not None else None


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark cross-attention."""
    options_of(function, _NAMES, {})
    return mark_in_steps(
        "cross-attention",
        name_of(function),
        lambda case: function(case.x, case.context, *case.weights.values(), case.mask),
        compute,
        RIGHT,
        [Group("two texts, padding of the context", one_text(), KNOWN), *_others()],
        returns="return weights @ v  # (..., L, dv)",
    )


CROSS_ATTENTION = Task(
    name="cross-attention",
    looks_for=("cross_attention",),
    signature="cross_attention(x, context, w_q, w_k, w_v, mask) -> (L, dv), also of batches",
    asks="what the words x (L, D) take from the words context (S, D): queries of x, keys and values"
    " of context, where mask (S,) is True; also of batches (B, L, D), (B, S, D), (B, S)",
    mark=_mark,
)
