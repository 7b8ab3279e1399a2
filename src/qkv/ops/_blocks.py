"""Matrices that stay in the quantised blocks of a GGUF file, and their float32 values."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qkv.arrays import Array, DType
from qkv.ops._lazy import LazyMatrix

GROUP = 32  # How many rows lie side by side in a packed group (native/blocks.h: COLUMNS).
_AT_ONCE = 1 << 18  # How many values are computed at once, so that they stay in the cache.
# Each 32-bit word of "high" has two bits of each number in 8 pairs (i, i + 2); `_FIRST` lists i.
_FIRST = np.array([4 * w + 16 * (s % 2) + s // 2 for w in range(4) for s in range(4)]).reshape(2, 8)
_PAIR_BITS = np.arange(0, 16, 2, dtype=np.uint32)


def _unit(count: int, *scales: str, words: int = 4, part: tuple[Any, ...] = ()) -> DType:
    """Return the layout of a group's blocks: `count` parts of 32 numbers, and float16 scales."""
    parts = [("q", "<u4", (words, GROUP)), *((*field, (*shape, GROUP)) for *field, shape in part)]
    return np.dtype([("parts", parts, (count,)), *((name, "<f2", (GROUP,)) for name in scales)])


# The kinds of blocks, in the kernel's order: each has a layout, and the stored number that stands
# for 0. `native/blocks.h` describes the same layouts.
BLOCK_KINDS = {
    "Q4_0": (_unit(1, "d"), 8),
    "Q4_1": (_unit(1, "d", "m"), 0),
    "Q8_0": (_unit(1, "d", words=8), 0),
    "Q4_K": (_unit(8, "d", "m", part=(("scales", "u1", ()), ("minima", "u1", ()))), 0),
    "Q6_K": (_unit(8, "d", part=(("high", "<u4", (2,)), ("scales", "i1", (2,)))), 32),
}


class BlockMatrix(LazyMatrix):
    """A read-only float32 matrix in quantised blocks, which `linear` multiplies directly.

    Args:
        kind: the kind of blocks, a key of `BLOCK_KINDS`.
        packed: the bytes of the packed blocks, viewed as float32 (n,).
        rows: the number of rows of the matrix in the file.
        width: the length of a row.
        transposed: whether the shape is `(width, rows)`, as in a linear weight, instead of
            `(rows, width)`.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self, kind: str, packed: Array, rows: int, width: int, *, transposed: bool = False
    ) -> None:
        self.kind, self.code, self.packed = kind, list(BLOCK_KINDS).index(kind), packed
        self.rows, self.width, self.transposed = rows, width, transposed
        self.shape = (width, rows) if transposed else (rows, width)

    @property
    def T(self) -> "BlockMatrix":
        """The transposed matrix, which shares the blocks."""
        kind, rows, width = self.kind, self.rows, self.width
        return BlockMatrix(kind, self.packed, rows, width, transposed=not self.transposed)

    def read(self) -> Array:
        """Return the matrix as a new array of float32."""
        values, step = np.empty((self.rows, self.width), np.float32), _AT_ONCE // self.width + 1
        for start in range(0, self.rows, step):
            rows = np.arange(start, min(start + step, self.rows))
            values[rows[0] : rows[-1] + 1] = self._rows_of_file(rows)
        return values.T if self.transposed else values

    def _read_rows(self, rows: Array) -> Array:
        return np.asarray(self.read()[rows]) if self.transposed else self._rows_of_file(rows)

    def _rows_of_file(self, rows: Array) -> Array:
        """Return the values (n, width) of rows of the file."""
        group, lane = rows // GROUP, rows % GROUP
        units, zero = _units(self.kind, self.packed, self.rows), BLOCK_KINDS[self.kind][1]
        parts, names = units["parts"], units.dtype.names or ()
        words = np.ascontiguousarray(parts["q"][group, ..., lane])  # (n, units, parts, words)
        q: Array = words.view(np.uint8)
        if words.shape[-1] == 4:
            q = np.concatenate([q & 15, q >> 4], axis=-1)
        of_part = parts.dtype.names or ()
        if "high" in of_part:
            high = parts["high"][group, ..., lane, None] >> _PAIR_BITS
            q[..., _FIRST] |= (high << 4 & 48).astype(np.uint8)
            q[..., _FIRST + 2] |= (high >> 12 & 48).astype(np.uint8)
        q = (q.view(np.int8) - np.int8(zero)).reshape(*q.shape[:3], 2, 16)
        with np.errstate(all="ignore"):  # A broken file may hold infinite scales.
            factors = {
                name: units[name][group, ..., lane].astype(np.float32)[..., None, None, None]
                for name in names[1:]
            }
            scale, least = factors["d"], factors.get("m")
            if "scales" in of_part:
                scales = parts["scales"][group, ..., lane]
                scale = scale * scales.reshape(*q.shape[:3], -1, 1)
            if least is not None and "minima" in of_part:
                least = -(least * parts["minima"][group, ..., lane, None, None])
            values = q * scale
            if least is not None:
                values += least
        return values.reshape(len(rows), self.width)


def blocks_size(kind: str, rows: int, width: int) -> int:
    """Return how many float32 numbers the packed blocks of a matrix occupy."""
    unit = BLOCK_KINDS[kind][0]
    count = unit["parts"].shape[0] * 32
    return int(-(-rows // GROUP) * (width // count) * unit.itemsize // 4)


def pack_blocks(
    kind: str, memory: Array, rows: int, fields_of: Callable[[int, int], Mapping[str, Array]]
) -> None:
    """Pack the rows of a matrix into `memory`, which has the size that `blocks_size` returns.

    Args:
        kind: the kind of blocks, a key of `BLOCK_KINDS`.
        memory: the memory, float32 (n,).
        rows: the number of rows.
        fields_of: a function of `first` and `last` that returns the fields of the rows
            `first:last`, by name. All fields begin with the axes (rows, units); the fields of parts
            also have an axis of parts. Each byte of "q" holds one int8 number, or number n in its
            low four bits and number n + 16 in its high four bits. "high" holds bits 4 and 5 of 32
            numbers.
    """
    units = _units(kind, memory, rows)
    units[-1:] = np.zeros((), units.dtype)  # for the columns after the last row
    for group, first in enumerate(range(0, rows, GROUP)):
        fields = dict(fields_of(first, min(first + GROUP, rows)))
        fields["q"] = np.ascontiguousarray(fields["q"]).view("<u4")
        if "high" in fields:
            high = fields["high"].astype(np.uint32)
            pairs = high[..., _FIRST] | high[..., _FIRST + 2] << 16
            fields["high"] = np.bitwise_or.reduce(pairs << _PAIR_BITS, axis=-1)
        for name, field in fields.items():
            whole = units if name in ("d", "m") else units["parts"]
            whole[name][group][..., : len(field)] = np.moveaxis(field, 0, -1)


def _units(kind: str, packed: Array, rows: int) -> Array:
    """View packed blocks as units (groups, units of a row)."""
    return packed.view(np.uint8).view(BLOCK_KINDS[kind][0]).reshape(-(-rows // GROUP), -1)
