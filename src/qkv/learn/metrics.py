"""A line of JSON for each step of a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.files import replacing

METRICS = "metrics.jsonl"


class Metrics:
    """Lines that are added to a file, after those of the steps before `step`.

    Lines of later steps, which a run that was killed has left, are removed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / METRICS
        kept = [row for row in read_metrics(folder) if row["step"] <= step]
        if kept or path.exists():
            with replacing(path) as file:
                file.writelines(_line(row) for row in kept)
        self._file = path.open("ab", buffering=0)  # what was written is there, whatever comes

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a line.

        Raises:
            OSError: the disk is full.
        """
        line = _line(row)
        while line:
            line = line[self._file.write(line) :]

    def close(self) -> None:
        """No more lines."""
        self._file.close()


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run; a last one that is not whole is left out.

    Raises:
        ValueError: a line is not JSON.
    """
    path = Path(folder) / METRICS
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            row = json.loads(line)
            row["step"] += 0
        except (ValueError, LookupError, TypeError):
            raise ValueError(f"{path}: line {number} is not a line of metrics") from None
        rows.append(row)
    return rows


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(_finite(row), allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:
    """The same with null where a number is none, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
