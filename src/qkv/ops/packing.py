"""Pack weights into the kernel's layout, cache packed weights, and prepare fast products."""

import mmap
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from qkv.arrays import Array, DType
from qkv.ops.activation import activation_named
from qkv.ops.kernel import FLOAT32, bits, bits_type, compiled
from qkv.ops.threads import lock

# Packed weights, keyed by id, body and dtype. When a weight is deleted, its entry is removed.
_kept: dict[tuple[int, int, DType], tuple[weakref.ref[Array], Array]] = {}
# Several packed weights share a large array, called a shelf, because NumPy requests large memory
# pages (2 MB) only for large arrays. The processor reads small pages half as fast as large pages.
_LARGE_PAGE = 1 << 21
_SHELF = 1 << 24  # The number of bytes of a shelf.
_shelf = np.empty(0, np.float32)  # The free part of the newest shared array.
_taken: dict[int, int] = {}  # The number of used bytes of each shelf, keyed by the shelf's id.


def is_frozen(array: Array) -> bool:
    """Return whether `array` and all its base arrays are read-only.

    >>> weight = np.ones((2, 3))
    >>> view = weight.T
    >>> view.setflags(write=False)
    >>> is_frozen(view)
    False
    >>> weight.setflags(write=False)
    >>> is_frozen(view)
    True
    """
    while not array.flags.writeable:
        if array.base is None or isinstance(array.base, bytes | mmap.mmap):
            return True
        if not isinstance(array.base, np.ndarray):
            return False  # another library owns the memory and may change it
        array = array.base
    return False


def frozen(array: Array) -> Array:
    """Make `array` read-only in place, and return a view of it.

    NumPy cannot make this view writeable again. If `array` is itself a view, its base arrays become
    read-only too. Therefore, do not pass a view of an array that belongs to the user.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner.setflags(write=False)
        owner = owner.base
    return array.view()


def packed(weight: Array, chosen: int, kind: DType, threads: int) -> Array:
    """Return a packed copy of the weight; the copy is cached if the weight is frozen."""
    key = (id(weight), chosen, kind)
    if not is_frozen(weight):
        _forget(key)  # the weight may have changed since it was packed
        return packed_once(weight, chosen, kind, threads)
    if (kept := _kept.get(key)) is not None and kept[0]() is weight:
        return kept[1]
    return packed_together([weight], chosen, kind, threads)


def packed_together(weights: Sequence[Array], chosen: int, kind: DType, threads: int) -> Array:
    """Pack frozen weights side by side; keep each packed copy as long as its weight exists."""
    sizes = [packed_size(weight.shape, chosen, kind) for weight in weights]
    memory, end = _lasting_memory(sum(sizes)), 0
    for weight, size in zip(weights, sizes, strict=True):
        part, end, key = memory[end : end + size], end + size, (id(weight), chosen, kind)
        _pack_into(part, weight, chosen, kind, threads)
        _forget(key)
        _kept[key] = weakref.ref(weight, partial(_forget, key)), part
        _count(part.base, part.nbytes)
    return memory


def packed_once(weight: Array, chosen: int, kind: DType, threads: int) -> Array:
    """Return a packed copy of a weight (in, out) for a single product; do not cache the copy."""
    size = packed_size(weight.shape, chosen, kind)
    memory = _aligned(np.empty(size + 16, np.float32), 64)[:size]
    _pack_into(memory, weight, chosen, kind, threads)
    return memory


def packed_size(shape: tuple[int, ...], chosen: int, kind: DType) -> int:
    """Return how many float32 numbers a packed weight of this shape takes."""
    depth, width = shape
    return compiled.packed_size(chosen, depth, width, bits(np.empty((0, 0), kind)))


def _pack_into(packed: Array, weight: Array, chosen: int, kind: DType, threads: int) -> None:
    """Pack a weight into the array `packed`, which has the size that `packed_size` returns."""
    compiled.pack(chosen, bits(np.require(weight, kind, "A")), packed, threads)


def _forget(key: tuple[int, int, DType], _: object = None) -> None:
    if (kept := _kept.pop(key, None)) is not None:
        _count(kept[1].base, -kept[1].nbytes)


def _lasting_memory(count: int) -> Array:
    """Return memory for `count` float32 numbers on large pages, aligned to 64 bytes."""
    global _shelf
    size = -(-count // 16) * 16
    if size * 4 > _SHELF // 4:
        return _aligned(np.empty(size + _LARGE_PAGE // 4, np.float32), _LARGE_PAGE)[:count]
    with lock():
        full = _shelf.base
        if size > len(_shelf):
            _shelf = _aligned(np.empty((_SHELF + _LARGE_PAGE) // 4, np.float32), _LARGE_PAGE)
            _count(full, 0)
        memory, _shelf = _shelf[:count], _shelf[size:]
    return memory


def _count(shelf: Any, size: int) -> None:
    """Add `size` to a shelf's number of used bytes; `size` is negative if bytes are freed.

    If only few bytes remain in use, delete the shelf. If the deleted shelf still contained packed
    weights, these weights are packed again at their next use.
    """
    if shelf is None:  # no shared array has been made yet
        return
    with lock():
        taken = _taken.get(id(shelf), 0) + size
        if size > 0 or shelf is _shelf.base or taken * 4 >= shelf.nbytes:
            _taken[id(shelf)] = taken
            return
        _taken.pop(id(shelf), None)
        if taken:
            for key, (_, packed) in list(_kept.items()):
                if packed.base is shelf:
                    _kept.pop(key, None)


def _aligned(memory: Array, to: int) -> Array:
    """Skip numbers of a float32 array until its address is a multiple of the argument `to`."""
    return memory[-memory.__array_interface__["data"][0] % to // 4 :]


class Prepared:
    """Make functions that compute products and norms in the kernel without any checks.

    The functions take arrays (rows, size) with contiguous rows. Before a call, convert each array
    with `Prepared.handed`, because the kernel takes bfloat16 numbers as uint16.

    Attributes:
        body: the index of the kernel's variant.
        kind: float32 or bfloat16, the dtype of the factors.
        bits: the dtype of the arrays that the kernel gets: float32, or uint16 for bfloat16.
        threads: the maximum number of threads.
    """

    def __init__(self, body: int, kind: DType, threads: int) -> None:
        self.body, self.kind, self.threads = body, kind, threads
        self.bits = bits_type(kind)

    def handed(self, x: Array) -> Array:
        """Convert an array to `kind`, and view it as `bits`."""
        return x if x.dtype == self.bits else x.astype(self.kind, copy=False).view(self.bits)

    def joins(self, weights: Sequence[Array]) -> bool:
        """Return whether these weights (in, out) can be packed side by side without padding."""
        shapes, kind = [weight.shape for weight in weights], (self.body, self.kind)
        return all(packed_size((d, w), *kind) < packed_size((d, w + 1), *kind) for d, w in shapes)

    def linear(
        self, weight: Array, bias: Array | None = None, activation: str | None = None
    ) -> Callable[..., Array]:
        """Return a function that applies `linear` with a frozen weight.

        A float32 residual makes the result float32.
        """
        whole = packed(weight, self.body, self.kind, self.threads)
        return self._product(whole, weight.shape[1], bias, activation)

    def joined_linear(self, weights: Sequence[Array], bias: Array | None) -> Callable[..., Array]:
        """Return a function that multiplies its input by several weight matrices at once.

        `joins(weights)` must be True. The biases for all weights are concatenated in `bias`.
        """
        whole = packed_together(weights, self.body, self.kind, self.threads)
        return self._product(whole, sum(weight.shape[1] for weight in weights), bias, None)

    def _product(
        self, weights: Array, width: int, bias: Array | None, activation: str | None
    ) -> Callable[..., Array]:
        bits, threads, chosen = self.bits, self.threads, self.body
        code = 0 if activation is None else activation_named(activation, call="linear").code
        addend = None if bias is None else np.require(bias, FLOAT32, ["C", "A"])

        def run(x: Array, gate: Array | None = None, residual: Array | None = None) -> Array:
            y = np.empty((len(x), width), bits if residual is None else residual.dtype)
            compiled.linear(chosen, x, weights, addend, code, gate, residual, y, threads)
            return y

        return run

    def norm(
        self, weight: Array, bias: Array | None, *, eps: float, centred: bool
    ) -> Callable[[Array], Array]:
        """Return a function that applies `normalize`; its result has the dtype of its input."""
        threads, chosen = self.threads, self.body
        factor = np.require(weight, FLOAT32, ["C", "A"])
        addend = None if bias is None else np.require(bias, FLOAT32, ["C", "A"])

        def run(x: Array) -> Array:
            y, scale = np.empty(x.shape, x.dtype), np.empty(len(x), np.float32)
            compiled.norm(chosen, x, factor, addend, eps, centred, y, scale, threads)
            return y

        return run
