"""The task `positions`: a vector of sines and cosines for each position.

Source: Vaswani et al. 2017, Attention Is All You Need, section 3.5.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import Group, Marking, by_seed, generator
from qkv_marking._findings import describe
from qkv_marking._mistake import Function, Mistake, Steps
from qkv_marking._outcome import options_of
from qkv_marking.tasks._task import (
    Computation,
    Phrases,
    StepwiseMarking,
    both_ends,
    cut,
    make_task,
    without,
)

BASE = 10000.0
_TEXTS = Phrases(__name__)


@dataclass(frozen=True)
class PositionsCall:
    """One call: the number of positions, and the size of their vectors."""

    length: int
    dim: int

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        return {"length": self.length, "dim": self.dim}


def compute(case: PositionsCall, steps: Steps) -> Array:
    """Compute the table (T, D) with these steps."""
    length, dim = steps["sizes"](case.length, case.dim)
    column = np.arange(dim)
    position = steps["positions"](length)[:, None]
    exponent = steps["exponent"](column, dim)
    angle = steps["turn"](position, steps["power"](steps["base"](), exponent, column, dim))
    table = steps["waves"](angle, column)  # (T, D)
    out: Array = steps["layout"](table)
    return out


RIGHT: Steps = {
    "sizes": lambda length, dim: (length, dim),
    "positions": np.arange,
    "base": lambda: BASE,
    "exponent": lambda column, dim: (column - column % 2) / dim,
    "power": lambda base, exponent, column, dim: base**exponent,
    "turn": lambda position, power: position / power,
    "waves": lambda angle, column: np.where(column % 2, np.cos(angle), np.sin(angle)),
    "layout": lambda table: table,
}
_RIGHT = Computation("positions", compute, RIGHT, "return table  # (length, dim)")


def _halves(table: Array) -> Array:
    """Put all sines first, then all cosines."""
    return np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)


def _even(column: Array) -> Array:
    """Round the number of each column down to an even number: 0, 0, 2, 2, 4, 4, ..."""
    return np.asarray(column - column % 2)


MISTAKES = (
    *_TEXTS.mistakes(
        {
            "positions-from-one": [{"positions": lambda length: np.arange(1, length + 1)}],
            "positions-exponent-half": [lambda column, dim: column // 2 / dim],
            "positions-exponent-twice": [lambda column, dim: 2 * _even(column) / dim],
            "positions-one-speed": [lambda column, dim: np.zeros_like(column)],
            "positions-exponent-each": [
                lambda column, dim: column / dim,
                lambda column, dim: 2 * column / dim,
            ],
            "positions-multiplied": [{"turn": lambda position, power: position * power}],
            "positions-only-sine": [{"waves": lambda angle, column: np.sin(angle)}],
            "positions-transposed": [{"layout": np.transpose}],
            "positions-halves": [{"layout": _halves}],
            "positions-cosine-first": [
                {"waves": lambda angle, column: np.where(column % 2, np.sin(angle), np.cos(angle))}
            ],
            # as in tensor2tensor, the exponent of the last pair is 1
            "positions-to-the-end": [lambda column, dim: column // 2 / max(1, (dim + 1) // 2 - 1)],
            "angle-floored": [{"turn": lambda position, power: position // power}],
            "logarithm-floored": [
                {
                    "power": lambda base, exponent, column, dim: (
                        1 / np.exp(_even(column) * -(np.log(base) // dim))
                    )
                }
            ],
            "positions-degrees": [
                {"turn": lambda position, power: np.deg2rad(position / power)},
                {"turn": lambda position, power: np.rad2deg(position / power)},
            ],
        },
        step="exponent",
    ),
    *_TEXTS.mistakes(
        {
            "positions-power": [
                lambda base, exponent, column, dim: base ** _even(column) / dim,
                lambda base, exponent, column, dim: base ** _even(column) * dim,
                lambda base, exponent, column, dim: int(base) ** _even(column) / dim,
                lambda base, exponent, column, dim: int(base) ** _even(column) * dim,
                lambda base, exponent, column, dim: base ** (column // 2) / dim,
                lambda base, exponent, column, dim: base ** (column // 2) * dim,
                lambda base, exponent, column, dim: base**2 * (column // 2) / dim,
                lambda base, exponent, column, dim: base**2 * _even(column) / dim,
                lambda base, exponent, column, dim: base**2 * dim / (column // 2),
                lambda base, exponent, column, dim: base**2 * dim / _even(column),
            ]
        },
        step="power",
    ),
    *_TEXTS.mistakes(
        {"integer-table": [np.trunc], "return-in-loop": [lambda table: table[:1]]}, step="layout"
    ),
    *both_ends(
        _TEXTS,
        "row-forgotten",
        lambda at: {"layout": lambda table: without(table, at, 0)},
        lambda at: {"layout": lambda table: cut(table, at, 0)},
    ),
    *both_ends(
        _TEXTS,
        "column-forgotten",
        lambda at: {"layout": lambda table: without(table, at, 1)},
        lambda at: {"layout": lambda table: cut(table, at, 1)},
        lambda at: {
            "layout": lambda table: without(without(table, at, 1), 1 if at == 0 else -2, 1)
        },
    ),
    _TEXTS.mistake("positions-arguments", {"sizes": lambda length, dim: (dim, length)}),
)


def _by_speed(table: Array | None) -> tuple[Mistake, ...]:
    """Find the wrong base and the wrong dim that explain a wrong table; return them as mistakes."""
    if table is None or table.shape != (3, 4) or not (angle := _second_angle(table)):
        return ()
    base = angle**-2.0  # with dim 4, pair 1 rotates by base ** (-2 / 4) per position
    other_base = _TEXTS.mistake("positions-base", {"base": lambda: base}, base=f"{base:.6g}")
    dim = round(-2 * np.log(BASE) / np.log(angle)) if angle < 1 else 0
    if dim < 1:
        return (other_base,)
    other_dim = {"exponent": lambda column, _: _even(column) / dim}
    return other_base, _TEXTS.mistake("positions-other-dim", other_dim, dim=dim)


def _second_angle(table: Array) -> float:
    """Return the angle by which pair 1 turns from position 1 to 2; a negative angle becomes 0."""
    before, after = (complex(*row) for row in table[1:, [3, 2]])  # cosine, sine
    return max(0.0, float(np.angle(after / before))) if before and np.isfinite(table).all() else 0.0


# The smallest table comes first. With two columns, the angle at position p is p.
TABLES = (PositionsCall(2, 2), PositionsCall(3, 4), PositionsCall(4, 6), PositionsCall(3, 8))
ODD = (PositionsCall(2, 3), PositionsCall(3, 5))


def _another() -> tuple[PositionsCall, ...]:
    """Return a table of random size if the random seed is not 0; otherwise, return no table."""
    length, half = generator(0).integers(4, 10, 2)
    return (PositionsCall(int(length), 2 * int(half)),) if by_seed() else ()


def _mark(function: Function) -> Marking:
    """Test a function that takes a length and a dim."""
    options_of(function, ("length", "dim"), {})
    m = StepwiseMarking(_RIGHT, function, lambda case: function(case.length, case.dim))
    known = (*MISTAKES, *_by_speed(m.call(TABLES[1]).out))
    m.test_all(
        (
            Group("positions, angles, columns", (*TABLES, *_another()), known),
            Group(
                "an odd dim",
                ODD,
                otherwise=lambda run: _TEXTS.finding("positions-odd", run, error=describe(run)),
                if_right=True,
            ),
        )
    )
    return m


POSITIONS = make_task("positions", _mark)
