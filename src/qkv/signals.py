"""The signals that end a program, and functions that answer them."""

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
    """Ctrl-C or another signal that ends a program, after everything was saved.

    Attributes:
        signal: the number of the signal.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = number


def leave(number: int, _: Any = None) -> NoReturn:
    """End the program by an exception, so that unfinished files are removed."""
    sys.exit(128 + number)  # the code of a program that a signal has ended


@contextmanager
def answering(answer: Callable[[int, Any], Any], *others: int) -> Iterator[None]:
    """Call a function in this context when a signal would end the program.

    Signals that are ignored, as under nohup, or have another handler stay as they are. Outside the
    main thread, which alone receives signals, nothing changes.

    Args:
        answer: gets the number of the signal and the current stack frame.
        others: signals that call it even if they have another handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (*ENDING, *others)}
    replaced = {
        number: handler
        for number, handler in handlers.items()
        if number in others or handler in (signal.SIG_DFL, leave)
    }
    try:
        for number in replaced:
            signal.signal(number, answer)
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
