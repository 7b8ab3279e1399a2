"""A task of lesson 4: the matrix that moves sinusoidal positions on.

Source: Vaswani et al. 2017, section 3.5.
"""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import generator
from qkv.marking.tasks.exercise import exercise, slip

BASE = 10000.0
_BLOCK = (
    "matrix[i : i + 2, i : i + 2] = [[cos, -sin], [sin, cos]]  # of steps * 10000 ** (-i / dim)"
)


def _turned(dim: int, angles: Array, pairs: Array | None = None, sign: float = 1.0) -> Array:
    """A matrix that turns each pair of columns by its angle."""
    matrix = np.zeros((dim, dim))
    for n, angle in enumerate(angles):
        a, b = (2 * n, 2 * n + 1) if pairs is None else pairs[n]
        cos, sin = np.cos(angle), sign * np.sin(angle)
        matrix[a, a], matrix[a, b], matrix[b, a], matrix[b, b] = cos, -sin, sin, cos
    return matrix


def _angles(dim: int, steps: float, of: float = -1.0) -> Array:
    return np.asarray(steps * BASE ** (of * np.arange(0, dim, 2) / dim))


def rotation(dim: int, steps: int) -> Array:
    """The matrix (dim, dim) by which a row of positions moves on by some places."""
    return _turned(dim, _angles(dim, steps))


def _halves(dim: int, steps: int) -> Array:
    half = dim // 2
    pairs = np.stack([np.arange(half), np.arange(half) + half], axis=1)
    return _turned(dim, _angles(dim, steps), pairs)


_SIGNS = ([[1, -1], [1, 1]], [[1, 1], [-1, 1]], [[1, 1], [1, -1]], [[-1, 1], [1, 1]])

ROTATION = exercise(
    "rotation",
    rotation,
    lambda: [(2, 1), (4, 1), (6, int(generator(0).integers(2, 6))), (8, -2)],
    slip(
        "rotation-other-way",
        "it turns the other way: table[p] @ matrix gives table[p - steps]",
        "the matrix is the transpose of the right one",
        lambda dim, steps: rotation(dim, -steps),
        remedy=_BLOCK,
        nudge="Multiply table[3] by it: is that table[4] or table[2]?",
        where="the signs of the two sines",
    ),
    slip(
        "rotation-one-step",
        "it always moves on by one place, whatever steps is",
        "it is right for steps = 1",
        lambda dim, steps: rotation(dim, 1),
        remedy=_BLOCK,
        nudge="Try steps = 0: which matrix moves nothing?",
        where="the angle: does it depend on steps?",
    ),
    slip(
        "rotation-one-speed",
        "all pairs turn by the same angle; each has a speed of its own",
        "it is right for the first pair",
        lambda dim, steps: _turned(dim, np.full(dim // 2, float(steps))),
        remedy=_BLOCK,
        nudge="By which angle does each pair of columns turn from one place to the next?",
        where="the angle: does it depend on the column?",
    ),
    slip(
        "rotation-exponent",
        "the exponent is another one than that of the table: pair i turns by 10000 ** (-2i / dim)",
        "only the first pair is right",
        lambda dim, steps: _turned(dim, _angles(dim, steps, -2.0)),
        lambda dim, steps: _turned(dim, _angles(dim, steps, -0.5)),
        lambda dim, steps: _turned(dim, _angles(dim, steps, 1.0)),
        remedy=_BLOCK,
        nudge="Which angle has positions(2, dim) in row 1, for each pair of columns?",
        where="the exponent of 10000",
    ),
    slip(
        "rotation-halves",
        "the pairs are i and i + dim / 2; in this table a sine and its cosine stand side by side",
        "for more than two columns the wrong numbers are mixed",
        _halves,
        remedy=_BLOCK,
        nudge="In which columns of the table are the sine and the cosine of one angle?",
        where="the columns that are turned together",
    ),
    slip(
        "rotation-reflection",
        "one sign is wrong: this mirrors each pair and does not turn it",
        "the determinant of each block of two is -1, or is not 1",
        *(
            lambda dim, steps, signs=signs: rotation(dim, steps) * np.tile(signs, (dim // 2,) * 2)
            for signs in _SIGNS
        ),
        remedy=_BLOCK,
        nudge="cos(a + b) = cos a cos b - sin a sin b: which sign belongs to which sine?",
        where="the four numbers of a block of two",
    ),
    signature="rotation(dim, steps) -> (dim, dim)",
    asks="the matrix with which table[p] @ rotation(dim, steps) is table[p + steps], of sinusoidal"
    " positions with a sine and its cosine side by side, dim even",
    what="one pair and more, one step and more, forwards and back",
    returns="return matrix  # (dim, dim)",
)
