"""Run a program without network, without commands on PATH, and with a given home folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import qkv

_REFUSED = """
import socket, sys

def refuse(*_):
    raise AssertionError("asks the network")

socket.socket.connect = socket.getaddrinfo = refuse
"""
_IMPORTED = """
print(sorted({"huggingface_hub", "torch", "matplotlib"} & set(sys.modules)))
"""


def lines_offline(program: str, home: Path) -> list[str]:
    """Return the lines that a program prints; assert that it imported no large package."""
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED + program + _IMPORTED],
        env={
            "HF_HOME": str(home),
            "PATH": "/nonexistent",
            "HOME": str(home),
            "PYTHONPATH": str(Path(qkv.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    *written, imported = done.stdout.splitlines()
    assert (imported, done.stderr) == ("[]", "")
    return written
