"""Divide work among threads, and compute NumPy's products on one thread."""

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from qkv.ops.kernel import get_num_threads

Case = tuple[Any, ...]  # the arguments of a task
_lock = threading.RLock()
_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()  # functions that the helper threads call
_helpers: list[threading.Thread] = []
_here = threading.local()  # `_here.errors` holds the errors of this thread's `run_all` call


def lock() -> threading.RLock:
    """Return the lock that protects shared state; hold the lock only for a few lines of code."""
    return _lock


def run_all(task: Callable[..., None], cases: Sequence[Case]) -> None:
    """Call `task(*case)` for every case, on up to `get_num_threads()` threads.

    The cases must be independent of each other. After an error or an interrupt, no further case
    begins, and `run_all` raises the error when all running cases have ended. A long case calls
    `go_on` between its steps, so that it ends early if another case fails.
    """
    threads = 1 if len(cases) < 2 else min(get_num_threads(), len(cases))
    if threads == 1:
        with one_blas_thread():
            for case in cases:
                task(*case)
        return
    remaining = iter(cases)  # next(remaining) is atomic, so each case runs once
    errors: list[BaseException] = []
    changed = threading.Condition()
    open_, active = True, 0

    def work() -> None:
        before, _here.errors = getattr(_here, "errors", None), errors
        try:
            for case in remaining:
                task(*case)
        except BaseException as error:
            errors.append(error)
            for _ in remaining:
                pass
        _here.errors = before

    def join() -> None:
        nonlocal active
        with changed:
            if not open_:
                return
            active += 1
        work()
        with changed:
            active -= 1
            changed.notify()

    with one_blas_thread():
        _ask_for_help(threads - 1, join)
        work()
        while open_ or active:
            try:
                with changed:
                    open_ = False
                    changed.wait_for(lambda: not active)
            except BaseException as error:  # after an interrupt, still wait for the other threads
                errors.append(error)
    if errors:
        raise errors[0]


class _Stopped(Exception):
    """A case stops because another case has failed."""


def go_on() -> None:
    """Raise an error if another case of the current `run_all` call has failed."""
    if getattr(_here, "errors", None):
        raise _Stopped


def _ask_for_help(count: int, join: Callable[[], None]) -> None:
    """Run `join` on `count` helper threads, or on fewer if the system cannot start all of them."""
    try:
        while len(_helpers) < count:
            helper = threading.Thread(target=_help, args=(_jobs,), name="qkv", daemon=True)
            helper.start()
            _helpers.append(helper)
    except RuntimeError:  # there are too many threads, or the process is about to end
        count = len(_helpers)
    for _ in range(count):
        _jobs.put(join)


def _help(jobs: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        jobs.get()()


_one_blas_thread = 0  # The number of callers inside `one_blas_thread`.
_blas_threads: dict[
    int, int
] = {}  # The numbers of threads to restore, keyed by index in `_blas()`.


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Compute NumPy's products on the calling thread inside the `with` block.

    With several BLAS threads, rounding errors would depend on the number of threads. If each thread
    of `run_all` also used several BLAS threads, all of them would compete for the same cores, and
    the computation could be ten times slower. The limit applies to the whole process: the first
    caller sets the limit, and the last caller restores the previous number of threads.
    """
    global _one_blas_thread
    libraries, inside = _blas(), 0
    try:
        with _lock:
            for index, (library, set_threads) in enumerate(libraries):
                if (threads := library.num_threads) != 1:
                    _blas_threads[index] = threads
                    set_threads(1)
            _one_blas_thread += 1
            inside = 1
        yield
    finally:
        with _lock:
            _one_blas_thread -= inside
            if not _one_blas_thread:
                for index, threads in _blas_threads.items():
                    libraries[index][1](threads)
                _blas_threads.clear()


@functools.cache
def _blas() -> list[tuple[Any, Callable[[int], None]]]:
    """Return NumPy's BLAS libraries, each with its function to set the number of threads.

    threadpoolctl 3.7 and later wrap this function, so that only the first Python thread that calls
    the wrapper can change the number. But `one_blas_thread` must work on every thread, so this list
    contains the functions that the wrappers call.
    """
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return [(lib, getattr(lib, "_real_set_num_threads", lib.set_num_threads)) for lib in libraries]


def _forget_threads() -> None:
    """Reset the state after a fork, because the child process lacks the parent's threads."""
    global _helpers, _jobs, _lock, _one_blas_thread
    _helpers, _jobs, _one_blas_thread = [], SimpleQueue(), 0
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
