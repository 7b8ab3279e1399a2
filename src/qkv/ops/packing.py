"""Pack weights into the kernel's layout, cache packed weights, and prepare fast products."""

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from qkv.arrays import Array, DType
from qkv.ops._blocks import GROUP, BlockMatrix
from qkv.ops._int8_rows import AT_ONCE, to_digits
from qkv.ops._lazy import LazyMatrix, StoredMatrix
from qkv.ops.activation import activation_named
from qkv.ops.kernel import (
    FLOAT32,
    INT8,
    ONE_DIGIT,
    bits,
    bits_type,
    compiled,
    is_bfloat16,
    variant_and_threads,
)

_LARGE_PAGE = 1 << 21
_SHELF = 1 << 24  # The number of bytes of a shelf.
_DEEPEST = 1 << 17  # With more rows, a sum of int8 products could exceed int32.
_FLOAT16, _WIDE = np.dtype(np.float16), np.dtype(np.uint16)  # `_WIDE`: see `weight_kind`
_Key = tuple[int, int, DType]  # a weight's id, the kernel's variant, and the copy's dtype


class _PackedCopies:
    """Packed copies of frozen weights; each copy is kept as long as its weight exists.

    Several copies share a large array, called a shelf, because NumPy requests large memory pages
    (2 MB) only for large arrays. The processor reads small pages half as fast as large pages.

    Single operations on `copies` do not need a lock. `lock` protects the other attributes. The lock
    is reentrant, because the garbage collector may call `forget` at any time.
    """

    def __init__(self) -> None:
        self.copies: dict[_Key, tuple[weakref.ref[Array], Array]] = {}
        self.lock = threading.RLock()
        self._free = np.empty(0, np.float32)  # The free part of the newest shelf.
        self._used: dict[int, int] = {}  # The used bytes of each shelf, keyed by the shelf's id.

    def get(self, weight: Array, key: _Key) -> Array | None:
        """Return the packed copy of a weight; None if there is none."""
        found = self.copies.get(key)
        return None if found is None or found[0]() is not weight else found[1]

    def keep(self, weight: Array, key: _Key, copy: Array) -> None:
        """Keep a packed copy, made in memory from `self.memory`, as long as the weight exists."""
        self.forget(key)
        self.copies[key] = weakref.ref(weight, partial(self.forget, key)), copy
        self._count(copy.base, copy.nbytes)

    def forget(self, key: _Key, _: object = None) -> None:
        """Delete the packed copy of a weight."""
        if (found := self.copies.pop(key, None)) is not None:
            self._count(found[1].base, -found[1].nbytes)

    def memory(self, count: int) -> Array:
        """Return memory for `count` float32 numbers on large pages, aligned to 64 bytes."""
        size = -(-count // 16) * 16
        if size * 4 > _SHELF // 4:
            return _align(np.empty(size + _LARGE_PAGE // 4, np.float32), _LARGE_PAGE)[:count]
        with self.lock:
            full = self._free.base
            if size > len(self._free):
                shelf = np.empty((_SHELF + _LARGE_PAGE) // 4, np.float32)
                self._free = _align(shelf, _LARGE_PAGE)
                self._count(full, 0)
            memory, self._free = self._free[:count], self._free[size:]
        return memory

    def _count(self, shelf: Any, size: int) -> None:
        """Add `size` to a shelf's number of used bytes; `size` is negative if bytes are freed.

        If only few bytes remain in use, delete the shelf. If the deleted shelf still contained
        packed copies, their weights are packed again at their next use.
        """
        if shelf is None:  # no shelf has been made yet
            return
        with self.lock:
            used = self._used.get(id(shelf), 0) + size
            if size > 0 or shelf is self._free.base or used * 4 >= shelf.nbytes:
                self._used[id(shelf)] = used
                return
            self._used.pop(id(shelf), None)
            if used:
                # a copy of the dictionary, because `forget` may be called while a list is made
                for key, (_, copy) in self.copies.copy().items():
                    if copy.base is shelf:
                        self.copies.pop(key, None)


# State: packed copies belong to arrays, which cannot store them. The object has a lock.
_packed = _PackedCopies()


def _renew_lock() -> None:
    """Replace the lock after a fork, because a thread that the child lacks may have held it."""
    _packed.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


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
    return array if isinstance(array, LazyMatrix) else array.view()


def large_memory(count: int) -> Array:
    """Return memory for `count` float32 numbers on large pages, aligned to 64 bytes."""
    return _packed.memory(count)


def pack(weight: Array, chosen: int, kind: DType, threads: int) -> Array:
    """Return a packed copy of the weight; the copy is cached if the weight is frozen."""
    if not isinstance(weight, LazyMatrix) and not is_frozen(weight):
        # the weight may have changed since it was packed
        _packed.forget((id(weight), chosen, kind))
        return packed_once(weight, chosen, kind, threads)
    copy = _copy_of(weight, chosen, kind)
    return packed_together([weight], chosen, kind, threads) if copy is None else copy


def packed_together(weights: Sequence[Array], chosen: int, kind: DType, threads: int) -> Array:
    """Pack frozen weights side by side; keep each packed copy as long as its weight exists.

    If packed copies of all weights lie side by side, return them. `_packed_type` returns the dtype
    of the result.
    """
    copies = [_copy_of(weight, chosen, kind) for weight in weights]
    if (joined := _join(copies)) is not None:
        return joined
    sizes = [packed_size(weight.shape, chosen, kind) for weight in weights]
    memory, end = _packed.memory(sum(sizes)), 0
    for weight, size in zip(weights, sizes, strict=True):
        part, end = memory[end : end + size].view(_packed_type(kind)), end + size
        _pack_into(part, weight, chosen, kind, threads)
        if isinstance(weight, StoredMatrix):
            weight.copies[chosen, kind, weight.transposed] = part
        else:
            _packed.keep(weight, (id(weight), chosen, kind), part)
    return memory.view(_packed_type(kind))


def pack_in_advance(weights: Sequence[Array], kind: DType) -> None:
    """Pack frozen weights for products with numbers of `kind`, as `linear` needs them.

    The weights are packed side by side if `Prepared.joins` allows this. Without the kernel, nothing
    is packed.
    """
    chosen, threads = variant_and_threads()
    if chosen is None or kind == np.float64:
        return
    joins = Prepared(chosen, kind, threads).joins(weights)
    for group in [weights] if joins else [[weight] for weight in weights]:
        if not isinstance(group[0], BlockMatrix):
            packed_together(group, chosen, weight_kind(group[0], kind), threads)


def _copy_of(weight: Array, chosen: int, kind: DType) -> Array | None:
    """Return the packed copy of a frozen weight; None if there is none."""
    if isinstance(weight, StoredMatrix):
        return weight.copies.get((chosen, kind, weight.transposed))
    return _packed.get(weight, (id(weight), chosen, kind))


def _join(copies: Sequence[Array | None]) -> Array | None:
    """Join arrays that lie side by side in one larger array; return None for other arrays."""
    first, starts = copies[0], [0]
    if len(copies) == 1 or first is None:
        return first
    for copy in copies:
        if copy is None or copy.base is not first.base:
            return None
        if _address_of(copy) != _address_of(first) + starts[-1]:
            return None
        starts.append(starts[-1] + copy.nbytes)
    base: Any = first.base
    start = (_address_of(first) - _address_of(base)) // base.itemsize
    joined: Array = base[start : start + starts[-1] // base.itemsize]
    return joined.view(first.dtype)


def _join_blocks(weights: Sequence[Any]) -> Any:
    """Join block matrices (in, out) that lie side by side; return None for other matrices.

    A model reads the matrices for queries, keys and values, or for gate and up, one after the
    other. Their blocks then lie side by side, unless they are large or a shelf ends between them.
    """
    first = weights[0]
    for weight in weights:
        if not isinstance(weight, BlockMatrix) or not weight.transposed or weight.rows % GROUP:
            return None
        if (weight.kind, weight.width) != (first.kind, first.width):
            return None
    if (packed := _join([weight.packed for weight in weights])) is None:
        return None
    rows = sum(weight.rows for weight in weights)
    return BlockMatrix(first.kind, packed, rows, first.width, transposed=True)


def packed_once(weight: Array, chosen: int, kind: DType, threads: int) -> Array:
    """Return a packed copy of a weight (in, out) for a single product; do not cache the copy."""
    size = packed_size(weight.shape, chosen, kind)
    memory = _align(np.empty(size + 16, np.float32), 64)[:size].view(_packed_type(kind))
    _pack_into(memory, weight, chosen, kind, threads)
    return memory


def _packed_type(kind: DType) -> DType:
    """Return the dtype of the array that holds packed weights of this kind."""
    return kind if kind in (ONE_DIGIT, INT8, _FLOAT16, _WIDE) else FLOAT32


def weight_kind(weight: Array, kind: DType) -> DType:
    """Return the dtype in which the kernel keeps a weight that it multiplies by numbers of `kind`.

    float16 and bfloat16 weights keep their dtype if `kind` is float32, because the kernel converts
    them to float32 as it multiplies them. uint16 stands for such bfloat16 weights, and uint8 for
    int8 weights whose second digits are all 0, which the kernel omits.
    """
    narrow = weight.dtype
    if isinstance(weight, StoredMatrix):
        if weight.in_int8 and kind == FLOAT32 and 0 < len(weight) <= _DEEPEST:
            return ONE_DIGIT if weight.exact[1] else INT8
        narrow = weight.narrow or narrow
    if kind == FLOAT32 and narrow.isnative and (narrow == _FLOAT16 or is_bfloat16(narrow)):
        return _FLOAT16 if narrow == _FLOAT16 else _WIDE
    return kind


def kernel_product(
    weight: Array, chosen: int, kind: DType, threads: int
) -> tuple[Callable[..., None], Array]:
    """Return the kernel's function that multiplies rows by a weight, and the packed weight.

    The rows have the dtype `kind`. The function takes the rows and the packed weight, then the
    arguments of `linear` in _kernel.pyi from `bias` on.
    """
    if isinstance(weight, BlockMatrix):
        return partial(compiled.multiply_blocks, chosen, weight.code), weight.packed
    whole = pack(weight, chosen, weight_kind(weight, kind), threads)
    return partial(compiled.linear, chosen), whole


def packed_size(shape: tuple[int, ...], chosen: int, kind: DType) -> int:
    """Return how many float32 numbers a packed weight of this shape occupies."""
    depth, width = shape
    kind = _FLOAT16 if kind == _WIDE else kind  # both have two bytes
    return compiled.packed_size(chosen, depth, width, bits(np.empty((0, 0), kind)))


def _pack_into(packed: Array, weight: Array, chosen: int, kind: DType, threads: int) -> None:
    """Pack a weight into the array `packed`, which has the size that `packed_size` returns.

    If `kind` is int8, each column is rounded to int8 digits and a scale first. uint8 is int8
    without second digits.
    """
    is_int8, values = kind in (ONE_DIGIT, INT8), weight
    if isinstance(weight, StoredMatrix) and not (is_int8 and weight.columns_of):
        values = weight.read_narrow()
    if not is_int8:
        values = values if kind == _WIDE else np.require(values, kind)
        compiled.pack(chosen, bits(np.require(values, None, "A")), packed, threads)
        return
    columns = values.T
    rows = np.empty(columns.shape, INT8)
    more = None if kind == ONE_DIGIT else np.empty_like(rows)
    scales, step = np.empty(len(columns), FLOAT32), AT_ONCE // columns.shape[1] + 1
    for at in range(0, len(columns), step):
        some = np.arange(at, min(at + step, len(columns)))
        rows[some], second, scales[some] = to_digits(columns[some].astype(FLOAT32, copy=False))
        if more is not None:
            more[some] = second
    compiled.pack_int8(chosen, rows.T, None if more is None else more.T, scales, packed, threads)


def _align(memory: Array, to: int) -> Array:
    """Skip numbers of a float32 array until its address is a multiple of the argument `to`."""
    return memory[-_address_of(memory) % to // 4 :]


def _address_of(array: Array) -> int:
    """Return the address of an array's first number."""
    return int(array.__array_interface__["data"][0])


class Prepared:
    """Makes functions that compute products and norms in the kernel without any checks.

    The functions take arrays (rows, size) with contiguous rows. Before a call, convert each array
    with `Prepared.to_bits`, because the kernel reads bfloat16 numbers as uint16.

    Attributes:
        variant: the index of the kernel's variant.
        kind: float32 or bfloat16, the dtype of the factors.
        bits: the dtype of the arrays that the kernel gets, float32 or, for bfloat16, uint16.
        threads: the maximum number of threads.
    """

    def __init__(self, variant: int, kind: DType, threads: int) -> None:
        self.variant, self.kind, self.threads = variant, kind, threads
        self.bits = bits_type(kind)

    def to_bits(self, x: Array) -> Array:
        """Convert an array to `kind`, and view it as `bits`."""
        return x if x.dtype == self.bits else x.astype(self.kind, copy=False).view(self.bits)

    def joins(self, weights: Sequence[Array]) -> bool:
        """Return whether these weights (in, out) can be packed side by side without padding.

        Weights in blocks are already packed, so they must lie side by side already.
        """
        if any(isinstance(weight, BlockMatrix) for weight in weights):
            return _join_blocks(weights) is not None
        kinds = {weight_kind(weight, self.kind) for weight in weights}
        if len(kinds) > 1:
            return False
        here, (kind,), shapes = self.variant, kinds, [weight.shape for weight in weights]
        return all(
            packed_size((d, w), here, kind) < packed_size((d, w + 1), here, kind) for d, w in shapes
        )

    def linear(
        self, weight: Array, bias: Array | None = None, activation: str | None = None
    ) -> Callable[..., Array]:
        """Return a function that applies `linear` with a frozen weight.

        A float32 residual makes the result float32.
        """
        product, whole = kernel_product(weight, self.variant, self.kind, self.threads)
        return self._product(product, whole, weight.shape[1], bias, activation)

    def joined_linear(self, weights: Sequence[Array], bias: Array | None) -> Callable[..., Array]:
        """Return a function that multiplies its input by several weight matrices at once.

        `joins(weights)` must be True. The biases for all weights are concatenated in `bias`.
        """
        if (blocks := _join_blocks(weights)) is not None:
            return self.linear(blocks, bias)
        kind = weight_kind(weights[0], self.kind)
        whole = packed_together(weights, self.variant, kind, self.threads)
        product, width = partial(compiled.linear, self.variant), sum(w.shape[1] for w in weights)
        return self._product(product, whole, width, bias, None)

    def _product(
        self,
        product: Callable[..., None],
        weights: Array,
        width: int,
        bias: Array | None,
        activation: str | None,
    ) -> Callable[..., Array]:
        bits, threads = self.bits, self.threads
        code = 0 if activation is None else activation_named(activation).code
        addend = None if bias is None else np.require(bias, FLOAT32, ["C", "A"])

        def run(x: Array, gate: Array | None = None, residual: Array | None = None) -> Array:
            y = np.empty((len(x), width), bits if residual is None else residual.dtype)
            product(x, weights, addend, code, gate, residual, y, threads)
            return y

        return run

    def activate(self, name: str) -> Callable[[Array], Array]:
        """Return a function that applies an activation to float32 numbers."""
        threads, chosen, code = self.threads, self.variant, activation_named(name).code

        def run(x: Array) -> Array:
            y = np.empty(x.shape, FLOAT32)
            compiled.map(chosen, code, np.ascontiguousarray(x), None, y, threads)
            return y

        return run

    def norm(
        self, weight: Array, bias: Array | None, *, eps: float, centred: bool
    ) -> Callable[[Array], Array]:
        """Return a function that applies `normalize`; its result has the dtype of its input."""
        threads, chosen = self.threads, self.variant
        factor = np.require(weight, FLOAT32, ["C", "A"])
        addend = None if bias is None else np.require(bias, FLOAT32, ["C", "A"])

        def run(x: Array) -> Array:
            y, scale = np.empty(x.shape, x.dtype), np.empty(len(x), np.float32)
            compiled.norm(chosen, x, factor, addend, eps, centred, y, scale, threads)
            return y

        return run
