"""The task `positions`: a vector of sines and cosines for each position.

Source: Vaswani et al. 2017, Attention Is All You Need, section 3.5.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import Group, Marking, by_seed, generator
from qkv_marking._findings import describe
from qkv_marking._formula import Lines
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import options_of
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Computation, StepwiseMarking, make_task

BASE = 10000.0
_TABLE = Table(__package__, "positions")
RIGHT = _TABLE.formula.lines


@dataclass(frozen=True)
class PositionsCall:
    """One call: the number of positions, and the size of their vectors."""

    length: int
    dim: int

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        return {"length": self.length, "dim": self.dim}


def compute(case: PositionsCall, steps: Lines) -> Array:
    """Compute the table (T, D) with these lines."""
    out: Array = _TABLE.formula.run({"arguments": (case.length, case.dim)}, steps)["out"]
    return out


_RIGHT = Computation("positions", compute, RIGHT, "return table  # (length, dim)")
MISTAKES = _TABLE.group("speeds", "columns", "others", "table")


def _by_speed(table: Array | None) -> tuple[Mistake, ...]:
    """Find the wrong base and the wrong dim that explain a wrong table; return them as mistakes."""
    if table is None or table.shape != (3, 4) or not (angle := _second_angle(table)):
        return ()
    base = angle**-2.0  # with dim 4, pair 1 rotates by base ** (-2 / 4) per position
    other_base = _TABLE.mistake(
        "positions-base", {"base": f"base = {base:.12g}"}, base=f"{base:.6g}"
    )
    dim = round(-2 * np.log(BASE) / np.log(angle)) if angle < 1 else 0
    if dim < 1:
        return (other_base,)
    other_dim = {"exponent": f"exponent = even / {dim}"}
    return other_base, _TABLE.mistake("positions-other-dim", other_dim, dim=dim)


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
                otherwise=lambda run: _TABLE.finding("positions-odd", run, error=describe(run)),
                if_right=True,
            ),
        )
    )
    return m


POSITIONS = make_task("positions", _mark)
