"""The task `positions`: a vector for each place, of sines and cosines that turn ever more slowly.

Source: Vaswani et al. 2017, Attention Is All You Need, section 3.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import by_seed, generator
from qkv.marking.engine import Group, mark_in_steps
from qkv.marking.findings import Finding, told
from qkv.marking.functions import options_of
from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.outcome import Outcome, name_of, outcome
from qkv.marking.result import CheckResult
from qkv.marking.tasks.mistakes.build import cut, without
from qkv.marking.tasks.task import Task

BASE = 10000.0


@dataclass(frozen=True)
class Table:
    """One call: how many places, and how many numbers for each."""

    length: int
    dim: int

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand."""
        return {"length": self.length, "dim": self.dim}


def compute(case: Table, steps: Steps) -> Array:
    """The table made by these steps, (T, D)."""
    length, dim = steps["sizes"](case.length, case.dim)
    column = np.arange(dim)
    place = steps["places"](length)[:, None]
    exponent = steps["exponent"](column, dim)
    angle = steps["turn"](place, steps["power"](steps["base"](), exponent, column, dim))
    table = steps["waves"](angle, column)  # (T, D)
    out: Array = steps["layout"](table)
    return out


RIGHT: Steps = MappingProxyType(
    {
        "sizes": lambda length, dim: (length, dim),
        "places": np.arange,
        "base": lambda: BASE,
        "exponent": lambda column, dim: (column - column % 2) / dim,
        "power": lambda base, exponent, column, dim: base**exponent,
        "turn": lambda place, power: place / power,
        "waves": lambda angle, column: np.where(column % 2, np.cos(angle), np.sin(angle)),
        "layout": lambda table: table,
    }
)


def _halves(table: Array) -> Array:
    """All sines, then all cosines."""
    return np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)


def _to_the_end(column: Array, dim: int) -> Array:
    """Exponents that reach 1 in the last pair, as they do in tensor2tensor."""
    return column // 2 / max(1, (dim + 1) // 2 - 1)


def _even(column: Array) -> Array:
    """0 0 2 2 4 4 ..., as np.arange(0, dim, 2) counts."""
    even: Array = column - column % 2
    return even


def _slowed(base: float, column: Array, dim: int) -> Array:
    """The speeds by a logarithm that is divided with //."""
    speed: Array = np.exp(_even(column) * -(np.log(base) // dim))
    return 1 / speed


def _forgotten(at: int) -> Iterator[Mistake]:
    """What a loop leaves out that ends one too early (-1), or begins one too late (0)."""
    one = "last" if at else "first"
    yield mistake(
        "row-forgotten",
        f"the {one} row is forgotten: it stays 0, or is missing",
        "there should be a row for each place",
        {"layout": lambda table: without(table, at, 0)},
        {"layout": lambda table: cut(table, at, 0)},
        remedy="for place in range(length): ...  # from 0 to length - 1",
        nudge="Print the table: which row is it that differs?",
        where="the loop over the places: where does it begin and end?",
    )
    yield mistake(
        "column-forgotten",
        f"the {one} column, or pair of columns, is forgotten: it stays 0, or is missing",
        "there should be a column for each of the dim numbers",
        {"layout": lambda table: without(table, at, 1)},
        {"layout": lambda table: cut(table, at, 1)},
        {"layout": lambda table: without(without(table, at, 1), 1 if at == 0 else -2, 1)},
        remedy="for column in range(dim): ...  # from 0 to dim - 1",
        nudge="Print the table: which column is it that differs?",
        where="the loop over the columns: where does it begin and end?",
    )


_ANGLE = "angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim)"
_COLUMNS = "table[:, 0::2] = np.sin(angle); table[:, 1::2] = np.cos(angle[:, : dim // 2])"
_POWER = "the line that raises 10000 to a power: which exponent has each pair of columns?"

MISTAKES = (
    mistake(
        "positions-from-one",
        "the places are counted from 1; the first place is 0",
        "the first row should be 0, 1, 0, 1: sine and cosine of 0",
        {"places": lambda length: np.arange(1, length + 1)},
        remedy=_ANGLE,
        nudge="What should the first row be?",
        where="the line that makes the numbers of the places",
    ),
    *mended(
        _ANGLE,
        mistake(
            "positions-exponent-half",
            "the exponent of pair i is i / dim; it should be 2i / dim",
            "the last columns turn too fast: they get only half the way to the base",
            {"exponent": lambda column, dim: column // 2 / dim},
        ),
        mistake(
            "positions-exponent-twice",
            "the exponent has its 2 twice: np.arange(0, dim, 2) counts in twos already",
            "the last columns turn far too slowly",
            {"exponent": lambda column, dim: 2 * (column - column % 2) / dim},
        ),
        mistake(
            "positions-one-speed",
            "all pairs turn equally fast: the exponent is missing, or // gave the whole number 0",
            "the columns of a row repeat after two",
            {"exponent": lambda column, dim: np.zeros_like(column)},
        ),
        mistake(
            "positions-exponent-each",
            "each column has an angle of its own; a sine and the cosine after it share one",
            "the squares of a pair do not sum to 1, so it is no point on a circle",
            {"exponent": lambda column, dim: column / dim},
            {"exponent": lambda column, dim: 2 * column / dim},
            nudge="Square the two numbers of a pair and add them up: what should come out?",
        ),
        mistake(
            "positions-multiplied",
            "the place is multiplied by the power of the base where it should be divided by it",
            "the columns turn ever faster instead of ever more slowly",
            {"turn": lambda place, power: place * power},
        ),
        nudge="Print the angles of place 1: by which factor does each pair fall to the next?",
        where=_POWER,
    ),
    mistake(
        "positions-only-sine",
        "every column is a sine; the second of each pair should be the cosine",
        "the first row is all zeros",
        {"waves": lambda angle, column: np.sin(angle)},
        remedy=_COLUMNS,
        nudge="What should the first row be?",
        where="the lines that fill the columns",
    ),
    mistake(
        "positions-transposed",
        "the table is transposed: it has a row for each number and a column for each place",
        "it cannot be added to word vectors (T, D)",
        {"layout": lambda table: table.T},
        remedy="return table.T  # (length, dim)",
        nudge="Print the shape of the table.",
        where="the return statement, or the axes of the places and of the columns",
    ),
    *mended(
        _COLUMNS,
        mistake(
            "positions-halves",
            "the sines stand in the first half and the cosines in the second; the task asks for"
            " sines in even columns and cosines in odd ones",
            "the numbers are the same, in another order of columns, as in tensor2tensor",
            {"layout": _halves},
        ),
        mistake(
            "positions-cosine-first",
            "the cosine of a pair stands before its sine; the task asks for sines in even columns",
            "the numbers are the same, in another order of columns",
            {"waves": lambda angle, column: np.where(column % 2, np.sin(angle), np.cos(angle))},
        ),
        mistake(
            "positions-to-the-end",
            "the last pair has the exponent 1; the task asks for 2i / dim, here (dim - 2) / dim",
            "the slowest pair turns by exactly 1 / base, as in tensor2tensor",
            {"exponent": _to_the_end},
            remedy=_ANGLE,
        ),
        nudge="Print the row of place 1 for dim=4, and work its four numbers out by hand.",
        where="the lines that fill the columns",
    ),
    *mended(
        _ANGLE,
        mistake(
            "floor-division",
            "the angles of all pairs but the first are cut off to 0, as // in place of / does it",
            "the columns after the first two do not change from place to place",
            {"turn": lambda place, power: place // power},
            where="the division by the power of the base",
        ),
        mistake(
            "floor-division",
            "the logarithm of the base is divided with //, which rounds down to a whole number",
            "the columns turn too fast",
            {"power": lambda base, exponent, column, dim: _slowed(base, column, dim)},
            remedy="speed = np.exp(np.arange(0, dim, 2) * -(np.log(10000) / dim))",
            where="the division of the logarithm",
        ),
        mistake(
            "positions-degrees",
            "the angles are taken for degrees, or turned into degrees; sin and cos take radians",
            "the columns turn 57.3 times too slowly, or too fast",
            {"turn": lambda place, power: np.deg2rad(place / power)},
            {"turn": lambda place, power: np.rad2deg(place / power)},
            nudge="What is the sine of the angle 1 in your table, and what should it be?",
            where="what is done to the angle before sin and cos",
        ),
        mistake(
            "positions-power",
            "the exponent lacks its brackets: ** comes before * and /, so that 10000 ** 2 * i / dim"
            " is (10000 ** 2) * i / dim",
            "the columns turn at speeds that are no powers of the base",
            *(
                {"power": power}
                for power in (
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
                )
            ),
            nudge="What is 2 ** 3 * 2 in Python: 16 or 64?",
        ),
        nudge="Print the angles of place 1: by which factor does each pair fall to the next?",
        where=_POWER,
        alone=True,
    ),
    *mended(
        _COLUMNS,
        mistake(
            "integer-table",
            "all rows but the first are 0: the table is one of integers, which cuts off fractions,"
            " or the return statement stands inside the loop",
            "of sines and cosines those of 0 alone are whole numbers",
            {"layout": np.trunc},
            remedy="table = np.zeros((length, dim))  # of floats: no dtype=int, no np.full(..., 0)",
            nudge="Print the dtype of the table.",
            where="the line that makes the table: which numbers can it hold?",
        ),
        mistake(
            "return-in-loop",
            "only the first row is there: the return statement stands inside the loop",
            "the other places have no row",
            {"layout": lambda table: table[:1]},
            remedy="return table  # indented as the for of the loop is",
            nudge="Print the shape of the table.",
            where="the return statement: how far is it indented?",
        ),
        *_forgotten(-1),
        *_forgotten(0),
        mistake(
            "positions-arguments",
            "length and dim have changed places: length comes first",
            "the table has a row for each number and a column for each place",
            {"sizes": lambda length, dim: (dim, length)},
            remedy="def positions(length, dim): ...",
            nudge="Print length and dim of the call positions(3, 4).",
            where="the order of the parameters",
        ),
        alone=True,
    ),
)


def _by_speed(table: Array | None) -> tuple[Mistake, ...]:
    """The base that a table (3, 4) was made with, or the dim, if it is another one."""
    if table is None or table.shape != (3, 4) or not (angle := _second_angle(table)):
        return ()
    base = angle**-2.0  # pair 1 of 4 columns turns by base ** (-2 / 4) from place to place
    other_base = mistake(
        "positions-base",
        f"the columns turn as if the base were {base:.6g}; it should be 10000",
        "the columns turn too fast or too slowly, the more so the later they are",
        {"base": lambda: base},
        remedy=_ANGLE,
        nudge="Compare the last columns with the picture in the paper: how fast do they turn?",
        where=_POWER,
    )
    dim = round(-2 * np.log(BASE) / np.log(angle)) if angle < 1 else 0
    if dim < 1:
        return (other_base,)
    other_dim = mistake(
        "positions-other-dim",
        f"the speeds are those of {dim} columns, however many there are: they depend on dim",
        "only the first pair turns as it should",
        {"exponent": lambda column, _: (column - column % 2) / dim},
        remedy=_ANGLE,
        nudge="Make a table of 4 columns and one of 8: do both have the same numbers in column 2?",
        where="the exponent: which dim goes into it, that of the call or one from outside?",
    )
    return other_base, other_dim


def _second_angle(table: Array) -> float:
    """By how much the second pair of columns turns from place 1 to place 2; 0 if not forwards."""
    before, after = (complex(*row) for row in table[1:, [3, 2]])  # cosine, sine
    return max(0.0, float(np.angle(after / before))) if before and np.isfinite(table).all() else 0.0


def _odd_fails(wrong: Outcome) -> Finding | None:
    """Right for even dims; an error, or another shape, for odd ones."""
    return Finding(
        "positions-odd",
        "it is right for an even dim and fails for an odd one, which ends on a sine",
        told(wrong),
        "table[:, 1::2] = np.cos(angle[:, : dim // 2])  # one cosine fewer than there are sines",
        nudge="Try positions(2, 3).",
        where="the line that fills the columns of the cosines",
        run=wrong,
        kind="fragile",
    )


# smallest first: with two columns there is one angle alone, and it is the place itself
TABLES = (Table(2, 2), Table(3, 4), Table(4, 6), Table(3, 8))
ODD = (Table(2, 3), Table(3, 5))


def _another() -> tuple[Table, ...]:
    """By a seed, a table of one more size."""
    length, half = generator(0).integers(4, 10, 2)
    return (Table(int(length), 2 * int(half)),) if by_seed() else ()


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark a function of a length and a size."""
    options_of(function, ("length", "dim"), {})

    def call(case: Table) -> Any:
        return function(case.length, case.dim)

    seen = outcome(TABLES[1], call, compute(TABLES[1], RIGHT)).out
    return mark_in_steps(
        "positions",
        name_of(function),
        call,
        compute,
        RIGHT,
        (
            Group("places, angles, columns", (*TABLES, *_another()), (*MISTAKES, *_by_speed(seen))),
            Group("an odd dim", ODD, (), _odd_fails, if_right=True),
        ),
        returns="return table  # (length, dim)",
    )


POSITIONS = Task(
    name="positions",
    looks_for=("positions", "sinusoidal_positions"),
    signature="positions(length, dim) -> (length, dim)",
    asks="the sine and the cosine of place / 10000 ** (2i / dim) in columns 2i and 2i + 1",
    mark=_mark,
    everyday=("positions",),
)
