"""Read safetensors files, including int8 matrices with one scale per row."""

import hashlib
import json
import math
import mmap
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array, DType, float_type
from qkv.models.files.config import lacking
from qkv.models.files.read import INDEX, WEIGHTS, ModelError, first_line, need_file, plain, shards
from qkv.ops import MAX_INT8, from_rows

SCALE = "_scale"  # The scales of the matrix X have the name X + "_scale".
TYPES = {
    **{"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16},
    **{"I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8},
    **{"U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_},
}
KINDS = {np.dtype(kind).name: name for name, kind in TYPES.items()}
KINDS |= {"uint16": "U16", "bfloat16": "BF16"}
FLOATS = ("F64", "F32", "F16", "BF16")
_NARROW = {"F16": "float16", "BF16": "bfloat16"}
_MOST_DIMENSIONS = 32
_MOST_HEADER = 8 * 2**20  # In bytes. Reading a header of 200,000 tensors takes seconds.
_MOST_NUMBERS = 2**59  # The product of a tensor's non-zero dimensions must be below this limit.


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        path: the file.
        kind: the type in the header: "F32", "BF16", "I64", ...
        shape: the shape in the header.
        raw: the tensor's bytes, mapped from the file.
    """

    path: Path
    kind: str
    shape: tuple[int, ...]
    raw: Array

    is_between_blocks = False  # whether the file may hold matrices in blocks

    def rows(self, name: str) -> list[tuple[str, str, tuple[int, ...], Array]]:
        """Return the name, type, shape and bytes of each stored tensor that `self` consists of."""
        return [(name, self.kind, self.shape, self.raw)]

    def same(self, other: "Stored") -> bool:
        """Return whether two tensors have the same type, shape and bytes."""
        alike = (self.kind, self.shape) == (other.kind, other.shape)
        return alike and np.array_equal(self.raw, other.raw)

    def packed(self, is_transposed: bool, cut: Callable[[Array], Array]) -> Any:
        """Return the tensor as a `BlockMatrix`; None if it is not in blocks that can be multiplied.

        Args:
            is_transposed: whether to transpose the matrix.
            cut: a function that returns the indices of the last axis to keep, in order.
        """
        return None

    def raw_rows(
        self, is_transposed: bool, cut: Callable[[Array], Array]
    ) -> tuple[str, Array] | None:
        """Return the kind of the matrix's blocks, and the bytes of each row; None without blocks.

        The arguments are those of `packed`.
        """
        return None

    @property
    def has_exact_rows(self) -> bool:
        """Whether each row is a finite float16 scale times whole numbers from -127 to 127."""
        return False

    @property
    def narrow(self) -> DType | None:
        """The dtype of the values if it is float16 or bfloat16; None otherwise."""
        return float_type(_NARROW[self.kind]) if self.kind in _NARROW else None

    def is_mapped_as(self, kind: DType) -> bool:
        """Return whether `read` returns a view of the file, of this dtype."""
        return KINDS.get(kind.name) == self.kind

    def read(self) -> Array:
        """Return the tensor's values as an array.

        The array is a view of the memory-mapped file unless the values must be converted for NumPy.
        """
        dtype = np.dtype(TYPES[self.kind]).newbyteorder("<")
        array: Array = self.raw.view(dtype).reshape(self.shape)
        # This call copies the values only if the machine is big-endian or the tensor is unaligned.
        array = np.require(array, dtype.newbyteorder("="), "A")
        if self.kind != "BF16":
            return array
        from ml_dtypes import bfloat16

        return array.view(bfloat16)

    def read_rows(self, rows: Array) -> Array:
        """Return the rows (n,) of the values."""
        return self.read()[rows]


@dataclass(frozen=True)
class Int8Rows(Stored):
    """An int8 matrix with one scale per row.

    Attributes:
        scales: the scales, float16 (rows,).
    """

    scales: Stored

    @property
    def has_exact_rows(self) -> bool:
        """Whether no number is -128, which qkv never writes, and all scales are finite."""
        least = self.raw.view(np.int8).min(initial=0)
        return bool(least >= -MAX_INT8 and np.isfinite(self.scales.read()).all())

    def is_mapped_as(self, kind: DType) -> bool:
        """Return False: the values are computed."""
        return False

    def rows(self, name: str) -> list[tuple[str, str, tuple[int, ...], Array]]:
        """Return the name, type, shape and bytes of the matrix and of its scales."""
        return [(name, "I8", self.shape, self.raw), *self.scales.rows(name + SCALE)]

    def same(self, other: Stored) -> bool:
        """Return whether two matrices have the same bytes and scales."""
        return (
            isinstance(other, Int8Rows) and super().same(other) and self.scales.same(other.scales)
        )

    def read(self) -> Array:
        """Return the values as float32."""
        return self.read_rows(slice(None))

    def read_rows(self, rows: Any) -> Array:
        """Return the rows (n,) of the values."""
        return from_rows(self.raw.view(np.int8).reshape(self.shape)[rows], self.scales.read()[rows])


class Tensors(dict[str, Stored]):
    """The tensors in a model's files, keyed by name.

    The constructor reads only the headers of the files, so it needs little memory. `Stored.read`
    returns the values of a tensor.

    Attributes:
        source: the name of the file, for errors.

    Raises:
        ModelError: a file is missing or broken, or two files hold the same tensor.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.source = ""
        index = shards(folder)
        for path in _files(folder, index):
            self.source = self.source or str(path)
            for name, tensor in header(path).items():
                if name in self:
                    raise ModelError(f"{path}: the tensor {name} is also in {self[name].path.name}")
                self[name] = tensor
        if index is not None:
            self.source = str(folder / INDEX)
            wrong = [n for n, file in index.items() if n not in self or self[n].path.name != file]
            if wrong:
                warnings.warn(
                    f"{self.source} names the wrong file for {plain(', '.join(wrong), 300)}: "
                    "qkv reads the tensors that the files hold",
                    UserWarning,
                    stacklevel=2,
                )
        for name in [name for name in self if name + SCALE in self]:
            self[name] = self._join_scales(name, self[name], self.pop(name + SCALE))

    def sha256(self) -> str:
        """Return the digest of all tensors as the files store them."""
        return digest(row for name, tensor in self.items() for row in tensor.rows(name))

    def release(self) -> None:
        """Return the memory of mapped files to the system, which reads them again if needed."""
        for tensor in {tensor.path: tensor for tensor in self.values()}.values():
            release(tensor.raw)

    def _join_scales(self, name: str, rows: Stored, scales: Stored) -> Int8Rows:
        """Combine an int8 matrix and its scales into a tensor of float32 values."""
        if (rows.kind, len(rows.shape)) != ("I8", 2) or (
            (scales.kind, scales.shape) != ("F16", rows.shape[:1])
        ):
            raise ModelError(
                f"{self.source}: {name} is {rows.kind} {rows.shape} and {name}{SCALE} is "
                f"{scales.kind} {scales.shape}; the matrix must be I8 (rows, columns) and its "
                "scales must be F16 (rows,)"
            )
        return Int8Rows(rows.path, "F32", rows.shape, rows.raw, scales)


def release(raw: Any) -> None:
    """Return the memory of a mapped file to the system, which reads the file again if needed."""
    while isinstance(raw, np.ndarray):
        raw = raw.base
    if isinstance(raw, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        raw.madvise(mmap.MADV_DONTNEED)


def digest(tensors: Iterable[tuple[str, str, tuple[int, ...], Any]]) -> str:
    """Return the SHA-256 digest, in hexadecimal, of the names, types, shapes and bytes of tensors.

    The tensors are sorted by name. For each tensor, four strings are hashed: the name, the type,
    the shape and the bytes as safetensors writes them. A zero byte follows each of the first three
    strings. A shape is written in the form "16,4".

    >>> digest([("b", "I8", (1,), b"1"), ("a", "F16", (), b"22")])[:16]
    'f2f043c8ed9c5c29'
    """
    sha256 = hashlib.sha256()
    for name, kind, shape, raw in sorted(tensors, key=lambda tensor: tensor[0]):
        sizes = ",".join(map(str, shape))
        sha256.update(f"{name}\0{kind}\0{sizes}\0".encode())
        sha256.update(raw)
    return sha256.hexdigest()


def _files(folder: Path, index: Mapping[str, str] | None) -> list[Path]:
    """Return the safetensors files of a model.

    If there is no index, return only model.safetensors. If this file is missing too, return all
    safetensors files in the folder.
    """
    paths = [folder / name for name in sorted(set((index or {}).values()))]
    for path in paths:
        if not path.is_file():
            raise ModelError(
                f"{folder / INDEX}: the shard {path.name} is not in the folder; download it"
            )
    if not paths:
        whole = folder / WEIGHTS
        paths = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
        paths = [path for path in paths if path.name != "adapter_model.safetensors"]
    if paths:
        return paths
    raise ModelError(f"{folder}: {lacking(folder)}")


def header(path: Path) -> dict[str, Stored]:
    """Check the header of a file with the safetensors library, and return the file's tensors."""
    from safetensors import SafetensorError, safe_open

    need_file(path)
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if _MOST_HEADER < length < path.stat().st_size:
                raise ModelError(
                    f"{path}: its header has {length} bytes, but the maximum is {_MOST_HEADER} "
                    "bytes, enough for 50,000 tensors; split the file into shards"
                )
            with safe_open(path, framework="numpy"):
                pass
            header = json.loads(stream.read(length), object_pairs_hook=_once)
        # The operating system reads values from the disk only when NumPy uses the values.
        numbers = np.memmap(path, np.uint8, mode="r").view(np.ndarray)[8 + length :]
    except ModelError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"{path}: the file is truncated or not a safetensors file ({first_line(error)}); "
            "download or save it again"
        ) from error
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        shape = about["shape"]
        if len(shape) > _MOST_DIMENSIONS or math.prod(size or 1 for size in shape) >= _MOST_NUMBERS:
            raise ModelError(f"{path}: {name} has the impossible shape {shape!s:.80}")
        raw = numbers[slice(*about["data_offsets"])]
        tensors[name] = Stored(path, about["dtype"], tuple(shape), raw)
    return tensors


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise a ValueError if a key occurs twice."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"the header has {name} twice")
        values[name] = value
    return values
