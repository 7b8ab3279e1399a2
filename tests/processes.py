"""Waits for conditions, for at most a minute, and checks of processes; marks for both."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

MINUTE = 60  # seconds; a wait that takes so long has failed, also on a busy machine
_HERE = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
TWO_PROCESSORS = pytest.mark.skipif(len(_HERE) < 2, reason="this process has one processor")


def until(look, what="", enough=bool):
    """Call `look` for at most a minute, until `enough` of its value is true; return this value.

    Args:
        look: a function without arguments.
        what: the condition, for the error: "the server is ready".
        enough: a function of the value, which says whether the wait ends.
    """
    end = time.monotonic() + MINUTE
    while not enough(found := look()):
        assert time.monotonic() < end, f"not within a minute: {what}; last seen: {found!r:.500}"
        time.sleep(0.02)
    return found


def state(number):
    """Return the letter of a process's state, such as "S" while it sleeps (only on Linux)."""
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]


def threads(number):
    """Return the number of a process's threads (only on Linux)."""
    return len(os.listdir(f"/proc/{number}/task"))


def is_gone(number):
    """Return whether a process has ended; a zombie, whose parent did not wait for it, has ended."""
    try:
        os.kill(number, 0)
        return state(number) == "Z"
    except ProcessLookupError:  # before the call, or while its state was read
        return True
    except FileNotFoundError:  # it ended after the first line, or this system has no /proc
        return False


def ends(number):
    """Wait up to a minute for a process to end, and return whether it ended."""
    with suppress(AssertionError):
        until(lambda: is_gone(number))
    return is_gone(number)


def child_of(process, note):
    """Wait until a process's busy child has written its id into the file `note`; return the id."""

    def look():
        assert process.poll() is None, "the program ended before its child process was busy"
        return note.exists() and note.read_text()

    return int(until(look, "the child process is busy"))


def ends_with_its_parent(program, note):
    """Kill a Python program once its child process is busy; return whether the child ended too.

    Args:
        program: the source of the program. Its child process writes its id into the file `note`.
        note: a path.
    """
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as parent:
        child = child_of(parent, note)
        assert not is_gone(child)
        parent.kill()  # SIGKILL: the program cannot end its child process
    if ends(child):
        return True
    os.kill(child, signal.SIGKILL)
    return False
