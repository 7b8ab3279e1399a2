"""The ways to get a decoder's heads wrong: how many there are, which they share, what they see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.tasks.attention.steps import flip
from qkv.marking.tasks.mistakes.heads import HEADS as SPLITTING

_REPEAT = "k, v = (np.repeat(a, heads // groups, axis=0) for a in (k, v))"
_MASK = "scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)"
_COUNTS = 'heads, groups = config["num_attention_heads"], config["num_key_value_heads"]'


def _counts(heads: int, groups: int) -> Steps:
    """Numbers of heads that are written down."""
    return {"counts": lambda *given: (heads, groups)}


HEADS = (
    mistake(
        "groups-missing",
        "the key and value heads are not repeated: there are fewer of them than query heads",
        "the product of queries and keys fails",
        {"repeat": lambda a, times: a},
        remedy=_REPEAT,
        nudge="Print the shapes of q and k before their product: how many heads has each?",
        where="between the split into heads and the product of queries and keys",
    ),
    mistake(
        "groups-axis",
        "the keys and values are repeated along another axis than that of the heads",
        "words, or numbers of a head, are repeated where heads should be",
        {"repeat": lambda a, times: np.repeat(a, times, axis=1)},
        {"repeat": lambda a, times: np.repeat(a, times, axis=2)},
        remedy=_REPEAT,
        nudge="Print the shape of k before and after it is repeated.",
        where="the line that repeats keys and values: its axis",
    ),
    mistake(
        "groups-split",
        "keys and values are split into as many heads as there are query heads; theirs are fewer",
        "a head of keys is smaller than one of queries, and their product fails",
        {"counts": lambda heads, groups: (heads, heads)},
        remedy=f"{_COUNTS}  # k and v have groups of them",
        nudge="Print the shapes of q and k before their product: is the last size the same?",
        where="the lines that split k and v into heads",
    ),
    mistake(
        "heads-written-down",
        "a number of heads is written down, where config says it",
        "right for the model that it was written for; this one has other numbers of heads",
        *(_counts(6, 2), _counts(6, 6), _counts(8, 2), _counts(2, 2), _counts(3, 1)),
        *({"repeat": lambda a, times, n=n: np.repeat(a, n, axis=0)} for n in (3, 4, 6, 8)),
        remedy=_COUNTS,
        nudge='Print config["num_attention_heads"] and config["num_key_value_heads"].',
        where="the numbers in the split into heads, and in what repeats keys and values",
    ),
    mistake(
        "groups-tiled",
        "the key and value heads are repeated as 0 1 0 1; query heads 0 and 1 share key head 0, so"
        " it is 0 0 1 1",
        "query heads read keys that were made for others",
        {"repeat": lambda a, times: np.concatenate([a] * times)},
        remedy=_REPEAT,
        nudge="Which key head does query head 1 read, of 4 query heads and 2 key heads?",
        where="the line that repeats keys and values: np.tile is not np.repeat",
    ),
    *mended(
        _MASK,
        mistake(
            "decoder-no-mask",
            "words see what comes after them: the causal mask is missing",
            "right for one word; the logits of a place change when a word is added behind it",
            {"sees": lambda i, j, first: (i >= 0) & (j >= 0)},
        ),
        mistake(
            "decoder-mask-ahead",
            "the causal mask is off by one: a word may not see the one after it",
            "the model sees the word that it is to guess",
            {"sees": lambda i, j, first: j <= i + 1},
        ),
        mistake(
            "decoder-mask-diagonal",
            "the causal mask is off by one: a word may see itself too",
            "the first word sees nothing at all",
            {"sees": lambda i, j, first: j < i},
        ),
        nudge="Add a word at the end: which rows of the logits may change?",
        where="the mask",
    ),
)


def _in_one_row(a: Array) -> Array:
    """The heads' numbers as one word's, by a transpose and a reshape to (T, -1), T = 1."""
    return np.swapaxes(a, -3, -2).reshape(1, -1)


def _with_one_row(one: Mistake) -> Mistake:
    """The same with another join, which differs for one word alone: others fail before."""
    return replace(one, variants=tuple({**v, "join": _in_one_row} for v in one.variants))


IN_ONE_ROW = tuple(
    _with_one_row(one) for one in SPLITTING if one.key in ("heads-reshape", "heads-swap-forgotten")
)

SLIPS = mended(
    "q, k, v = (x @ weights[...].T for ...)  # q_proj, k_proj and v_proj, in this order",
    mistake(
        "query-key-swapped",
        "query and key are swapped, so that the scores are transposed",
        "a query's weights belong to the key of the same place",
        {"score": lambda q, k: k @ flip(q)},
        where="the names in the product of the scores",
    ),
    *(
        mistake(
            "projections-swapped",
            f"the projections have changed places: q comes from {names[0]}_proj, k from"
            f" {names[1]}_proj and v from {names[2]}_proj",
            "it fails where the sizes differ, and is silently wrong where they do not",
            {"choose": lambda *qkv, names=names: [qkv["qkv".index(n)] for n in names]},
            where="the lines that make q, k and v: which weight does each of them read?",
        )
        for names in ("qvk", "kqv", "vqk")
    ),
    nudge="Change one weight at a time: which of q, k and v does each of them change?",
    alone=True,
)
