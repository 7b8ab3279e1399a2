"""Checks of whether a process, which the test may not have started, has ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def state(number):
    """Return the letter of a process's state, such as "S" while it sleeps (only on Linux)."""
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]


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
    """Wait up to about a minute for a process to end, and return whether it ended."""
    for _ in range(1200):
        if is_gone(number):
            return True
        time.sleep(0.05)
    return False


def ends_with_its_parent(program, note):
    """Kill a Python program once its child process is busy; return whether the child ended too.

    Args:
        program: the source of the program. Its child process writes its id into the file `note`.
        note: a path.
    """
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as parent:
        while not (note.exists() and note.read_text()):
            assert parent.poll() is None, "the program ended before its child process was busy"
            time.sleep(0.02)
        child = int(note.read_text())
        assert not is_gone(child)
        parent.kill()  # SIGKILL: the program cannot end its child process
    if ends(child):
        return True
    os.kill(child, signal.SIGKILL)
    return False
