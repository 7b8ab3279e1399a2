"""Mistakes in several heads: how they are split, arranged, scaled, joined and projected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps, mended, mistake
from qkv.marking.tasks.attention.steps import SCORES, flip, join, same
from qkv.marking.tasks.mistakes.build import cut, forgotten, without

SPLIT = "q = np.swapaxes(q.reshape(T, num_heads, d), 0, 1)  # (T, H * d) -> (H, T, d)"
JOIN = "out = np.swapaxes(out, 0, 1).reshape(T, num_heads * d)  # (H, T, d) -> (T, H * d)"


def _reshape(a: Array, heads: int) -> Array:
    """(..., T, H * d) -> (..., H, T, d) without the transpose."""
    return a.reshape(*a.shape[:-2], heads, a.shape[-2], -1)


def _rejoin(a: Array) -> Array:
    """(..., H, T, d) -> (..., T, H * d) without the transpose."""
    return a.reshape(*a.shape[:-3], a.shape[-2], -1)


def _flat(a: Array) -> Array:
    """(..., T, H, d) -> (..., T, H * d), which needs no transpose."""
    return a.reshape(*a.shape[:-2], -1)


def _unswapped(a: Array, heads: int) -> Array:
    """(..., T, H * d) -> (..., T, H, d), with no transpose after it."""
    return a.reshape(*a.shape[:-1], heads, -1)


def _rejoin_by_row(a: Array) -> Array:
    """(..., T, H, d) -> (..., T, H * d) by a transpose that was not needed."""
    return np.swapaxes(a, -3, -2).reshape(*a.shape[:-2], -1)


def _swapped_back(*roles: int) -> Steps:
    """Split some of queries, keys and values without the transpose."""
    return {
        "arranged": lambda *qkv: [
            np.swapaxes(a, -3, -2) if n in roles else a for n, a in enumerate(qkv)
        ]
    }


def _in_turn(a: Array, heads: int) -> Array:
    """(..., T, d * H) -> (..., H, T, d), every H-th column to one head."""
    return np.moveaxis(a.reshape(*a.shape[:-1], -1, heads), -1, -3)


def _rejoin_in_turn(a: Array) -> Array:
    """(..., H, T, d) -> (..., T, d * H), the heads' columns in turn."""
    return _flat(np.moveaxis(a, -3, -1))


def _sized(size: Callable[[int, int, int], int]) -> Steps:
    """Split into heads of another size: a ValueError where it does not fit."""

    def sized(a: Array, heads: int, width: int) -> Array:
        return a.reshape(*a.shape[:-1], heads, size(a.shape[-1], heads, width)).reshape(a.shape)

    return {"sized": sized}


HEADS = mended(
    SPLIT,
    mistake(
        "heads-size",
        "the size of a head is another than that of the projections: d = w_q.shape[-1] //"
        " num_heads",
        "it fails where x is not as wide as the queries, or as soon as there are two heads",
        _sized(lambda columns, heads, width: columns),
        _sized(lambda columns, heads, width: width // heads),
        _sized(lambda columns, heads, width: width),
        nudge="Which numbers does the reshape get, and what is their product?",
        where="the reshape that splits the heads: what is d?",
    ),
    # before the next, which may join so too
    mistake(
        "heads-join",
        "the heads are joined by a reshape without the transpose",
        "a row of the output holds numbers of different tokens",
        {"join": _rejoin},
        {"join": _flat},
        remedy=JOIN,
        nudge="Fill each row with its number, split and join: is it as before?",
    ),
    mistake(
        "heads-reshape",
        "the heads are split by a reshape without the transpose",
        "numbers of different tokens land in one head's vector",
        {"split": _reshape},
        {"split": _reshape, "join": _rejoin},
        {"split": _unswapped, "join": _flat},
        {"split": _unswapped},
        {"split": _unswapped, "join": _rejoin_by_row},
        nudge="Fill each row with its number and split: does a row of a head hold one number?",
    ),
    mistake(
        "heads-not-joined",
        "the heads are not joined: their outputs stand side by side in one row per token",
        "the output has one dimension too many",
        {"join": same},
        remedy=JOIN,
        nudge="Print the shape of the output: how many axes should it have?",
    ),
    mistake(
        "heads-ignored",
        "num_heads makes no difference: all the dimensions are one head",
        "each token has one row of weights where every head should have its own",
        {"split": same, "join": same},
        nudge="Print the shape of the weights: where are the heads?",
    ),
    mistake(
        "heads-scale",
        "the scores of a head are divided by the root of all heads' size, not of its own",
        "the weights are too even, the more so the more heads there are",
        {"scale": lambda s, n: s / np.sqrt(n.all_heads)},
        remedy=f"{SCORES} / np.sqrt(d)  # d = q.shape[-1] after the split",
        nudge="Let there be 4 heads of size 1: by which number should the scores be divided?",
        where="the line of the scores: which size stands under the root?",
    ),
    mistake(
        "heads-swap-forgotten",
        "the transpose after the split is made for some of queries, keys and values only",
        "it fails, or mixes words and heads where there are as many words as heads",
        *(_swapped_back(*n) for n in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))),
        nudge="Print the shapes of q, k and v after the split: where are their heads?",
        alone=True,
    ),
    *mended(
        "",
        *forgotten(
            "head-forgotten",
            "the {} head is forgotten: its columns stay 0, or are missing",
            "there should be columns of every head",
            lambda at: {"join": lambda a: join(without(a, at, -3))},
            lambda at: {"join": lambda a: join(cut(a, at, -3))},
            loop="h in range(num_heads)",
            nudge="Print the joined heads: which columns are it that differ?",
            where="the loop over the heads",
        ),
        alone=True,
    ),
    where="the reshape and the transpose, before and after the heads",
)

IN_TURN = mistake(
    "heads-interleaved",
    "the heads take columns in turn, not blocks of columns that stand together",
    "head 0 gets columns 0, H, 2 H ..., and so the weights of another head",
    {"split": _in_turn, "join": _rejoin_in_turn},
    {"split": _in_turn},
    remedy=SPLIT,
    nudge="Put the number of its column into every cell: which columns does head 0 get?",
    where="the reshape that splits: (T, H, d), not (T, d, H)",
)

# in a function that takes a number of heads: one head shows these already
ONE_HEAD = mended(
    SPLIT,
    mistake(
        "heads-beside-words",
        "the heads stand where the words should: the split leaves out the transpose, so that the"
        " heads of a word attend to each other",
        "with one head every word sees itself alone, and the output is its value",
        {"weigh": lambda w, v, n: v},
        {
            "split": _unswapped,
            "weigh": lambda w, v, n: w @ v if w.ndim > 2 else v,
            "join": _rejoin_by_row,
        },
        nudge="With one head, print the shape of the scores: is there one for each pair of words?",
    ),
    mistake(
        "heads-transposed-first",
        "the heads are split by a transpose and then a reshape, which cuts the columns into rows",
        "with one head already, a row of queries has numbers of several words",
        {
            "choose": lambda q, k, v: [flip(a).reshape(a.shape) for a in (q, k, v)],
            "split": _reshape,
        },
        nudge="With one head, print the queries before the split and after it: are they the same?",
    ),
    where="the reshape and the transpose, before the product of queries and keys",
)

_ORDER = "Put the number of its head into every cell: in which order does a row hold them?"
JOINED = (
    mistake(
        "heads-join-interleaved",
        "the heads are joined column by column in turn, not one head's columns after another's",
        "the numbers are right and stand in other columns, where w_o does not look for them",
        {"join": _rejoin_in_turn},
        nudge=_ORDER,
        where="the transpose before the last reshape",
    ),
    mistake(
        "heads-reversed",
        "the heads are joined in the reverse order",
        "the numbers are right and stand in other columns",
        {"join": lambda a: join(a[..., ::-1, :, :])},
        nudge=_ORDER,
        where="the loop over heads, or the order in np.concatenate",
    ),
)
OUTPUT_MISSING = mistake(
    "output-missing",
    "the output projection w_o is not used",
    "the heads stand side by side, and never meet: w_o makes no difference",
    {"output": lambda out, w_o: out},
    nudge="Change a number of w_o: does the output change?",
    where="the end, after the heads are joined",
)
