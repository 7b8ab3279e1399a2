"""The native kernel: the choice of its variant, its threads, and arrays in its memory layout."""

import functools
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from qkv._argument_errors import public_call
from qkv.arrays import Array, DType, compute_type, whole_number

try:
    from qkv import _kernel
except ImportError:  # the kernel was not built, or was built for a different machine
    _kernel = None  # type: ignore[assignment]
compiled = _kernel
VARIANTS = (
    {}
    if compiled is None
    else {f"native-{name}": i for i, (name, _) in enumerate(compiled.variants())}
)
BACKENDS = (*VARIANTS, "numpy")  # The backends that this machine can run, fastest first.
_AMX = os.environ.get("QKV_AMX", "")  # The kernel reads this variable once, at import.
MOST_THREADS = 1024  # The kernel has the same limit (native/arguments.h).
# State: `set_num_threads` sets the number for the whole process, in one assignment.
_threads: int | None = None
# State: `_here.alone` is True in a thread whose computations must not use other threads.
_here = threading.local()
FLOAT32, INT8 = np.dtype(np.float32), np.dtype(np.int8)
ONE_DIGIT = np.dtype(np.uint8)  # The kernel's type for int8 weights without second digits.
CHUNK = 1 << 14  # The size of a chunk, whose intermediate results fit in the processor's cache.


def backend() -> str:
    """Return the name of the backend: the fastest variant of the native kernel, or `"numpy"`.

    The variants are `"native-amx"`, `"native-avx512"`, `"native-avx2"` and `"native-portable"`; the
    machine and the compiler determine which variants are available. `"native-amx"` multiplies
    bfloat16 as tiles (Intel AMX); with `QKV_AMX=model`, every processor runs a bit-exact model of
    these instructions. Computations in float64, and attention with a head size above 256, always
    use NumPy. The environment variable `QKV_BACKEND` selects a backend. If the selected backend is
    not available, a ValueError lists the available backends.

    >>> backend().startswith("native-") or backend() == "numpy"
    True
    """
    if _AMX not in ("", "model"):
        raise ValueError(f'QKV_AMX={_AMX} is unknown: set it to "model", or unset the variable')
    if _AMX and "native-amx" not in VARIANTS:
        raise ValueError(
            "QKV_AMX=model needs the native kernel, which is not installed: run `pip install .` "
            "in a clone (with a C++ compiler installed), or unset the variable"
        )
    name = os.environ.get("QKV_BACKEND", "")
    if not name:
        return BACKENDS[0]
    if name not in BACKENDS:
        raise ValueError(
            f"QKV_BACKEND={name} is not available here: choose from {', '.join(BACKENDS)}"
        )
    return name


def variant() -> int | None:
    """Return the index of the selected variant of the kernel; None selects NumPy."""
    return VARIANTS.get(backend())


def variant_and_threads() -> tuple[int | None, int]:
    """Return `variant()` and `get_num_threads()`, which every call of the kernel takes."""
    return VARIANTS.get(backend()), get_num_threads()


def get_num_threads() -> int:
    """Return the number of threads that qkv may use.

    `set_num_threads` sets this number. If `set_num_threads` was not called, the environment
    variable `QKV_NUM_THREADS` sets the number. The default is the number of cores that this process
    may use. The results of attention and linear layers do not depend on the number of threads.
    """
    if getattr(_here, "alone", False):
        return 1
    if _threads is not None:
        return _threads
    text = os.environ.get("QKV_NUM_THREADS", "")
    if not text:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        return min(len(cores) or os.cpu_count() or 1, MOST_THREADS)
    if not (text.isdecimal() and len(text) < 9 and 1 <= int(text) <= MOST_THREADS):
        raise ValueError(
            f"QKV_NUM_THREADS={text:.40} is not a number of threads: set it to "
            f"a number from 1 to {MOST_THREADS}"
        )
    return int(text)


@public_call("set_num_threads")
def set_num_threads(n: int) -> None:
    """Let attention and linear layers use `n` threads (1 to 1024) in this process.

    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    """
    global _threads
    _threads = whole_number(n, name="n", least=1, most=MOST_THREADS)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside the `with` block, compute on the calling thread only.

    Use `one_thread` in the tasks of a scheduler that already runs one task per core.
    """
    before, _here.alone = getattr(_here, "alone", False), True
    try:
        yield
    finally:
        _here.alone = before


def stays_bfloat16(dtype: DType) -> bool:
    """Return whether arrays of `dtype` are bfloat16 and stay bfloat16 between operations.

    The kernel multiplies bfloat16 directly, and adds the products in float32. Without the kernel,
    all half-precision arrays are converted to float32.
    """
    return is_bfloat16(dtype) and dtype.isnative and variant() is not None


def to_bfloat16(x: Array, weight: Array) -> Array:
    """Round `x` to bfloat16 if `weight` is bfloat16 and the kernel multiplies bfloat16 directly.

    If `x` stayed float32, the kernel would compute `x @ weight` in float32.
    """
    chosen, kind = variant(), weight.dtype
    if chosen is None or not stays_bfloat16(kind) or x.dtype == kind:
        return x
    if x.dtype != FLOAT32 or not is_contiguous(x):
        return x.astype(kind)
    y = np.empty(x.shape, kind)
    compiled.narrow(chosen, x, bits(y), get_num_threads())
    return y


def working(*arrays: Array) -> tuple[Array, ...]:
    """Convert all arrays to the dtype of the computation, float32 or float64."""
    plain = [np.asarray(array) for array in arrays]
    kind = compute_type(np.result_type(*plain))
    return tuple(array.astype(kind, copy=False) for array in plain)


def variant_for(*arrays: Array) -> int | None:
    """Return `variant()` if all arrays are float32, otherwise None, which selects NumPy."""
    plain = all(array.dtype == FLOAT32 and array.dtype.isnative for array in arrays)
    return variant() if plain else None


def as_rows(array: Array, count: int, size: int, kind: DType = FLOAT32) -> Array:
    """Reshape `(..., size)` to contiguous rows `(count, size)`, converted to `kind`."""
    array = array.astype(kind, copy=False).reshape(count, size)
    if array.strides[1] != array.itemsize or not array.flags.aligned:
        array = contiguous(array)
    return bits(array)


def rows_of(x: Array, kind: DType | None) -> tuple[int | None, int, Array]:
    """Return `variant()`, `get_num_threads()` and the rows of `x` (..., size), converted to `kind`.

    If NumPy computes numbers of this kind, or if `kind` is None, return None in place of
    `variant()`, and `x` unchanged.
    """
    chosen, threads = variant_and_threads()
    if chosen is None or kind is None or kind == np.float64:
        return None, threads, x
    return chosen, threads, as_rows(x, math.prod(x.shape[:-1]), x.shape[-1], kind)


def contiguous(array: Array) -> Array:
    """Return the array if it is contiguous and aligned, otherwise a contiguous, aligned copy."""
    return np.require(array, None, ["C", "A"])


def is_contiguous(array: Array) -> bool:
    """Return whether the array is contiguous and aligned."""
    return array.flags.c_contiguous and array.flags.aligned


def bits(array: Array) -> Array:
    """View a bfloat16 array as integers, as the kernel reads it; return other arrays unchanged."""
    return array.view(np.uint16) if is_bfloat16(array.dtype) else array


@functools.lru_cache(64)
def bits_type(dtype: DType) -> DType:
    """Return the type in which the kernel reads numbers of `dtype`."""
    return np.dtype(np.uint16) if is_bfloat16(dtype) else dtype


@functools.lru_cache(64)
def is_bfloat16(dtype: DType) -> bool:
    """Return whether `dtype` is bfloat16, in any byte order."""
    return dtype.name == "bfloat16"
