"""What a process that runs somebody's code does first: limits, and lines of JSON for requests.

Requests come as lines of JSON on standard input, replies go as lines to standard output; the code
that runs there has neither.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from json import dumps, loads
from typing import Any

from qkv.marking.isolated import UNTOLD
from qkv.marking.outcome import getpid

Packed = dict[str, Any]
Answer = Callable[[Packed, Callable[[Any], None]], Packed]
leave = os._exit  # as it is before any code of somebody's is read


def serve(
    begin: Callable[[], Answer], megabytes: int, seconds: float, *, again: bool = True
) -> None:
    """Answer what is asked, and end this process.

    Args:
        begin: gives the function that answers a request; it may call its second argument before
            each part of its work, and say what that is.
        megabytes: how much memory there may be.
        seconds: when this process ends in any case.
        again: go on in a child, so that code that ends its parent ends a process of ours alone.
    """
    _set_limits(megabytes)
    if again:
        _go_on_in_a_child()
    _set_alarm(seconds)
    hear, tell = _private_ends()
    code = UNTOLD
    try:
        tell({"process": os.getpid()})
        answer = begin()
        while line := hear():
            request = loads(line)
            number = {"n": request["n"]}
            tell(answer(request, lambda part: tell({"part": part} | number)) | number)  # noqa: B023
        code = 0
    finally:
        leave(code)  # whatever threads and exit functions were left behind


def _go_on_in_a_child() -> None:
    """Fork, and wait for the child: a file that ends its parent ends this process alone.

    This process then ends as the child did.
    """
    if not hasattr(os, "fork"):  # Windows
        return
    child = os.fork()
    if not child:
        return
    for number in (0, 1, 2):  # whoever reads us hears of the child's end
        os.close(number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        with suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    leave(abs(code))


def _private_ends() -> tuple[Callable[[], bytes], Callable[[Packed], None]]:
    """Standard input and output for us alone: nobody sees what the file prints."""
    asked, ours, process = os.fdopen(os.dup(0), "rb"), os.dup(1), getpid()
    nobody = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nobody, number)

    def tell(what: Packed) -> None:
        if getpid() != process:
            leave(0)
        line = dumps(what).encode() + b"\n"
        while line:
            line = line[os.write(ours, line) :]

    return asked.readline, tell


def _set_limits(megabytes: int) -> None:
    """A bound on memory, and no files of crashes."""
    try:
        import resource
    except ImportError:  # Windows has none
        return
    size = megabytes << 20
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_CORE):
        wanted = size if limit == resource.RLIMIT_DATA else 0
        with suppress(ValueError, OSError):  # a lower one was set outside
            resource.setrlimit(limit, (wanted, resource.getrlimit(limit)[1]))


def _set_alarm(seconds: float) -> None:
    """An end, in case that nobody is there any more to end this process."""
    if hasattr(signal, "alarm"):  # not on Windows
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(seconds))
