"""The table of a task: the lines of its formula, and its known mistakes, from a TOML file."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._findings import Symptom, of_mistake
from qkv_marking._formula import Formula, Lines
from qkv_marking._mistake import Mistake, read_rows, read_tables
from qkv_marking._outcome import Outcome

_ENDS = {"-1": "last", "0": "first"}


def without(a: Array, at: int, axis: int, number: float = 0) -> Array:
    """Set the first item (at = 0) or the last item (at = -1) along an axis to a number."""
    a = np.array(a)
    np.moveaxis(a, axis, 0)[at] = number
    return a


class Table:
    """The formula and the mistakes of a task, from a TOML file.

    The table `lines` holds the lines of the right computation, in order, and `when` the conditions
    of lines that do not always run (see `Formula`). Every other table holds a mistake, with fields
    of `Mistake` and

    - `ways`: the ways to make the mistake; each way maps names of lines to wrong lines. In a wrong
      line, RIGHT stands for the right line, and "pass" means that the line is missing;
    - `numbers`: numbers that replace NUMBER in the lines of a way, with one way for each number;
    - `ends`: true for two mistakes, which skip the last and the first item of a loop: AT in the
      lines becomes -1 and 0, and {end} in the texts becomes "last" and "first";
    - `key`: the mistake's key, if it is not the name of the table.

    If a table contains subtables, it is a group: its fields are default values for the subtables.

    Args:
        package: the package that contains the file.
        name: the name of the file, without ".toml".
        helpers: the functions that the lines call, in addition to NumPy.
        base: a formula whose lines come before this table's lines.
        section: the name of a table in the file, to read only this table.

    Attributes:
        formula: the lines of the right computation.
        fields: the fields that belong to no mistake, for example those of `Exercise`.
    """

    def __init__(
        self,
        package: str,
        name: str,
        helpers: Mapping[str, Any] | None = None,
        base: Formula | None = None,
        section: str = "",
    ) -> None:
        tables = read_tables(package, name)
        table: dict[str, Any] = dict(tables[section] if section else tables)
        base = base or Formula({})
        self.formula = Formula(
            {**base.lines, **table.pop("lines", {})},
            {**base.when, **table.pop("when", {})},
            {"without": without, **base.helpers, **(helpers or {})},
        )
        self._rows: dict[str, Mapping[str, Any]] = {}
        self._groups: dict[str, list[str]] = {}
        plain = [key for key, value in table.items() if not isinstance(value, dict)]
        self.fields: dict[str, Any] = {key: table.pop(key) for key in plain}
        for groups, row, fields in read_rows(table, {}):
            if row in self._rows:
                raise KeyError(f"two tables have the name {row}")
            self._rows[row] = fields
            for group in (*groups, row):
                self._groups.setdefault(group, []).append(row)

    def group(self, *names: str) -> tuple[Mistake, ...]:
        """Return the mistakes of these groups and tables, or all mistakes, in the file's order."""
        rows = [row for name in names for row in self._groups[name]] if names else [*self._rows]
        return tuple(mistake for row in rows for mistake in self._mistakes(row))

    def mistake(self, name: str, *ways: Lines, **values: object) -> Mistake:
        """Return the mistake that a table describes.

        Args:
            name: the table's name.
            ways: the ways to make the mistake, instead of those in the table.
            values: values for placeholders in the texts, for example `row` for "{row}".
        """
        (mistake,) = self._mistakes(name, *ways, **values)
        return mistake

    def finding(self, name: str, run: Outcome | None, **values: object) -> Symptom:
        """Return a finding: the mistake in the table `name`, and the call that shows it."""
        return of_mistake(self.mistake(name, **values), run)

    def _mistakes(self, name: str, *ways: Lines, **values: object) -> Iterator[Mistake]:
        fields = {"key": name, **self._rows[name]}
        numbers = fields.pop("numbers", [None])
        both = _ENDS.items() if fields.pop("ends", False) else [("", "")]
        ways = ways or tuple(fields.pop("ways", ()))
        fields.pop("ways", None)
        for at, end in both:
            texts = {**values, **({"end": end} if end else {})}
            filled: dict[str, Any] = {
                field: text.format(**texts) if texts and isinstance(text, str) else text
                for field, text in fields.items()
            }
            variants = tuple(
                {line: self._fill(line, text, at, number) for line, text in way.items()}
                for way in ways
                for number in (numbers if "NUMBER" in str(way) else [None])
            )
            yield Mistake(**filled, variants=variants)

    def _fill(self, line: str, text: str, at: str, number: float | None) -> str:
        text = text.replace("RIGHT", self.formula.lines.get(line, "RIGHT")).replace("AT", at)
        return text if number is None else text.replace("NUMBER", repr(number))


def restrict(mistake: Mistake, formula: Formula) -> Mistake:
    """Return the mistake with only the ways whose lines the formula has."""
    kept = tuple(way for way in mistake.variants if way.keys() <= formula.lines.keys())
    return replace(mistake, variants=kept)
