"""Processor seconds of cases: which cases have the mark `slow`, and a plugin that measures them.

`make seconds` loads this module as a plugin of pytest, and writes .ci/seconds.txt. The file lists
the cases that take at least 0.1 s of processor time, with their threads, child processes and
fixtures. A case that takes more than 0.3 s has the mark `slow`, a case below 0.1 s has no mark, and
a case in between keeps what it has. tests/conftest.py gives the marks.
"""

import functools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FILE = Path(__file__).parents[1] / ".ci/seconds.txt"
LISTED, SLOW = 0.1, 0.3

_began: dict[str, float] = {}
_found: dict[str, float] = {}


class Row(NamedTuple):
    """A line of the file."""

    seconds: float
    slow: bool
    case: str


def rows() -> list[Row]:
    """Read the file."""
    lines = FILE.read_text("utf-8").splitlines() if FILE.exists() else []
    split = [line.split(maxsplit=2) for line in lines]
    return [Row(float(seconds), mark == "slow", case) for seconds, mark, case in split]


@functools.cache
def slow_cases() -> set[str]:
    """Return the cases that have the mark `slow` by the file."""
    return {row.case for row in rows() if row.slow}


def name(nodeid: str) -> str:
    """Return the name of a case in the file, which is the same on each processor."""
    return re.sub(r"native-(amx|avx512|avx2|portable)", "native", nodeid)


def _used() -> float:
    import resource  # Windows has no such module

    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note the processor time before a case and its fixtures."""
    _began[nodeid] = _used()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Send the processor time of a case, its fixtures included, to the process that writes it."""
    report: Any = yield
    if call.when == "teardown":
        report.user_properties.append(("processor seconds", _used() - _began.pop(item.nodeid)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the largest time of the cases with one name: a case runs on several variants."""
    for title, seconds in report.user_properties:
        if title == "processor seconds":
            case = name(report.nodeid)
            _found[case] = max(float(str(seconds)), _found.get(case, 0.0))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file, in the process that collects the reports."""
    if hasattr(session.config, "workerinput"):
        return
    listed = []
    for case, seconds in sorted(_found.items()):
        if round(seconds, 2) >= LISTED:
            slow = seconds > SLOW or case in slow_cases()
            listed.append(f"{seconds:6.2f} {'slow' if slow else '-   '} {case}\n")
    FILE.write_text("".join(listed), "utf-8")
