"""The signals that end a program, and functions that end programs and their child processes."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

# The command `kill` sends SIGTERM, closing the terminal sends SIGHUP, Ctrl-\ sends SIGQUIT, and
# Ctrl-Break sends SIGBREAK. SIGBREAK exists only on Windows; SIGHUP and SIGQUIT exist only on Unix.
_NAMES = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
ENDING = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


_PARENT_CHECK = 0.2  # seconds between two checks of whether the parent process has ended


class Interrupted(KeyboardInterrupt):
    """Raised after Ctrl-C or another signal that ends the program, once the work is saved.

    Attributes:
        signal: the number of the signal.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = number


def leave(number: int, _: Any = None) -> NoReturn:
    """End the program with an exception, so that unfinished files are removed."""
    sys.exit(128 + number)  # the exit code of a program that was terminated by a signal


def end_with_parent(parent: int, end: Callable[[], Any] = lambda: os._exit(1)) -> None:
    """End this process soon after its parent process ends, for example because of a SIGKILL.

    A thread checks the parent's id, which changes when the parent ends (not on Windows). While a
    call in C holds the interpreter lock, this thread cannot run. To end a process that runs foreign
    code, call this function in the parent of that process, with an `end` that ends both.

    Args:
        parent: the id of the parent process.
        end: the function that ends this process, and other processes.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK)
        end()

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def answering(answer: Callable[[int, Any], Any], *others: int) -> Iterator[None]:
    """Within the `with` block, call `answer` when a signal would end the program.

    If a signal is already ignored (for example under nohup) or handled, nothing changes for this
    signal. Only the main thread receives signals, so the function does nothing in other threads.

    Args:
        answer: a function that takes the number of the signal and the current stack frame.
        others: further signals for which `answer` is called, even if they already have a handler.
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
