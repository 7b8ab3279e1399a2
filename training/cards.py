"""What the cards of both models that ship have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def heads_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """A row for each head, with its scores of these names.

    >>> print(heads_table([{"layer": 0, "head": 1, "first": 0.5}], ["first"]))
    | head | first |
    | --- | --- |
    | 0.1 | 0.50 |
    """
    lines = [f"| head | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for row in rows:
        scores = " | ".join(f"{row[name]:.2f}" for name in names)
        lines.append(f"| {row['layer']}.{row['head']} | {scores} |")
    return "\n".join(lines)
