"""The only door to what computes: which backend runs, on how many threads, and the linear layer."""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array, whole_number

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

try:
    from qkv import _kernel
except ImportError:  # not built here, or not for this machine
    _kernel = None  # type: ignore[assignment]
kernel = _kernel

BODIES = (
    {} if kernel is None else {f"native-{name}": i for i, (name, _) in enumerate(kernel.bodies())}
)
BACKENDS = (*BODIES, "numpy")  # those that this machine can run, the best first

_threads: int | None = None
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def backend() -> str:
    """The name of what computes here: the best body of the native kernel, or `"numpy"`.

    `"native-avx512"`, `"native-avx2"` and `"native-portable"` are the kernel's bodies; which there
    are depends on the machine and the compiler. float64 is computed by NumPy in any case. The
    environment variable `QKV_BACKEND` picks one; a ValueError names those there are when it asks
    for one that is not here.

    >>> backend() in ("native-avx512", "native-avx2", "native-portable", "numpy")
    True
    """
    wanted = os.environ.get("QKV_BACKEND", "")
    if not wanted:
        return BACKENDS[0]
    if wanted not in BACKENDS:
        raise ValueError(f"QKV_BACKEND={wanted} is not available here: choose {_listed(BACKENDS)}")
    return wanted


def body() -> int | None:
    """The kernel's body that computes here, for the first argument of its functions; or None."""
    return BODIES.get(backend())


def get_num_threads() -> int:
    """How many threads attention may use: what was set, else `QKV_NUM_THREADS`, else the cores.

    The cores are those that this process may run on. Attention gives the same bits on any number.
    The linear layers are NumPy's products, which follow `OPENBLAS_NUM_THREADS` instead.
    """
    if _threads is not None:
        return _threads
    wanted = os.environ.get("QKV_NUM_THREADS", "")
    if not wanted:
        return _cores()
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ValueError(f"QKV_NUM_THREADS={wanted} is not a number of threads: write 1 or more")
    return int(wanted)


def set_num_threads(n: int) -> None:
    """Let attention use `n` threads (at least 1) in this process.

    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    """
    global _threads
    _threads = whole_number(n, call="set_num_threads", name="n", least=1)


def run_all(task: Callable[..., None], cases: Sequence[tuple[Any, ...]]) -> None:
    """Call `task(*case)` for every case, on as many threads as may be used.

    The cases must be independent of each other; how they were cut must not depend on the number of
    threads. After an error no further case begins, and it is raised once all that had begun are
    done.
    """
    threads = min(get_num_threads(), len(cases))
    remaining = iter(cases)  # next() on it is atomic: each case is taken once
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for case in remaining:
                task(*case)
        except BaseException as error:
            errors.append(error)
            for _ in remaining:
                pass

    with one_blas_thread():
        helpers = [_workers(threads - 1).submit(work) for _ in range(threads - 1)]
        work()
        for helper in helpers:
            if not helper.cancel():
                helper.result()
    if errors:
        raise errors[0]


def linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    """`activation(x @ weight + bias)`: every linear layer goes through here.

    Args:
        x: `(..., in)`.
        weight: `(in, out)`.
        bias: `(out,)`.
        activation: a name that `activate` knows.

    >>> linear(np.ones((1, 2)), np.array([[1.0], [2.0]]), np.array([-4.0]), activation="relu")
    array([[0.]])
    """
    y: Array = x @ weight  # (..., out)
    if bias is not None:
        y += bias
    if activation is not None:
        y = activate(y, activation)
    return y


def activate(x: Array, name: str) -> Array:
    """Apply the activation `name` to each number of `x`, float32 or float64.

    `gelu` is `x / 2 * (1 + erf(x / sqrt(2)))` and `gelu_tanh` its approximation (Hendrycks and
    Gimpel 2016), `silu` is `x * sigmoid(x)`, `relu` is `max(x, 0)`.

    >>> activate(np.array([-1.0, 0.0, 2.0]), "relu")
    array([0., 0., 2.])
    """
    if name not in ACTIVATIONS:
        raise ValueError(
            f"activate: there is no activation {name!r}: choose {_listed(ACTIVATIONS)}"
        )
    function = ACTIVATIONS[name]
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, flat.size, _CHUNK):
            out[start : start + _CHUNK] = function(flat[start : start + _CHUNK])
    return out.reshape(x.shape)


_CHUNK = 1 << 14  # numbers at a time, so that what lies between two steps stays in the cache


def _gelu(x: Array) -> Array:
    y: Array = 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))
    return y


def _gelu_tanh(x: Array) -> Array:
    y: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return y


def _silu(x: Array) -> Array:
    y: Array = x / (1 + np.exp(-x))
    return y


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "relu": _relu,
}

# erf(x) = tanh(x * P(x * x)) for |x| <= 4.2, where float32 has reached 1, highest power first:
# fitted by weighted least squares to atanh(erf(x)) / x on Chebyshev points, within 9.1e-8 of erf.
_ERF = (
    1.5361411e-10, -7.4093776e-09, 1.3827980e-07, -1.1327262e-06, 5.6051601e-07,
    7.1455099e-05, -5.9857761e-04, -2.0412552e-04, 1.0277134e-01, 1.1283792e00,
)  # fmt: skip


def _erf(x: Array) -> Array:
    if x.dtype == np.float64:
        return np.fromiter(map(math.erf, x.tolist()), np.float64, x.size)
    x = np.clip(x, -4.2, 4.2)
    square = x * x
    p = np.full_like(x, _ERF[0])
    for coefficient in _ERF[1:]:
        p *= square
        p += x.dtype.type(coefficient)
    p *= x
    return np.tanh(p, out=p)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _workers(size: int) -> ThreadPoolExecutor:
    """The pool, made on first use and made anew when more threads are wanted."""
    global _pool, _pool_size
    if _pool is None or _pool_size < size:
        from concurrent.futures import ThreadPoolExecutor

        _pool, _pool_size = ThreadPoolExecutor(size, thread_name_prefix="qkv"), size
    return _pool


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep NumPy's products on the thread that asks for them, for one caller at a time.

    Cut over several threads they round differently; and several threads of ours, each with several
    of BLAS's, would fight for the same cores (up to ten times slower on a busy machine). The
    setting belongs to the whole process, hence the lock.
    """
    with _lock, _blas().limit(limits=1):
        yield


@functools.cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def _forget_threads() -> None:
    """A child process has none of its parent's threads, nor its locks."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(names)
