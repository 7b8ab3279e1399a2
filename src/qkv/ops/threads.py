"""Divide work among threads, and compute NumPy's products on the calling thread."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.ops.kernel import get_num_threads

Case = tuple[Any, ...]  # the arguments of a task
# OpenBLAS computes a product of two matrices on the calling thread if it has at most this number of
# multiplications. The number depends on the processor: this is the lowest number (Neoverse V2), and
# most processors allow twice as many. Source: interface/gemm.c of OpenBLAS.
_MATRIX_WORK = 124_999
_VECTOR_WORK = 9_215  # The same limit for a matrix times a vector. Source: interface/gemv.c.
# State: `go_on` needs `_here.errors`, the errors of the `run_all` call whose case this thread runs.
_here = threading.local()


class _Helpers:
    """Threads that help `run_all`; they wait for jobs until the process ends."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Protects the list of threads; reentrant, because code that the garbage collector runs may
        # call `ask`.
        self._lock = threading.RLock()

    def ask(self, count: int, job: Callable[[], None]) -> None:
        """Run `job` on `count` helpers, or on fewer if the system cannot start all of them."""
        with self._lock:
            try:
                while len(self._threads) < count:
                    helper = threading.Thread(target=self._help, name="qkv", daemon=True)
                    helper.start()
                    self._threads.append(helper)
            except RuntimeError:  # there are too many threads, or the process is about to end
                count = len(self._threads)
        for _ in range(count):
            self._jobs.put(job)

    def _help(self) -> None:
        while True:
            self._jobs.get()()


# State: starting threads for each call would take longer than a small call. A child process lacks
# the threads of its parent, so it begins with a new object.
_helpers = _Helpers()


def run_all(task: Callable[..., object], cases: Sequence[Case]) -> None:
    """Call `task(*case)` for every case, on up to `get_num_threads()` threads.

    The cases must be independent of each other. After an error or an interrupt, no further case
    begins, and `run_all` raises the error when all running cases have ended. A long case calls
    `go_on` between its steps, so that it ends early if another case fails.
    """
    threads = 1 if len(cases) < 2 else min(get_num_threads(), len(cases))
    if threads == 1:
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

    _helpers.ask(threads - 1, join)
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


def matmul_alone(left: Array, right: Array, out: Array | None = None) -> Array:
    """Compute `left (..., n, k) @ right (..., k, m)` with NumPy, on the calling thread only.

    OpenBLAS, which NumPy's wheels contain, shares large products among its own threads. Rounding
    errors would then depend on the number of these threads, and the threads of several `run_all`
    cases would compete for the same cores. So this function divides the product into blocks that
    OpenBLAS computes on the calling thread. The blocks depend only on the shapes.
    """
    (rows, depth), columns = left.shape[-2:], right.shape[-1]
    limit = _MATRIX_WORK if rows > 1 < columns else _VECTOR_WORK
    if rows * depth * columns <= limit:
        return np.asarray(np.matmul(left, right, out=out))
    deep = min(depth, 64)
    wide = min(columns, max(8, limit // (deep * min(rows, 40)) // 8 * 8))
    high = min(rows, limit // (deep * wide))
    if out is None:
        lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        out = np.empty((*lead, rows, columns), np.result_type(left, right))
    for i, height in _whole_and_rest(rows, high):
        for j, width in _whole_and_rest(columns, wide):
            y = _blocks(out[..., i, j], height, width)
            for start in range(0, depth, deep):
                k = slice(start, min(depth, start + deep))
                a = _blocks(left[..., i, k], height, k.stop - start)  # (..., n / height, 1, .., ..)
                b = _blocks(right[..., k, j], k.stop - start, width)  # (..., 1, m / width, .., ..)
                if start == 0:
                    np.matmul(a, b, out=y)
                else:
                    y += np.matmul(a, b)
    return out


def _whole_and_rest(size: int, step: int) -> Iterator[tuple[slice, int]]:
    """Cut an axis into whole steps and a rest; yield both parts, each with its step.

    >>> list(_whole_and_rest(10, 4))
    [(slice(0, 8, None), 4), (slice(8, 10, None), 2)]
    """
    whole = size // step * step
    yield slice(0, whole), step
    if whole < size:
        yield slice(whole, size), size - whole


def _blocks(array: Array, height: int, width: int) -> Array:
    """View `(..., n, m)` as blocks `(..., n / height, m / width, height, width)`."""
    *lead, rows, columns = array.shape
    shape = (*lead, rows // height, height, columns // width, width)
    return array.reshape(shape).swapaxes(-3, -2)


def _forget_threads() -> None:
    global _helpers
    _helpers = _Helpers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
