"""Whether a terminal is light or dark: what COLORFGBG says, else what the terminal answers."""

from __future__ import annotations

import os
import re
import select
import time
from functools import lru_cache
from typing import IO

_WAIT = 0.3  # seconds for an answer; one that answers at all does so at once
# "Which colour is your ground?", then a question that every terminal answers.
_QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
_COLOR = re.compile(rb"\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
_END = re.compile(rb"\x1b\[\?[\d;]*c")


def ground_of(file: IO[str]) -> str | None:
    """The ground of the terminal that a stream writes to: "light", "dark" or None (not known)."""
    said = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    if said.isdigit():  # of the 16 colours; as vim reads it
        return "dark" if int(said) in (*range(7), 8) else "light"
    return _asked() if file.isatty() else None


@lru_cache(maxsize=1)
def _asked() -> str | None:
    try:
        import termios
        import tty

        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except (ImportError, OSError):
        return None
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return None  # in the background, where asking would stop us
        before = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal)
            os.write(terminal, _QUESTION)
            return _theme(_answer(terminal))
        finally:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
    except (OSError, termios.error):
        return None
    finally:
        os.close(terminal)


def _answer(terminal: int) -> bytes:
    answer, until = b"", time.monotonic() + _WAIT
    while not _END.search(answer):
        left = until - time.monotonic()
        if left <= 0 or not select.select([terminal], [], [], left)[0]:
            break
        answer += os.read(terminal, 256)
    return answer


def _theme(answer: bytes) -> str | None:
    r"""Light or dark, by the weight that the eye gives to each colour.

    >>> _theme(b"\x1b]11;rgb:fdfd/f6f6/e3e3\x1b\\"), _theme(b"\x1b]11;rgb:1e/1e/1e\x07")
    ('light', 'dark')
    """
    found = _COLOR.search(answer)
    if found is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return "light" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "dark"
