"""Verdicts as the results.json that Gradescope reads from an autograder.

The format: https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from qkv.files import replacing
from qkv.marking.result import CheckResult

FULL = 10


def write_gradescope(
    path: str | os.PathLike[str], marked: Sequence[tuple[str, Sequence[CheckResult]]]
) -> None:
    """Write the verdicts on one submission: a test for each task, of 10 points.

    Args:
        path: where to.
        marked: each file's name, and its verdicts.

    Raises:
        OSError: it cannot be written.
    """
    several = len(marked) > 1
    tests = [
        {
            "name": f"{os.path.basename(file)}: {result.task or 'file'}"
            if several
            else result.task or os.path.basename(file),
            "score": result.points,
            "max_score": FULL,
            "status": "passed" if result.passed else "failed",
            "output": result.text(1),
        }
        for file, results in marked
        for result in results
    ]
    score = sum(result.points for _, results in marked for result in results)
    told = {"score": score, "tests": tests}
    with replacing(path) as out:
        out.write(json.dumps(told, indent=1).encode("utf-8", "replace") + b"\n")
