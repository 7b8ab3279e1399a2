"""End the processes that a student's code has started, even if they have left its session."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

MARK = "QKV_MARKED"  # the name of an environment variable, which new processes inherit
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 100  # New processes may start while others are ended.


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent has ended (Linux only)."""
    if sys.platform == "linux":
        with suppress(Exception):  # a C library without prctl
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(pid: int, mark: str = "") -> None:
    """End all descendants of a process, and all processes with this mark (Linux only)."""
    for _ in range(_ROUNDS):
        parents = dict(_living())
        victims = {*_below(pid, parents), *(p for p in parents if mark and _has_mark(p, mark))}
        if not victims - {os.getpid()}:
            return
        for victim in victims - {os.getpid()}:
            with suppress(OSError):
                os.kill(victim, signal.SIGKILL)


def _living() -> Iterator[tuple[int, int]]:
    """Yield the ids of each process and of its parent, without processes that have ended."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                yield int(folder.name), int(parent)


def _below(pid: int, parents: dict[int, int]) -> Iterable[int]:
    """Return the descendants of a process."""
    found = {pid}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _has_mark(pid: int, mark: str) -> bool:
    with suppress(OSError):
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False
