"""What tests ask of processes that somebody else has started."""

import os
import time
from pathlib import Path


def is_gone(number):
    """Has a process ended? One whose parent has not asked for its end yet is gone too."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{number}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


def ends(number):
    """Is it gone as soon as the system has taken it away?"""
    for _ in range(1200):
        if is_gone(number):
            return True
        time.sleep(0.05)
    return False
