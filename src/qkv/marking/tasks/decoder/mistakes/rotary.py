"""The ways to get rotary positions wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import mended, mistake
from qkv.marking.tasks.decoder.steps import joined_neighbours, neighbours

_ROTATE = (
    "a, b = x[..., : d // 2], x[..., d // 2 :];"
    " x = np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)"
)
_ANGLE = "angle = np.arange(T)[:, None] * theta ** (-np.arange(0, d, 2) / d)"
_ORDER = "Change the order of the first words: does the last row of logits change, as it should?"


def _one_ahead(a: Array, turn: Callable[[Array], Array]) -> Array:
    """(..., T, d) turned as if its first row stood at place 1."""
    return turn(np.concatenate([np.zeros_like(a[..., :1, :]), a], axis=-2))[..., 1:, :]


ROTARY = (
    *mended(
        _ROTATE,
        mistake(
            "rotary-neighbours",
            "rotary positions turn number 2i with 2i + 1, as in the paper; the weights of these"
            " files want halves: number i with i + d / 2",
            "each pair is a true rotation, of numbers that do not belong together",
            {"pairs": neighbours, "unpair": joined_neighbours},
            {"pairs": neighbours},
        ),
        mistake(
            "rotary-sign",
            "a sign of the rotation is wrong: (a, b) becomes (a cos - b sin, a sin + b cos)",
            "it turns backwards, or is no rotation and changes the length of a vector",
            {"turn": lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos)},
            {"turn": lambda a, b, cos, sin: (a * cos - b * sin, b * cos - a * sin)},
            {"turn": lambda a, b, cos, sin: (a * cos + b * sin, b * cos - a * sin)},
        ),
        nudge="Rotate [1, 0, 0, 0] at place 1: which two numbers should not be 0?",
        where="the function that rotates",
    ),
    *mended(
        "q, k = rotate(q), rotate(k)  # v stays as it is",
        mistake(
            "rotary-missing",
            "queries and keys are not rotated: rotary positions are missing",
            "attention knows no distances between words",
            {"rotates": lambda q, k, v, turn: (q, k, v)},
            nudge=_ORDER,
        ),
        mistake(
            "rotary-one",
            "of queries and keys one is rotated and the other is not",
            "scores depend on a word's place, not on the distance between two",
            {"rotates": lambda q, k, v, turn: (turn(q), k, v)},
            {"rotates": lambda q, k, v, turn: (q, turn(k), v)},
            nudge="Put two words two places further on: do their scores stay as they were?",
        ),
        mistake(
            "rotary-apart",
            "the places of queries and those of keys are counted from different numbers",
            "a word is one place away from itself",
            {"rotates": lambda q, k, v, turn: (_one_ahead(q, turn), turn(k), v)},
            {"rotates": lambda q, k, v, turn: (turn(q), _one_ahead(k, turn), v)},
            nudge="Print the angles of the first query and of the first key.",
        ),
        mistake(
            "rotary-values",
            "the values are rotated too",
            "what a word gives depends on its place",
            {"rotates": lambda q, k, v, turn: (turn(q), turn(k), turn(v))},
            nudge="Which of queries, keys and values meet in the scores?",
        ),
        mistake(
            "rotary-before-split",
            "queries and keys are rotated before they are split into heads: pairs and speeds are"
            " those of one head alone",
            "right for one word; a number turns with one of another head",
            {"in_order": lambda split, rotate, *qkv: split(*rotate(*qkv))},
            nudge="What size has the last axis where you rotate? It should be that of one head.",
        ),
        where="the line that rotates queries and keys",
    ),
    mistake(
        "rotary-speed",
        "the pairs turn at other speeds: from place to place pair i turns by theta ** (-2i / d)",
        "the exponent is off: its 2, its sign, or d, which is the size of one head",
        {"speeds": lambda base, d, width: base ** (-np.arange(d // 2) / d)},
        {"speeds": lambda base, d, width: base ** (-2 * np.arange(0, d, 2) / d)},
        {"speeds": lambda base, d, width: base ** (-np.arange(0, d, 2) / width)},
        {"speeds": lambda base, d, width: base ** (np.arange(0, d, 2) / d)},
        {"speeds": lambda base, d, width: np.ones(d // 2)},
        remedy=_ANGLE,
        nudge="Print the angles of place 1: the first is 1, and the others are ever smaller.",
        where="the line that makes the angles",
    ),
    *mended(
        f'theta = config["rope_theta"]; {_ANGLE}',
        mistake(
            "rotary-base",
            "the pairs turn by powers of 10000, whatever config says: this model's base is 500",
            "right for models that were trained with 10000",
            {"speeds": lambda base, d, width: 10000.0 ** (-np.arange(0, d, 2) / d)},
            nudge="Which numbers of config does your function read, and which does it leave out?",
        ),
        where="the line that makes the angles",
        kind="fragile",
    ),
)
