"""The file of a trace: safetensors, with what is no array as JSON in the header."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.files import replacing

Unpack = Callable[[Mapping[str, Array], Mapping[str, Any]], Any]


def write_trace(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Array], about: Mapping[str, Any]
) -> None:
    """Write arrays by name, and the rest as JSON, whole or not at all."""
    from safetensors.numpy import save

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with replacing(path) as file:
        file.write(save(whole, {kind: json.dumps(about)}))


def read_trace(
    path: str | os.PathLike[str], kinds: Mapping[str, Unpack], *, call: str, what: str
) -> Any:
    """What `write_trace` wrote, as the function for its kind in `kinds` puts it together.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds none of these kinds, or is broken; `what` is it not.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"{call}: there is no file {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            found = file.metadata() or {}
            kind = next((kind for kind in kinds if kind in found), next(iter(kinds)))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return kinds[kind](arrays, json.loads(found[kind]))
    except (
        SafetensorError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ValueError(f"{call}: {path} is not {what} that qkv saved: {error!r:.200}") from error
