"""Packed weights in the kernel's layout, a cache of packed weights, and fast products."""

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

# Packed weights, keyed by id, body and type; an entry is removed when its weight is deleted.
_kept: dict[tuple[int, int, DType], tuple[weakref.ref[Array], Array]] = {}
# Several kept weights share a large array (a shelf), because NumPy requests large pages (2 MB) only
# for large arrays. The processor reads small pages at half the rate.
_LARGE_PAGE = 1 << 21
_SHELF = 1 << 24  # The number of bytes of a shelf.
_shelf = np.empty(0, np.float32)  # The free part of the newest shelf.
_taken: dict[int, int] = {}  # The number of bytes in use, keyed by the id of a shelf.


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
            return False  # memory that belongs to another library
        array = array.base
    return False


def frozen(array: Array) -> Array:
    """Make `array` read-only in place, and return a view of it.

    NumPy cannot make a view of a frozen array writeable. If `array` is a view, its base arrays are
    frozen too, so they must not belong to the user.
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
        _forget(key)  # it was thawed
        return packed_once(weight, chosen, kind, threads)
    if (kept := _kept.get(key)) is not None and kept[0]() is weight:
        return kept[1]
    return packed_together([weight], chosen, kind, threads)


def packed_together(weights: Sequence[Array], chosen: int, kind: DType, threads: int) -> Array:
    """Pack frozen weights side by side, and keep each packed copy for its weight's lifetime."""
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
    """Return a packed copy of a weight (in, out), for one product by the kernel's body `chosen`."""
    size = packed_size(weight.shape, chosen, kind)
    memory = _aligned(np.empty(size + 16, np.float32), 64)[:size]
    _pack_into(memory, weight, chosen, kind, threads)
    return memory


def packed_size(shape: tuple[int, ...], chosen: int, kind: DType) -> int:
    """Return the size of a packed weight of this shape, counted in float32 numbers."""
    depth, width = shape
    return compiled.packed_size(chosen, depth, width, bits(np.empty((0, 0), kind)))


def _pack_into(packed: Array, weight: Array, chosen: int, kind: DType, threads: int) -> None:
    """Pack a weight into the memory `packed`, which has the size `packed_size`."""
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
    """Add `size` to the used bytes of a shelf, and drop the shelf if it is nearly empty.

    For freed bytes, `size` is negative. If weights remain on a dropped shelf, each is packed again
    at its next use.
    """
    if shelf is None:  # before the first shelf
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
    """Return the part of a float32 array that begins at a multiple of `to` bytes."""
    return memory[-memory.__array_interface__["data"][0] % to // 4 :]


class Prepared:
    """Products and norms in the kernel for many small calls; constants are looked up only once.

    Arrays are (rows, size) with contiguous rows. `handed` prepares arrays for the kernel: bfloat16
    as integers.

    Attributes:
        body: the kernel's body that computes.
        kind: float32 or bfloat16, the type of the factors.
        bits: the type in which the kernel reads such arrays.
        threads: the maximum number of threads.
    """

    def __init__(self, body: int, kind: DType, threads: int) -> None:
        self.body, self.kind, self.threads = body, kind, threads
        self.bits = bits_type(kind)

    def handed(self, x: Array) -> Array:
        """Convert numbers to the type of a product's factors."""
        return x if x.dtype == self.bits else x.astype(self.kind, copy=False).view(self.bits)

    def joins(self, weights: Sequence[Array]) -> bool:
        """Return whether these frozen weights (in, out) fit side by side, without padding."""
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
        """Return a function that applies several weights in one product; `joins` must accept them.

        `bias` holds the concatenated biases of all weights.
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
        """Return a function that applies `normalize`; its result has the type of its input."""
        threads, chosen = self.threads, self.body
        factor = np.require(weight, FLOAT32, ["C", "A"])
        addend = None if bias is None else np.require(bias, FLOAT32, ["C", "A"])

        def run(x: Array) -> Array:
            y, scale = np.empty(x.shape, x.dtype), np.empty(len(x), np.float32)
            compiled.norm(chosen, x, factor, addend, eps, centred, y, scale, threads)
            return y

        return run
