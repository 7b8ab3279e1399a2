"""Write a model's folder, which both `qkv.load` and transformers can read."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, value_error
from qkv.arrays import FLOAT_NAMES, Array, DType, float_type, is_float, quote
from qkv.files import StrPath, named_folder, replacing
from qkv.models.files._tensors import SCALE
from qkv.models.files._tokenizer_config import chat_files
from qkv.models.files.names import Storage
from qkv.models.files.read import CONFIG, TEMPLATE, TEMPLATES, TOKENIZER, WEIGHTS
from qkv.models.files.sentence import BESIDE, TOKENIZER_CONFIG, TOP, Sentence
from qkv.ops import MAX_INT8, to_rows
from qkv.text import Tokenizer


def storage_type(dtype: Any) -> DType | None:
    """Return the NumPy dtype of saved arrays; None means that arrays keep their types.

    >>> storage_type("int8"), storage_type(None)
    (dtype('int8'), None)
    """
    if dtype is None:
        return None
    if dtype in ("int8", np.int8):
        return np.dtype(np.int8)
    with suppress(TypeError):
        return float_type(dtype)
    raise value_error(
        f"dtype is {quote(dtype)}; pass int8, {', '.join(FLOAT_NAMES)}, or omit dtype"
    )


def save_model(
    folder: StrPath,
    *,
    config: Mapping[str, Any] | None,
    weights: Storage,
    sentence: Sentence,
    tokenizer: Tokenizer | None,
    others: Mapping[str, Mapping[str, Any] | None],
    dtype: DType | None = None,
) -> None:
    """Write all files of a model, as `Model.save` describes.

    `others` maps the names of other JSON files to their contents; the value None omits a file.
    """
    from safetensors.numpy import save

    home = named_folder(folder)
    if home.exists() and not home.is_dir():
        raise invalid(NotADirectoryError, f"{home} is a file; pass a folder")
    inner = home / sentence.home
    arrays: dict[str, Array] = {}
    for name, array in weights.to_files().items():
        arrays |= _encode_tensor(name, array, dtype)
    inner.mkdir(parents=True, exist_ok=True)
    kind = dtype or next(iter(weights.parameters.values())).dtype
    about = {key: value for key, value in (config or {}).items() if key != "torch_dtype"}
    last = None if config is None else {**about, "dtype": kind.name}
    # The config is written last, so a folder with a config is complete.
    listed = {**others, CONFIG: last}
    contents = {inner / WEIGHTS: save(arrays, {"format": "pt"})}
    contents |= {home / name: content for name, content in sentence.to_files().items()}
    contents |= {
        inner / name: json.dumps(values, indent=2).encode()
        for name, values in listed.items()
        if values is not None
    }
    if tokenizer is not None:
        configured = inner / TOKENIZER_CONFIG in contents
        files = chat_files(tokenizer, configured=configured)
        contents = {**{inner / name: file for name, file in files.items()}, **contents}
    stale = {home / name for name in TOP} | {
        inner / name for name in (*BESIDE, *listed, TOKENIZER, TEMPLATE)
    }
    stale.update(inner.glob(f"{TEMPLATES}/*.jinja"))
    if tokenizer is not None:
        tokenizer.save(inner / TOKENIZER)
        stale.remove(inner / TOKENIZER)
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    for path in stale - contents.keys():  # Remove the files of an earlier model.
        if path.is_file():
            path.unlink()


def _encode_tensor(name: str, array: Array, dtype: DType | None) -> dict[str, Array]:
    """Return a tensor as the file stores it; with int8, also the scales of its rows."""
    if dtype is None or not is_float(array.dtype):
        return {name: np.asarray(array, order="C")}
    from ml_dtypes import finfo

    in_rows = dtype == np.int8 and array.ndim == 2
    kind = np.dtype(np.float16) if dtype == np.int8 else dtype
    most = float(finfo(kind).max)  # type: ignore[no-untyped-call]  # ml_dtypes has no types
    limit = most * (MAX_INT8 if in_rows else 1)
    largest = float(np.abs(array).max(initial=0))
    if not largest <= limit:
        raise value_error(
            f"{name} has numbers up to {largest:g}, but "
            f"{'int8 with float16 scales' if in_rows else kind.name} stores finite numbers only "
            f"up to {limit:g}: omit dtype to keep the type of each array"
        )
    if not in_rows:
        return {name: np.asarray(array, kind, order="C")}
    rows, scales = to_rows(array)
    return {name: rows, name + SCALE: scales}
