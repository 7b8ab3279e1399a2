"""Processor seconds of cases: which cases have the mark `slow`, and a plugin that measures them.

`make seconds` loads this module as a plugin of pytest, and writes .ci/seconds.txt. The file lists
the cases that take more than 0.1 s of processor time, with their threads, child processes and
fixtures. tests/conftest.py gives these cases the mark `slow`.
"""

import functools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / ".ci/seconds.txt"
SLOW = 0.1

_began: dict[str, float] = {}
_found: dict[str, float] = {}


@functools.cache
def slow_cases() -> dict[str, float]:
    """Read the cases of the file, and their seconds."""
    lines = FILE.read_text("utf-8").splitlines() if FILE.exists() else []
    return {case: float(taken) for taken, case in (line.split(maxsplit=1) for line in lines)}


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
    lines = [f"{taken:6.2f} {case}\n" for case, taken in sorted(_found.items()) if taken > SLOW]
    FILE.write_text("".join(lines), "utf-8")
