"""The view that results of `qkv.circuits` are drawn as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.see.draw.panels import Panel
from qkv.see.views.view import Heading, View


@dataclass(frozen=True, eq=False, repr=False)
class PlotView(View):
    """A result of `qkv.circuits`, drawn.

    Attributes:
        said: the strongest of its numbers, in words.
        facts: what else to know of them.
        rows: its panels.
        numbers: what `to_dict` gives.
    """

    said: str
    facts: list[str]
    rows: list[list[Panel]]
    numbers: dict[str, Any]

    @property
    def sentence(self) -> str:
        """The strongest number and where it stands, in words."""
        return self.said

    @property
    def reasons(self) -> list[str]:
        """What else to know of the numbers."""
        return self.facts

    def panels(self) -> list[list[Panel]]:
        """Heat maps, bars, a graph, or cards."""
        return self.rows

    def _headings(self) -> list[Heading]:
        return []

    def _numbers(self) -> dict[str, Any]:
        return {"sentence": self.said, **self.numbers}
