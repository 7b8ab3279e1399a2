"""Checks of whether a process, which the test may not have started, has ended."""

import os
import time
from pathlib import Path


def is_gone(number):
    """Return whether a process has ended; a zombie, whose parent did not wait for it, has ended."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{number}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


def ends(number):
    """Wait up to about a minute for a process to end, and return whether it ended."""
    for _ in range(1200):
        if is_gone(number):
            return True
        time.sleep(0.05)
    return False
