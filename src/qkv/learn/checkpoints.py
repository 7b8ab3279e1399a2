"""Checkpoints: all that a run needs to go on, in one file that is there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.files import replacing

CHECKPOINTS = "checkpoints"
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """What a run was when it was written.

    Attributes:
        path: where it is.
        arrays: of the parameters and of what the optimiser keeps.
        about: the step, the settings and all other state, as JSON holds it.
    """

    path: Path
    arrays: dict[str, Array]
    about: dict[str, Any]


def write_checkpoint(
    folder: Path, step: int, arrays: Mapping[str, Array], about: Mapping[str, Any]
) -> Path:
    """Write one, and remove those before the last two.

    Raises:
        OSError: it cannot be written; those that are there stay.
    """
    from safetensors.numpy import save

    home = folder / CHECKPOINTS
    home.mkdir(exist_ok=True)
    path = home / f"step-{step:08d}.safetensors"
    with replacing(path) as file:
        file.write(save(dict(arrays), {"qkv": json.dumps(about, default=_plain)}))
        file.flush()
        os.fsync(file.fileno())  # so that after a power cut it is whole, too
    for old in _paths(folder)[:-_KEPT]:
        old.unlink()
    return path


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """The last one that can be read, or None where there is none.

    Raises:
        ValueError: there are some, and none can be read.
    """
    paths = _paths(folder)
    for path in reversed(paths):
        found = _read(path)
        if found is not None:
            return found
    if paths:
        raise ValueError(f"{paths[-1]}: is not a checkpoint of qkv, or broken")
    return None


def need_same(found: Mapping[str, Any], asked: Mapping[str, Any], path: Path) -> None:
    """An error that names the first setting in which a checkpoint is another than what is asked.

    Raises:
        ValueError: there is one.
    """
    same = json.loads(json.dumps(asked, default=_plain))  # as it would be read again
    theirs, ours = dict(_flat(found)), dict(_flat(same))
    for name in [*theirs, *ours]:
        if theirs.get(name) != ours.get(name):
            raise ValueError(
                f"train: {path} belongs to a run with {name} {_shown(theirs, name)}, and here it "
                f"is {_shown(ours, name)}: give the same, or another folder"
            )


@contextmanager
def saving(what: str, folder: Path) -> Iterator[None]:
    """What cannot be written is an error that says what there still is."""
    try:
        yield
    except OSError as error:
        kept = [path.name for path in _paths(folder)]
        good = f"{CHECKPOINTS}/{kept[-1]} is whole" if kept else "there is no checkpoint before"
        reason = error.strerror or str(error)
        told = f"{what} cannot be written ({reason}): {good}"
        raise OSError(error.errno, told, str(folder)) from error


def _paths(folder: Path) -> list[Path]:
    return sorted((folder / CHECKPOINTS).glob("step-*.safetensors"))


def _read(path: Path) -> Checkpoint | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["qkv"])
            arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError):
        return None
    return Checkpoint(path, arrays, about)


def _plain(value: Any) -> Any:
    """A number of NumPy's, or an array, as JSON can hold it."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(
        f"train: a checkpoint cannot hold a {type(value).__name__}: give numbers, strings, lists "
        "and dicts"
    )


def _flat(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each value in nested objects by its path: "model.hidden_size"."""
    if not isinstance(values, dict):
        yield name, values
        return
    for key, value in values.items():
        yield from _flat(value, f"{name}.{key}" if name else key)


def _shown(values: Mapping[str, Any], name: str) -> str:
    return f"{values[name]!r:.60}" if name in values else "left out"
