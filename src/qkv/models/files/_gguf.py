"""Read GGUF files: their metadata, and tensors whose blocks become float32.

This file reads the format with NumPy. The package `gguf` needs pyyaml, requests and tqdm, takes
longer to import than qkv, and trusts the sizes in a file. Here each size, count and offset is
compared with the file's length before anything is read. The tests write files with `gguf`, and
compare values with its dequantisation.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and ggml-quants.c of ggml.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, DType
from qkv.models.files._tensors import Stored, Tensors, release
from qkv.models.files.read import ModelError, first_line, is_whole, need_file, plain
from qkv.ops import BLOCK_KINDS, BlockMatrix, blocks_size, pack_blocks
from qkv.ops.packing import frozen, large_memory

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = {
    **{0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?"},
    **{10: "<u8", 11: "<i8", 12: "<f8"},
}
_STRING, _LIST = 8, 9  # the codes of strings and lists
_MOST_NAME, _MOST_STRING = 2**10, 2**22  # In bytes. A chat template has about 10 kB.
_MOST_ITEMS = 2**22  # The largest vocabularies have 300,000 tokens.
_MOST_TENSORS = 50_000
_MOST_DIMENSIONS = 4
_AT_ONCE = 2**18  # How many values are dequantised at once, so that they stay in the cache.

# The names of ggml's types, by their codes. Types that are not in `_BLOCKS` are not supported.
_KINDS = dict(
    enumerate(
        [
            *("F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1"),
            *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS"),
            *("IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64"),
            *("IQ1_M", "BF16"),
        ]
    )
) | {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}


class _Block(NamedTuple):
    """A type of block.

    Attributes:
        size: the number of values in a block.
        fields: the fields of a block in a file: `d`, the scale; `m`, the minimum; `scales`, the
            scales of parts of the block; `q`, whole numbers or their low bits, and `high`, their
            high bits.
        zero: the number that stands for 0.
        parts: the number of parts that have a scale.
    """

    size: int
    fields: list[Any]
    zero: int = 0
    parts: int = 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of a block."""
        return np.dtype(self.fields)


_D, _M, _Q = ("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)
_HIGH, _SCALES = ("high", "u1", 4), ("scales", "u1", (3, 4))
_BLOCKS = {
    "F32": _Block(1, [("q", "<f4")]),
    "F16": _Block(1, [("q", "<f2")]),
    "BF16": _Block(1, [("q", "<u2")]),
    "Q4_0": _Block(32, [_D, _Q], 8),
    "Q4_1": _Block(32, [_D, _M, _Q]),
    "Q5_0": _Block(32, [_D, _HIGH, _Q], 16),
    "Q5_1": _Block(32, [_D, _M, _HIGH, _Q]),
    "Q8_0": _Block(32, [_D, ("q", "i1", 32)]),
    "Q4_K": _Block(256, [_D, _M, _SCALES, ("q", "u1", (4, 32))], 0, 8),
    "Q5_K": _Block(256, [_D, _M, _SCALES, ("high", "u1", 32), ("q", "u1", (4, 32))], 0, 8),
    "Q6_K": _Block(
        256, [("q", "u1", (2, 64)), ("high", "u1", (2, 32)), ("scales", "i1", 16), _D], 32, 16
    ),
}
PLAIN = ("F32", "F16", "BF16")  # types without blocks, which `Stored` reads


def dequantize(kind: str, raw: Array) -> Array:
    """Return the float32 values (n,) of blocks of one type, given their bytes.

    >>> scale, numbers = np.float16([0.5]).tobytes(), np.arange(-16, 16, dtype=np.int8).tobytes()
    >>> dequantize("Q8_0", np.frombuffer(scale + numbers, np.uint8))[:4]
    array([-8. , -7.5, -7. , -6.5], dtype=float32)
    """
    block = _BLOCKS[kind]
    blocks = np.ascontiguousarray(raw).view(block.dtype)
    values = np.empty((len(blocks), block.parts, block.size // block.parts), np.float32)
    step = _AT_ONCE // block.size
    with np.errstate(all="ignore"):  # A broken file may hold infinite scales.
        for start in range(0, len(blocks), step):
            _dequantize(kind, blocks[start : start + step], values[start : start + step])
    return values.reshape(-1)


def _dequantize(kind: str, blocks: Array, values: Array) -> None:
    """Write the values of blocks to `values` (n, parts, size of a part)."""
    block, q = _BLOCKS[kind], blocks["q"]
    scale = blocks["d"].astype(np.float32)[:, None, None]
    if kind != "Q8_0":
        q = np.stack([q & 15, q >> 4], axis=-2)  # (n, 2, 16), or with K: (n, rows, 2, columns)
    if kind in ("Q5_0", "Q5_1"):
        q |= np.unpackbits(blocks["high"], axis=1, bitorder="little").reshape(q.shape) << 4
    elif kind == "Q5_K":
        bits = np.arange(8, dtype=np.uint8).reshape(4, 2, 1)
        q |= ((blocks["high"][:, None, None] >> bits) & 1) << 4
    elif kind == "Q6_K":
        pairs = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
        q |= (((blocks["high"][:, :, None] >> pairs) & 3) << 4).reshape(q.shape)
    if block.zero:
        q = q.view(np.int8) - np.int8(block.zero)
    least = None
    if block.parts > 1:
        scales = blocks["scales"]
        if "m" in (blocks.dtype.names or ()):
            scales, minima = _scales_of_6_bits(scales)
            least = -(blocks["m"].astype(np.float32)[:, None] * minima)[..., None]
        scale = scale * scales[..., None]
    elif "m" in (blocks.dtype.names or ()):
        least = blocks["m"].astype(np.float32)[:, None, None]
    np.multiply(q.reshape(values.shape), scale, out=values)
    if least is not None:
        values += least


def _fields(kind: str, blocks: Array) -> dict[str, Array]:
    """Return the fields of blocks (rows, n) in the form that `pack_blocks` accepts."""
    fields = {name: blocks[name] for name in blocks.dtype.names or ()}
    shape, q = (*blocks.shape, -1), fields["q"]
    if kind not in ("Q4_K", "Q6_K"):
        return fields | {"q": q[:, :, None]}
    # the numbers (rows, n, 8, 32) of the parts
    q = np.stack([q & 15, q >> 4], axis=-2).reshape(*blocks.shape, 8, 32)
    if kind == "Q4_K":
        scales, minima = _scales_of_6_bits(fields["scales"].reshape(-1, 3, 4))
        fields |= {"scales": scales.reshape(shape), "minima": minima.reshape(shape)}
    else:
        pairs = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
        fields["high"] = ((fields["high"][..., None, :] >> pairs) & 3).reshape(*shape, 32)
        fields["scales"] = fields["scales"].reshape(*shape, 2)
    return fields | {"q": q[..., :16] | q[..., 16:] << 4}


def _scales_of_6_bits(packed: Array) -> tuple[Array, Array]:
    """Unpack the scales and minima, each (n, 8), from 12 bytes per block, (n, 3, 4)."""
    low, minimum, high = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([low & 63, high & 15 | low >> 2 & 48], axis=1)
    minima = np.concatenate([minimum & 63, high >> 4 | minimum >> 2 & 48], axis=1)
    return scales, minima


@dataclass(frozen=True)
class Blocks(Stored):
    """A tensor of a GGUF file, in the layout of transformers' own files.

    Attributes:
        block: the type in the file: "Q4_1", "F32", ...
        order: if given, `read` cuts the rows into `len(order)` equal groups, and returns the groups
            in the order of these indices.
        offset: a number that `read` adds to all values.
        transposed: whether `read` transposes the matrix; `shape` is the shape afterwards.
    """

    block: str
    order: Array | None = None
    offset: float = 0.0
    transposed: bool = False

    is_between_blocks = True

    @property
    def narrow(self) -> DType | None:
        """The dtype of the values if it is float16 or bfloat16; None otherwise."""
        return None if self.offset else super().narrow

    def is_mapped_as(self, kind: DType) -> bool:
        """Return False: views of a GGUF file would keep pages of its blocks in memory."""
        return False

    def rows(self, name: str) -> list[tuple[str, str, tuple[int, ...], Array]]:
        """Return the name, the type in the file, the shape and the bytes."""
        return [(name, self.block, self.shape, self.raw)]

    def same(self, other: Stored) -> bool:
        """Return whether two tensors have the same type, shape and bytes."""
        return isinstance(other, Blocks) and self.block == other.block and super().same(other)

    def packed(self, is_transposed: bool, cut: Callable[[Array], Array]) -> Any:
        """Return the matrix as blocks; `Stored.packed` describes the arguments."""
        order = self._order_of_rows(is_transposed, cut)
        if self.block not in BLOCK_KINDS or order is None:
            return None
        is_transposed ^= self.transposed
        width, rows = self.shape if self.transposed else self.shape[::-1]
        dtype = _BLOCKS[self.block].dtype
        whole = self.raw.reshape(rows, -1)

        def fields_of(first: int, last: int) -> Mapping[str, Array]:
            return _fields(self.block, whole[order[first:last]].view(dtype))

        memory = large_memory(blocks_size(self.block, len(order), width))
        pack_blocks(self.block, memory, len(order), fields_of)
        release(self.raw)
        return BlockMatrix(self.block, frozen(memory), len(order), width, transposed=is_transposed)

    def raw_rows(
        self, is_transposed: bool, cut: Callable[[Array], Array]
    ) -> tuple[str, Array] | None:
        """Return the kind and the rows of the blocks; see `Stored.raw_rows`."""
        order = self._order_of_rows(is_transposed, cut)
        if self.block in PLAIN or order is None:
            return None
        rows = self.raw.reshape(self.shape[-1] if self.transposed else self.shape[0], -1)
        in_order = np.array_equal(order, np.arange(len(rows)))
        return self.block, rows if in_order else rows[order]

    def _order_of_rows(self, is_transposed: bool, cut: Callable[[Array], Array]) -> Array | None:
        """Return the indices of the rows that a parameter has; None if it has no whole rows."""
        is_transposed ^= self.transposed
        if self.offset or len(self.shape) != 2:
            return None
        if not is_transposed and len(cut(np.arange(self.shape[-1]))) < self.shape[-1]:
            return None  # several parameters share each row
        order = np.arange(self.shape[-1] if self.transposed else self.shape[0])
        if self.order is not None:
            order = order.reshape(len(self.order), -1)[self.order].reshape(-1)
        return cut(order) if is_transposed else order

    def read(self) -> Array:
        """Return the values, as float32 unless the file holds floats of a different type."""
        raw, shape = self.raw, self.shape[::-1] if self.transposed else self.shape
        if self.order is not None:
            raw = raw.reshape(len(self.order), -1)[self.order].reshape(-1)
        if self.block in PLAIN:
            values = Stored(self.path, self.block, shape, raw).read()
        else:
            values = dequantize(self.block, raw).reshape(shape)
        values = values + np.float32(self.offset) if self.offset else values
        return values.T if self.transposed else values

    def read_rows(self, rows: Array) -> Array:
        """Return the rows (n,) of the values; in most files, only these rows are read."""
        if self.order is not None or self.transposed:
            return self.read()[rows]
        raw = self.raw.reshape(self.shape[0], -1)[rows]
        return replace(self, shape=raw.shape[:1] + self.shape[1:], raw=raw.reshape(-1)).read()


class GgufTensors(Tensors):
    """The tensors of a GGUF file, keyed by the names that transformers gives them."""

    def __init__(self, source: str, tensors: Mapping[str, Blocks]) -> None:
        dict.__init__(self, tensors)
        self.source = source

    def sha256(self) -> str:
        """Return the digest of all tensors as the files store them."""
        digest = super().sha256()
        self.release()
        return digest


@dataclass(frozen=True)
class Gguf:
    """The contents of a GGUF file.

    Attributes:
        path: the file.
        metadata: the values, keyed by name. A list of numbers is an array.
        tensors: the tensors, keyed by their names in the file.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Blocks]


def is_gguf(path: Path) -> bool:
    """Return whether a file is GGUF: check its first bytes or, if the file is empty, its name."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(4) == MAGIC or path.suffix.lower() == ".gguf"


def read_gguf(path: Path) -> Gguf:
    """Read the metadata and the tensors' locations from a GGUF file; map the tensors into memory.

    Raises:
        ModelError: the file is truncated or broken, or holds a type that qkv does not support.
    """
    need_file(path)
    try:
        data = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {first_line(error)}") from error
    return _Reader(path, data).read()


class _Reader:
    """Read values one after the other, and check that the file holds them."""

    def __init__(self, path: Path, data: Array) -> None:
        self.path, self.data, self.at = path, data, 0
        self.view = data.data

    def read(self) -> Gguf:
        """Return the contents of the file."""
        if bytes(self.view[:4]) != MAGIC:
            raise ModelError(f"{self.path} is not a GGUF file: it does not begin with GGUF")
        self.at = 4
        version = self.whole("version", "<u4")
        if version not in _VERSIONS:
            high = version & 0xFFFF == 0
            what = "a big-endian file" if high else f"version {version} of GGUF"
            raise ModelError(
                f"{self.path} is {what}, but qkv reads only little-endian files of versions 2 and 3"
            )
        tensors, values = self.whole("tensor count"), self.whole("metadata count")
        if tensors > _MOST_TENSORS:
            raise ModelError(
                f"{self.path} declares {tensors} tensors, but the maximum is {_MOST_TENSORS}"
            )
        metadata: dict[str, Any] = {}
        for _ in range(values):
            key = self.text("the name of a value", _MOST_NAME)
            if key in metadata:
                self.fail(f"{plain(key, 80)} occurs twice")
            metadata[key] = self.value(key)
        places: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for _ in range(tensors):
            name = self.text("the name of a tensor", _MOST_NAME)
            if name in places:
                self.fail(f"{plain(name, 80)} occurs twice")
            places[name] = self.place(name)
        return Gguf(self.path, metadata, self.tensors(places, metadata))

    def fail(self, text: str) -> None:
        """Raise an error about a broken file."""
        raise ModelError(
            f"{self.path}: the file is truncated or damaged ({text}); download it again"
        )

    def skip(self, what: str, size: int) -> int:
        """Return where the next `size` bytes begin, and move past them."""
        start = self.at
        if size > len(self.view) - start:
            self.fail(f"{what} would end after the file's {len(self.view)} bytes")
        self.at += size
        return start

    def whole(self, what: str, kind: str = "<u8") -> int:
        """Return the next unsigned integer, of 4 or 8 bytes."""
        size = int(kind[-1])
        start = self.skip(what, size)
        return int.from_bytes(self.view[start : start + size], "little")

    def text(self, what: str, most: int = _MOST_STRING) -> str:
        """Return the next string, of at most `most` bytes."""
        size = self.whole(what)
        if size > most:
            self.fail(f"{what} has {size} bytes, more than {most}")
        start = self.skip(what, size)
        try:
            return str(self.view[start : start + size], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8")
            raise

    def value(self, key: str) -> Any:
        """Return the next value of the metadata: a number, a string or a list."""
        key = plain(key, 80)
        kind = self.whole(key, "<u4")
        if kind != _LIST:
            return self.text(key) if kind == _STRING else self.numbers(key, kind, 1)[0].item()
        kind, count = self.whole(key, "<u4"), self.whole(key)
        if count > _MOST_ITEMS:
            self.fail(f"{key} has {count} items, more than {_MOST_ITEMS}")
        if kind != _STRING:
            return self.numbers(key, kind, count)
        return self.texts(key, count)

    def texts(self, key: str, count: int) -> list[str]:
        """Return the next strings, as `text` does, but in a third of the time."""
        found, view = [], self.view
        for _ in range(count):
            start = self.at + 8
            self.at = start + int.from_bytes(view[self.at : start], "little")
            if self.at > len(view):
                self.fail(f"a string of {key} would end after the file's {len(view)} bytes")
            try:
                found.append(str(view[start : self.at], "utf-8"))
            except UnicodeDecodeError:
                self.fail(f"a string of {key} is not UTF-8")
        return found

    def numbers(self, key: str, kind: int, count: int) -> Array:
        """Return the next numbers (count,)."""
        if kind not in _NUMBERS:
            self.fail(f"{key} has the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        start = self.skip(key, count * dtype.itemsize)
        raw = self.data[start : self.at]
        if dtype == np.bool_ and (raw > 1).any():
            self.fail(f"{key} is neither true nor false")
        return np.frombuffer(raw.tobytes(), dtype)

    def place(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        """Return the type, the shape, the offset and the size in bytes of a tensor."""
        what = plain(name, 80)
        count = self.whole(what, "<u4")
        if not 1 <= count <= _MOST_DIMENSIONS:
            self.fail(f"{what} has {count} dimensions")
        shape = tuple(self.whole(what) for _ in range(count))[::-1]
        code, offset = self.whole(what, "<u4"), self.whole(what)
        kind = _KINDS.get(code, f"the unknown type {code}")
        if kind not in _BLOCKS:
            raise ModelError(
                f"{self.path}: {what} is {kind}, which qkv does not support; quantize the "
                f"model to one of these types: {', '.join(_BLOCKS)}"
            )
        block = _BLOCKS[kind]
        if not all(shape) or shape[-1] % block.size:
            self.fail(f"{what} has shape {shape!s:.80}, which is impossible for {kind}")
        return kind, shape, offset, math.prod(shape) // block.size * block.dtype.itemsize

    def tensors(
        self,
        places: Mapping[str, tuple[str, tuple[int, ...], int, int]],
        metadata: Mapping[str, Any],
    ) -> dict[str, Blocks]:
        """Return the tensors; check that they lie inside the file and do not overlap."""
        unit = metadata.get("general.alignment", 32)
        if not is_whole(unit) or unit < 1 or unit & (unit - 1) or unit > 2**16:
            self.fail(f"general.alignment is {unit!r:.40}")
        start = min(-(-self.at // unit) * unit, len(self.view))
        data, end, found = self.data[start:], 0, {}
        for name, (kind, shape, offset, size) in sorted(places.items(), key=lambda one: one[1][2]):
            what = plain(name, 80)
            if offset % unit or offset < end:
                self.fail(f"{what} begins at {offset}, inside another tensor or between two units")
            end = offset + size
            if end > len(data):
                self.fail(f"{what} would end at {start + end}, after the file's {len(self.view)}")
            seen = kind if kind in PLAIN else "F32"
            found[name] = Blocks(self.path, seen, shape, data[offset:end], kind)
        return found
