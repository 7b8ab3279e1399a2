"""The ways to get rotary positions wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import mended, mistake
from qkv.marking.tasks.decoder.steps import joined_halves, joined_neighbours, neighbours
from qkv.marking.tasks.mistakes.build import without

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
            "queries and keys are not rotated, or all by one angle: rotary positions are missing",
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


def _but_one(at: int, *kept: Array) -> tuple[Array, ...]:
    """What a turn gives, but 0 in one pair."""
    return tuple(without(a, at, -1) for a in kept)


def _turned(a: Array, b: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    return a * cos - b * sin, a * sin + b * cos


def _pairs(d: int) -> Array:
    return np.arange(d // 2)


SLIPS = mended(
    _ANGLE,
    mistake(
        "floor-division",
        "the angles are divided with //, which rounds down to whole numbers",
        "the angles of all pairs but the first are 0",
        {"angle": lambda place, speeds: np.floor(place * speeds)},
    ),
    mistake(
        "floor-division",
        "the exponent is divided with //, which rounds down to a whole number",
        "all pairs but the first turn by the same angle",
        {"speeds": lambda base, d, width: base ** (-np.arange(0, d, 2) // d)},
    ),
    mistake(
        "rotary-degrees",
        "the angles are taken for degrees, or turned into degrees; sin and cos take radians",
        "the pairs turn 57.3 times too slowly, or too fast",
        {"angle": lambda place, speeds: np.deg2rad(place * speeds)},
        {"angle": lambda place, speeds: np.rad2deg(place * speeds)},
        nudge="Rotate [1, 0] at place 1: which angle should it have turned by?",
        where="what is done to the angle before sin and cos",
    ),
    mistake(
        "rotary-power",
        "the exponent lacks its brackets: ** comes before * and /, so that theta ** -2 * i / d is"
        " (theta ** -2) * i / d",
        "the pairs turn at speeds that are no powers of theta",
        {"speeds": lambda base, d, width: base ** -(2.0 * _pairs(d)) * d},
        {"speeds": lambda base, d, width: base ** -(2.0 * _pairs(d)) / d},
        {"speeds": lambda base, d, width: base ** -(1.0 * _pairs(d)) * d},
        {"speeds": lambda base, d, width: base ** -(1.0 * _pairs(d)) / d},
        {"speeds": lambda base, d, width: base**-2 * _pairs(d) / d},
        {"speeds": lambda base, d, width: base**-2 * 2 * _pairs(d) / d},
        nudge="What is 2 ** 3 * 2 in Python: 16 or 64?",
    ),
    *mended(
        _ROTATE,
        mistake(
            "integer-table",
            "the rotation is stored in an array of integers, which cuts off its fractions",
            "queries and keys are whole numbers after the rotation",
            {"unpair": lambda a, b: np.trunc(joined_halves(a, b))},
            remedy="new = np.zeros(x.shape)  # of floats: no dtype=int, no np.full(..., 0)",
            nudge="Print the dtype of what the rotation gives.",
            where="the array that the rotated numbers are written to",
        ),
        *(
            mistake(
                "pair-forgotten",
                f"the {one} pair of numbers is forgotten: it stays 0, or is not turned",
                "the scores lack what the pair has to say of a distance",
                {"turn": lambda *given, at=at: _but_one(at, *_turned(*given))},
                {
                    "turn": lambda a, b, cos, sin, at=at: _turned(
                        a, b, without(cos, at, -1, 1), without(sin, at, -1)
                    )
                },
                nudge="Rotate [1, 1, 1, 1] at place 1: which numbers are as they were, or 0?",
                where="the loop over the pairs: where does it begin and end?",
            )
            for at, one in ((-1, "last"), (0, "first"))
        ),
    ),
    nudge="Print the angles of place 1: the first is 1, and the others are ever smaller.",
    where="the line that makes the angles",
    alone=True,
)
