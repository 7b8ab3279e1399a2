"""The signals that end a program, and what is done before it ends."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

# kill, a terminal that is closed, Ctrl-\, and Ctrl-Break on Windows; not every system has each
_NAMES = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
ENDING = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or another signal that ends a program, after all was saved.

    Attributes:
        signal: the number of the signal.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = number


def leave(number: int, _: Any = None) -> NoReturn:
    """End the program as an error does, so that what is half written is taken away."""
    sys.exit(128 + number)  # as a shell shows a program that a signal has ended


@contextmanager
def answering(answer: Callable[[int, Any], Any], *others: int) -> Iterator[None]:
    """Within it, a signal that would end the program calls a function instead.

    A signal that is ignored, as under nohup, or that somebody else answers is left to that, and in
    another thread than the main one, which alone takes signals, nothing changes.

    Args:
        answer: is given the number of the signal, and where the program was.
        others: signals that call it whoever answers them outside.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outside = {one: signal.getsignal(one) for one in (*ENDING, *others)}
    ours = {
        one: old for one, old in outside.items() if one in others or old in (signal.SIG_DFL, leave)
    }
    try:
        for one in ours:
            signal.signal(one, answer)
        yield
    finally:
        for one, old in ours.items():
            signal.signal(one, old)
