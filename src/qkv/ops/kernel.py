"""The only door to what computes: which backend runs, on how many threads, and the linear layer."""

from __future__ import annotations

import functools
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type, is_float, is_frozen, native, whole_number
from qkv.ops.activation import activate, check_activation

try:
    from qkv import _kernel
except ImportError:  # not built here, or not for this machine
    _kernel = None  # type: ignore[assignment]
kernel = _kernel

BODIES = (
    {} if kernel is None else {f"native-{name}": i for i, (name, _) in enumerate(kernel.bodies())}
)
BACKENDS = (*BODIES, "numpy")  # those that this machine can run, the best first

MOST_THREADS = 1024  # native/arguments.h

_threads: int | None = None
_lock = threading.RLock()
_jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()  # for the threads of `run_all`
_helpers: list[threading.Thread] = []
_here = threading.local()  # what a thread of `run_all` works for


def backend() -> str:
    """The name of what computes here: the best body of the native kernel, or `"numpy"`.

    `"native-avx512"`, `"native-avx2"` and `"native-portable"` are the kernel's bodies; which there
    are depends on the machine and the compiler. float64, and attention of a head size above 256,
    is computed by NumPy in any case. The environment variable `QKV_BACKEND` picks one; a ValueError
    names those there are when it asks for one that is not here.

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
    """How many threads may compute: what was set, else `QKV_NUM_THREADS`, else the cores.

    The cores are those that this process may run on. Attention and linear layers give the same bits
    on any number.
    """
    if _threads is not None:
        return _threads
    wanted = os.environ.get("QKV_NUM_THREADS", "")
    if not wanted:
        return min(_cores(), MOST_THREADS)
    if not (wanted.isdecimal() and len(wanted) < 9 and 1 <= int(wanted) <= MOST_THREADS):
        raise ValueError(
            f"QKV_NUM_THREADS={wanted:.40} is not a number of threads: write 1 to {MOST_THREADS}"
        )
    return int(wanted)


def set_num_threads(n: int) -> None:
    """Let attention and linear layers use `n` threads (from 1 to 1024) in this process.

    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    """
    global _threads
    _threads = whole_number(n, call="set_num_threads", name="n", least=1, most=MOST_THREADS)


def run_all(task: Callable[..., None], cases: Sequence[tuple[Any, ...]]) -> None:
    """Call `task(*case)` for every case, on as many threads as may be used.

    The cases must be independent of each other; how they were cut must not depend on the number of
    threads. After an error, an interrupt included, no further case begins, and it is raised once
    all that had begun are done; long ones ask `go_on` in between.
    """
    threads = 1 if len(cases) < 2 else min(get_num_threads(), len(cases))
    if threads == 1:
        with one_blas_thread():
            for case in cases:
                task(*case)
        return
    remaining = iter(cases)  # next() on it is atomic: each case is taken once
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
            except BaseException as error:  # an interrupt: whoever helps still writes results
                errors.append(error)
    if errors:
        raise errors[0]


class _Stopped(Exception):
    """Another case has failed."""


def go_on() -> None:
    """Between the pieces of a case of `run_all`: ends it where another one has failed."""
    if getattr(_here, "errors", None):
        raise _Stopped


def _ask_for_help(count: int, join: Callable[[], None]) -> None:
    """Have `join` called on up to `count` other threads, as far as there are any to be had."""
    try:
        while len(_helpers) < count:
            helper = threading.Thread(target=_help, args=(_jobs,), name="qkv", daemon=True)
            helper.start()
            _helpers.append(helper)
    except RuntimeError:  # too many, or the process is about to end
        count = len(_helpers)
    for _ in range(count):
        _jobs.put(join)


def _help(jobs: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        jobs.get()()


def linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
    gate: Array | None = None,
    residual: Array | None = None,
    wide: bool = False,
) -> Array:
    """`activation(x @ weight + bias) * gate + residual`: every linear layer goes through here.

    The kernel lays weights out anew before it multiplies by them. A frozen weight (one that nothing
    can be written to, see `is_frozen`) is laid out once, and kept so for as long as it lives.

    Args:
        x: `(..., in)`.
        weight: `(in, out)`, in any strides.
        bias: `(out,)`.
        activation: a name that `activate` knows.
        gate: `(..., out)`, multiplies what the activation gave.
        residual: `(..., out)`, added last.
        wide: whether the sums of halves stay float32.

    Returns:
        `(..., out)` of the type that `x` and `weight` promote to. Halves are summed in float32 and
        rounded once, or left so.

    >>> linear(np.ones((1, 2)), np.array([[1.0], [2.0]]), np.array([-4.0]), activation="relu")
    array([[0.]])
    """
    if activation is not None:
        check_activation(activation, call="linear")
    here, kind = body(), _product_type(x.dtype, weight.dtype)
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[:1]:
        here = None  # NumPy has an error for it
    if here is not None and kind is not None and kind != np.float64:
        result = _FLOAT32 if wide else kind
        return _kernel_linear(here, kind, result, x, weight, bias, activation, gate, residual)
    if kind is not None:
        work = compute_type(kind)
        x, weight = x.astype(work, copy=False), weight.astype(work, copy=False)
    y = x @ weight if kind is None else multiply(x, weight)  # (..., out)
    if bias is not None:
        y += bias
    if activation is not None:
        y = activate(y, activation)
    if gate is not None:
        y *= gate
    if residual is not None:
        y += residual
    return y if kind is None or wide else y.astype(kind, copy=False)


def multiply(left: Array, right: Array) -> Array:
    """`left (..., in) @ right (in, out)` of floats by NumPy, cut into pieces by shapes alone.

    The same bits on any number of threads, whatever else the process does.
    """
    if right.ndim != 2 or left.shape[-1:] != right.shape[:1]:
        return np.asarray(left @ right)  # NumPy has an error for it
    depth, columns = right.shape
    flat = left.reshape(-1, depth) if left.size else np.empty((0, depth), left.dtype)
    rows = math.prod(left.shape[:-1])
    y = np.zeros((rows, columns), np.result_type(left, right))
    high, wide = _piece(rows, columns, depth)
    cases = [
        (flat[i : i + high], right[:, j : j + wide], y[i : i + high, j : j + wide])
        for i in range(0, len(flat), high)
        for j in range(0, columns, wide)
    ]
    run_all(np.matmul, cases)
    return y.reshape(*left.shape[:-1], columns)


def _piece(rows: int, columns: int, depth: int) -> tuple[int, int]:
    """How large the pieces of a product are: enough to share, each worth a thread's while."""
    work = (rows + 8) * columns * depth  # reading `right` takes as long as to multiply a few rows
    pieces = max(min(8, work >> 24), work >> 28)
    high, wide = max(rows, 1), max(columns, 1)
    while high * wide * pieces > rows * columns and max(high, wide) > 128:
        if high > wide:
            high = -(-high // 2)
        else:
            wide = -(-wide // 2)
    return high, wide


@functools.cache
def _product_type(x: np.dtype[Any], weight: np.dtype[Any]) -> np.dtype[Any] | None:
    """The float type that a product of these two has; None for others, which NumPy knows best."""
    if not (is_float(x) and is_float(weight)):
        return None
    try:
        return native(np.result_type(x, weight))
    except TypeError:  # float16 and bfloat16
        return None


_FLOAT32 = np.dtype(np.float32)
# native/problem.h, where a rounded constant makes no difference
ACTIVATION_CODES = {None: 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "relu": 4, "gelu_bloom": 2}


def _kernel_linear(
    here: int,
    kind: np.dtype[Any],
    result: np.dtype[Any],
    x: Array,
    weight: Array,
    bias: Array | None,
    activation: str | None,
    gate: Array | None,
    residual: Array | None,
) -> Array:
    threads = get_num_threads()
    depth, width = weight.shape
    shape = (*x.shape[:-1], width)
    rows = math.prod(x.shape[:-1])
    y = np.empty((rows, width), result)
    packed = _packed(weight, here, kind, threads)
    if bias is not None:
        bias = _rows(bias, 1, width, _FLOAT32)
    if gate is not None:
        gate = _rows(_as_wide(gate, shape), rows, width, result)
    if residual is not None:
        residual = _rows(_as_wide(residual, shape), rows, width, result)
    x = _rows(x, rows, depth, kind)
    code = ACTIVATION_CODES[activation]
    kernel.linear(here, x, packed, bias, code, gate, residual, _bits(y), threads)
    return y.reshape(shape)


def normalize(
    x: Array, weight: Array, bias: Array | None, *, eps: float, centred: bool
) -> tuple[Array, Array] | None:
    """LayerNorm or RMSNorm of `x` (..., D) in the kernel; None where that does not compute it.

    Args:
        x: (..., D).
        weight: (D,) of any float type.
        bias: (D,) of any float type.
        eps: added to the mean square.
        centred: whether the mean is taken from each vector first.

    Returns:
        What `qkv.layers.LayerNorm` says, and what was divided by, (..., 1).
    """
    here, kind = body(), x.dtype
    if here is None or (kind != _FLOAT32 and not stays_bfloat16(kind)) or x.shape[-1:] == (0,):
        return None
    rows, size = math.prod(x.shape[:-1]), x.shape[-1]
    y, scale = np.empty((rows, size), kind), np.empty(rows, np.float32)
    if bias is not None:
        bias = _rows(bias, 1, size, _FLOAT32)
    weight = _rows(weight, 1, size, _FLOAT32)
    x, shape = _rows(x, rows, size, kind), x.shape
    kernel.norm(here, x, weight, bias, eps, centred, _bits(y), scale, get_num_threads())
    return y.reshape(shape), scale.reshape(*shape[:-1], 1)


class Prepared:
    """Products and norms in the kernel for many small calls: what they need is looked up once.

    Arrays are (rows, size), their numbers together; bfloat16 by its bits, see `handed`.

    Attributes:
        body: which of the kernel's bodies computes.
        kind: float32 or bfloat16, what products are of.
        bits: what arrays of them are handed over as.
        threads: how many may compute.
    """

    def __init__(self, body: int, kind: np.dtype[Any], threads: int) -> None:
        self.body, self.kind, self.threads = body, kind, threads
        self.bits = _FLOAT32 if _is_plain(kind) else np.dtype(np.uint16)

    def handed(self, x: Array) -> Array:
        """Numbers as products take them."""
        return x if x.dtype == self.bits else x.astype(self.kind, copy=False).view(self.bits)

    def joins(self, weights: Sequence[Array]) -> bool:
        """Whether products by these frozen weights (in, out) can be one: all panels are full."""
        return all(
            self._size(len(weight), weight.shape[1]) < self._size(len(weight), weight.shape[1] + 1)
            for weight in weights
        )

    def linear(
        self, weight: Array, bias: Array | None = None, activation: str | None = None
    ) -> Callable[..., Array]:
        """`linear` by a frozen weight; with a residual of float32 its result is that too."""
        packed = _packed(weight, self.body, self.kind, self.threads)
        return self._product(packed, weight.shape[1], bias, activation)

    def joined_linear(self, weights: Sequence[Array], bias: Array | None) -> Callable[..., Array]:
        """The same by several that `joins` is true of, side by side; `bias` is that of all."""
        sizes = [self._size(len(weight), weight.shape[1]) for weight in weights]
        whole, end = _lasting_room(sum(sizes)), 0
        for weight, size in zip(weights, sizes, strict=True):
            part, end = whole[end : end + size], end + size
            _pack_into(part, weight, self.body, self.kind, self.threads)
            _keep(weight, self.body, self.kind, part)
        return self._product(whole, sum(weight.shape[1] for weight in weights), bias, None)

    def _size(self, depth: int, width: int) -> int:
        """How many float32 such a weight takes when it is packed."""
        return kernel.packed_size(self.body, depth, width, np.empty((0, 0), self.bits))

    def _product(
        self, packed: Array, width: int, bias: Array | None, activation: str | None
    ) -> Callable[..., Array]:
        bits, threads, here, code = self.bits, self.threads, self.body, ACTIVATION_CODES[activation]
        addend = None if bias is None else _rows(bias, 1, width, _FLOAT32)

        def run(x: Array, gate: Array | None = None, residual: Array | None = None) -> Array:
            y = np.empty((len(x), width), bits if residual is None else residual.dtype)
            kernel.linear(here, x, packed, addend, code, gate, residual, y, threads)
            return y

        return run

    def norm(
        self, weight: Array, bias: Array | None, *, eps: float, centred: bool
    ) -> Callable[[Array], Array]:
        """`normalize` by this weight; the result has the type of its input."""
        threads, here, size = self.threads, self.body, len(weight)
        factor = _rows(weight, 1, size, _FLOAT32)
        addend = None if bias is None else _rows(bias, 1, size, _FLOAT32)

        def run(x: Array) -> Array:
            y, scale = np.empty(x.shape, x.dtype), np.empty(len(x), np.float32)
            kernel.norm(here, x, factor, addend, eps, centred, y, scale, threads)
            return y

        return run


def stays_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether a layer hands numbers of `dtype`, a half, from one operation to the next as they are.

    The kernel multiplies bfloat16 as it is, with sums in float32. In NumPy all halves are widened.
    """
    return not _is_plain(dtype) and dtype.isnative and body() is not None


def narrowed(x: Array, weight: Array) -> Array:
    """`x` as a product with `weight` takes it: rounded to bfloat16 where both are to stay halves.

    Without it, the product of float32 with bfloat16 is one of float32.
    """
    here, kind = body(), weight.dtype
    if here is None or not stays_bfloat16(kind) or x.dtype == kind:
        return x
    if x.dtype != _FLOAT32 or not (x.flags.c_contiguous and x.flags.aligned):
        return x.astype(kind)
    y = np.empty(x.shape, kind)
    kernel.narrow(here, x, _bits(y), get_num_threads())
    return y


def _as_wide(array: Array, shape: tuple[int, ...]) -> Array:
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _bits(array: Array) -> Array:
    """An array as the kernel takes it: bfloat16 by its bits."""
    return array if _is_plain(array.dtype) else array.view(np.uint16)


@functools.cache
def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.name != "bfloat16"


def _rows(array: Array, rows: int, columns: int, kind: np.dtype[Any]) -> Array:
    """`(..., columns)` as `(rows, columns)` that the kernel can read: of `kind`, rows unbroken."""
    array = array.astype(kind, copy=False).reshape(rows, columns)
    if array.strides[1] != array.itemsize or not array.flags.aligned:
        array = np.require(array, None, ["C", "A"])
    return _bits(array)


# Packed weights by identity, body and type, each for as long as the weight itself lives.
_kept: dict[tuple[int, int, np.dtype[Any]], tuple[weakref.ref[Array], Array]] = {}


def _packed(weight: Array, here: int, kind: np.dtype[Any], threads: int) -> Array:
    """The weight as the kernel multiplies by it."""
    key = (id(weight), here, kind)
    frozen = is_frozen(weight)
    if frozen and (kept := _kept.get(key)) is not None and kept[0]() is weight:
        return kept[1]
    _forget(key)  # it was thawed
    if not frozen:
        return packed_once(weight, here, threads, kind)
    packed = _lasting_room(_packed_size(weight, here, kind))
    _pack_into(packed, weight, here, kind, threads)
    _keep(weight, here, kind, packed)
    return packed


def packed_once(weight: Array, here: int, threads: int, kind: np.dtype[Any] = _FLOAT32) -> Array:
    """The weight (in, out) as the kernel's body `here` multiplies by it, for one product."""
    size = _packed_size(weight, here, kind)
    packed = _aligned(np.empty(size + 16, np.float32), 64)[:size]
    _pack_into(packed, weight, here, kind, threads)
    return packed


def _packed_size(weight: Array, here: int, kind: np.dtype[Any]) -> int:
    """How many float32 that takes."""
    depth, width = weight.shape
    return kernel.packed_size(here, depth, width, _bits(np.empty((0, 0), kind)))


def _pack_into(packed: Array, weight: Array, here: int, kind: np.dtype[Any], threads: int) -> None:
    kernel.pack(here, _bits(np.require(weight, kind, "A")), packed, threads)


def _keep(weight: Array, here: int, kind: np.dtype[Any], packed: Array) -> None:
    """Keep a packed weight for as long as the weight lives."""
    key = (id(weight), here, kind)
    _forget(key)
    _kept[key] = weakref.ref(weight, lambda _: _forget(key)), packed
    _count(packed.base, packed.nbytes)


def _forget(key: tuple[int, int, np.dtype[Any]]) -> None:
    if (found := _kept.pop(key, None)) is not None:
        _count(found[1].base, -found[1].nbytes)


# Weights that are kept stand together: NumPy asks for large pages (2 MB) only for large arrays, and
# out of small pages a weight that is read once per token comes at half the machine's rate.
_LARGE_PAGE = 1 << 21
_SHELF = 1 << 24  # bytes of an array that several weights share
_shelf = np.empty(0, np.float32)  # what is left of the last one
_shelf_lock = threading.RLock()
_taken: dict[int, int] = {}  # how many bytes of a shelf are those of weights that live, by its id


def _lasting_room(count: int) -> Array:
    """Room for so many float32, beginning at a multiple of 64 bytes, on large pages."""
    global _shelf
    size = -(-count // 16) * 16
    if size * 4 > _SHELF // 4:
        return _aligned(np.empty(size + _LARGE_PAGE // 4, np.float32), _LARGE_PAGE)[:count]
    with _shelf_lock:
        full = _shelf.base
        if size > len(_shelf):
            _shelf = _aligned(np.empty((_SHELF + _LARGE_PAGE) // 4, np.float32), _LARGE_PAGE)
            _count(full, 0)
        room, _shelf = _shelf[:count], _shelf[size:]
    return room


def _count(shelf: Any, size: int) -> None:
    """Count `size` more bytes of a shelf as taken. One that becomes nearly empty is let go.

    The few weights that still stand there are laid out once more when they are needed.
    """
    if shelf is None:  # there was none yet
        return
    with _shelf_lock:
        taken = _taken.get(id(shelf), 0) + size
        if size > 0 or shelf is _shelf.base or taken * 4 >= shelf.nbytes:
            _taken[id(shelf)] = taken
            return
        _taken.pop(id(shelf), None)
        if taken:
            for key, (_, packed) in list(_kept.items()):
                if packed.base is shelf:
                    _kept.pop(key, None)


def _aligned(room: Array, to: int) -> Array:
    """The part of an array of float32 that begins at a multiple of `to` bytes."""
    return room[-room.__array_interface__["data"][0] % to // 4 :]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_one_blas_thread = 0  # how many callers are in `one_blas_thread`
_blas_threads: dict[int, int] = {}  # what was set before the first came, by place in `_blas()`


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep NumPy's products on the thread that asks for them.

    Cut over several threads they round differently; and several threads of ours, each with several
    of BLAS's, would fight for the same cores (up to ten times slower on a busy machine). The
    setting belongs to the whole process: the first caller makes it, the last one takes it back.
    """
    global _one_blas_thread
    libraries, inside = _blas(), 0
    try:
        with _lock:
            for which, (library, set_threads) in enumerate(libraries):
                if (threads := library.num_threads) != 1:
                    _blas_threads[which] = threads
                    set_threads(1)
            _one_blas_thread += 1
            inside = 1
        yield
    finally:
        with _lock:
            _one_blas_thread -= inside
            if not _one_blas_thread:
                for which, (_, set_threads) in enumerate(libraries):
                    if which in _blas_threads:
                        set_threads(_blas_threads[which])
                        del _blas_threads[which]


@functools.cache
def _blas() -> list[tuple[Any, Callable[[int], None]]]:
    """The libraries that multiply for NumPy, and what sets the threads of each.

    threadpoolctl 3.7 on obeys only the first Python thread that sets them, as long as that one
    lives; here callers are counted, so what it wraps is called.
    """
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return [(it, getattr(it, "_real_set_num_threads", it.set_num_threads)) for it in found]


def _forget_threads() -> None:
    """A child process has none of its parent's threads, nor its locks."""
    global _helpers, _jobs, _lock, _shelf_lock, _one_blas_thread
    _helpers, _jobs, _one_blas_thread = [], SimpleQueue(), 0
    _lock, _shelf_lock = threading.RLock(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(names)
