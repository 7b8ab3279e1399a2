"""Run `pip install`, and print each of its main steps in words.

    python .ci/install.py PYTHON ARGUMENT...

Whenever pip is silent for ten seconds, this script prints the elapsed time. pip's own output is
shown only if pip fails.
"""

import os
import subprocess
import sys
import threading
import time
from queue import Empty, Queue

PIP = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
SAID = {
    "  Installing build dependencies: started": "fetching what builds it",
    "  Preparing editable metadata (pyproject.toml): started": "building it",
}


def in_words(line: str) -> str | None:
    """Translate a line of pip's output for a waiting user; None if it says nothing new."""
    if line.startswith("Collecting "):
        return "fetching " + line.removeprefix("Collecting ").partition(" (from")[0]
    if line.startswith("Installing collected packages: "):
        return "installing " + line.partition(": ")[2]
    return SAID.get(line)


def main(python: str, *arguments: str) -> int:
    """Run pip, and return its exit status."""
    pip = subprocess.Popen(
        [python, *PIP, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    lines: Queue[str | None] = Queue()

    def read() -> None:
        for line in pip.stdout or ():
            lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    kept, begin = [], time.monotonic()
    while True:
        try:
            line = lines.get(timeout=10)
        except Empty:
            print(f"  ... {time.monotonic() - begin:.0f} s", flush=True)
            continue
        if line is None:
            break
        kept.append(line)
        if words := in_words(line):
            print(f"  {words}", flush=True)
    if pip.wait():
        print(*kept, sep="\n", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
