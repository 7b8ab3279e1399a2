"""Read tensors from a torch.save file without torch, and without running code in the file."""

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array, quote
from qkv.models.files.read import ModelError

# The torch classes that stand for the dtypes of stored numbers. NumPy has no bfloat16.
_DTYPES = {
    **{"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2"},
    **{"BFloat16Storage": "bfloat16", "LongStorage": "<i8", "IntStorage": "<i4"},
    **{"ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?"},
}


def read_torch_file(path: Path) -> dict[str, Array]:
    """Return the tensors of a file written by torch.save, by name; bfloat16 becomes float32.

    The file is a zip archive with a pickle. A pickle can name any Python function; this reader
    accepts only functions that describe tensors.

    Raises:
        ModelError: the file is broken, or does not hold a dict of tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = _Unpickler(archive).load()
    except ModelError:
        raise
    except Exception as error:  # a damaged pickle raises errors of any type
        raise ModelError(
            f"{path}: the file is damaged, or torch.save did not write it ({quote(str(error))}); "
            "download or save it again"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ModelError(
            f"{path}: the file does not contain a dict of tensors; save the state_dict()"
        )
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}


class _Unpickler(pickle.Unpickler):
    """Reads an archive's pickle, which may refer only to tensors."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1:
            raise ValueError(f"{len(names)} files are named data.pkl")
        self._archive, self._folder = archive, names[0].removesuffix("data.pkl")
        super().__init__(archive.open(names[0]))

    def find_class(self, module: str, name: str) -> Any:
        """Return the function or class that a name in the pickle stands for."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if module == "torch" and name in _DTYPES:
            return name
        raise ModelError(
            f"{self._archive.filename}: the pickle uses {quote(f'{module}.{name}')}, which could "
            "run code; save only a dict of tensors, with torch.save(sae.state_dict(), path)"
        )

    def persistent_load(self, pid: Any) -> Array:
        """Return the numbers (n,) of a storage."""
        _, kind, key, _, count = pid
        info = self._archive.getinfo(f"{self._folder}data/{key}")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError("a tensor is compressed")
        data, dtype = self._archive.read(info), _DTYPES[kind]
        if dtype != "bfloat16":
            return np.frombuffer(data, dtype, count)
        return (np.frombuffer(data, "<u2", count).astype(np.uint32) << 16).view(np.float32)


def _tensor(flat: Array, offset: int, shape: Any, strides: Any, *_: Any) -> Array:
    """Return a tensor of a storage (n,); strides are in elements, not bytes."""
    last = offset + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if min((offset, *shape, *strides)) < 0 or (0 not in shape and last >= len(flat)):
        raise ValueError("a tensor is larger than its storage")
    steps = [step * flat.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps).copy()
