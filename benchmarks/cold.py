"""Time and memory from the start of a process to the first vector."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from benchmarks.common import Row, Way, less_memory, within
from benchmarks.encode import exact, folder
from benchmarks.memory import ROOT

TEXT = "The cat sat on the mat."
# ru_maxrss would also count the memory of the parent process, so read the peak from /proc
TAIL = """
import sys
import numpy as np
from benchmarks.memory import resident
used = np.float64(resident()[1])
sys.stdout.buffer.write(used.tobytes() + np.asarray(vector, np.float32).tobytes())
"""
PROGRAMS = {
    "qkv": "import qkv; vector = qkv.load('minilm').encode({text!r})",
    "sentence-transformers": (
        "import sentence_transformers as s;"
        " model = s.SentenceTransformer({folder!r}, device='cpu');"
        " vector = model.encode({text!r}, show_progress_bar=False)"
    ),
}


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield the table row for one text; `shrink` has no effect, because the text is short."""
    truth = exact(TEXT)

    def error(answer: bytes) -> float:
        return float(np.abs(np.frombuffer(answer[8:], np.float32) - truth).max())

    there = {"qkv": True, "sentence-transformers": find_spec("sentence_transformers") is not None}
    ways = {
        name: Way(lambda name=name: run(name), error) if found else None
        for name, found in there.items()
    }
    memory = {
        name: lambda name=name: float(np.frombuffer(run(name)[:8])[0])
        for name, found in there.items()
    }
    goals = (
        within(0.1, "qkv", of="sentence-transformers"),
        less_memory("sentence-transformers", 3.0),
    )
    yield Row("MiniLM, import to first vector", ways, goals, memory, rounds=3)


def run(name: str) -> bytes:
    """Return the vector, and the peak memory of the process."""
    program = PROGRAMS[name].format(text=TEXT, folder=str(folder())) + TAIL
    return subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        cwd=ROOT,
    ).stdout
