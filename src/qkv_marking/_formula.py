"""Run a computation that is given as lines of Python; a mistake replaces some of these lines."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import numpy as np

Lines = Mapping[str, str]  # lines of Python, keyed by the name of the line
Diff = tuple[tuple[str, str], ...]  # pairs (right line, wrong line)
MISSING = "pass"  # a line with this text stands for a line that is missing


@functools.lru_cache(4096)
def _code(line: str, mode: str) -> CodeType:
    return compile(line, "the formula", mode)


@dataclass(frozen=True)
class Formula:
    """A computation: lines of Python, which run in order.

    Attributes:
        lines: the right lines.
        when: conditions, keyed by the name of a line. A line with a condition runs only if the
            condition is true.
        helpers: the functions that the lines call, in addition to NumPy.

    >>> sums = Formula({"sum": "total = x.sum()", "mean": "out = total / x.size"})
    >>> sums.run({"x": np.array([1, 3])})["out"]
    np.float64(2.0)
    >>> sums.run({"x": np.array([1, 3])}, {"mean": "out = total"})["out"]
    np.int64(4)
    """

    lines: Lines
    when: Lines = field(default_factory=dict)
    helpers: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self,
        values: Mapping[str, Any],
        changes: Lines | None = None,
        after: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Run the lines, and return all variables.

        Args:
            values: the variables that the lines use.
            changes: lines that replace the lines of the same name; other names have no effect.
            after: a function that is called after each line, with the line's name and the
                variables.
        """
        names: dict[str, Any] = {"np": np, **self.helpers, **values}
        with np.errstate(all="ignore"):
            for name, line in self.lines.items():
                if name in self.when and not eval(_code(self.when[name], "eval"), names):
                    continue
                exec(_code((changes or {}).get(name, line), "exec"), names)
                if after is not None:
                    after(name, names)
        return names

    def part(self, *names: str) -> "Formula":
        """Return a computation with only these lines, in the order of the names."""
        return Formula({name: self.lines[name] for name in names}, self.when, self.helpers)


def list_diff(diff: Diff, right: bool = True) -> Iterator[str]:
    """Yield the lines of a diff: minus marks the function's line, and plus marks the right line.

    Args:
        diff: the pairs of lines.
        right: whether to yield the right lines too.
    """
    for line, wrong in diff:
        if wrong != MISSING:
            yield from (f"- {part}" for part in wrong.splitlines())
        if right and line != MISSING:
            yield from (f"+ {part}" for part in line.splitlines())
