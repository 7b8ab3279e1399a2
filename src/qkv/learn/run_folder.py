"""Checkpoints: all that a run needs to go on, in one file that is there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.files import replacing

CHECKPOINTS = "checkpoints"
MOST_STEPS = 99_999_999  # the names of checkpoints and snapshots have eight digits
_KEPT = 2
_ARRAYS = {"parameters", "mean", "square"}
_STATE: dict[str, Any] = {
    **dict.fromkeys(("step", "tokens", "updates"), int),
    **{"seconds": float, **dict.fromkeys(("settings", "watch", "objectives"), dict)},
}
_UNSEALED = b"0" * 64  # where the checksum will stand, and what it is made with
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')


@dataclass(frozen=True)
class Checkpoint:
    """What a run was when it was written.

    Attributes:
        path: where it is.
        arrays: of the parameters and of what the optimiser keeps, (n,) each.
        about: the step, the settings and all other state, as JSON holds it.
        damaged: what is wrong with those after it.
    """

    path: Path
    arrays: dict[str, Array]
    about: dict[str, Any]
    damaged: tuple[str, ...] = ()


def write_checkpoint(
    folder: Path, step: int, arrays: Mapping[str, Array], about: Mapping[str, Any]
) -> Path:
    """Write one, and remove those before it but for the last.

    Raises:
        OSError: it cannot be written; those that are there stay.
    """
    home = folder / CHECKPOINTS
    home.mkdir(exist_ok=True)
    path = home / f"step-{step:08d}.safetensors"
    with replacing(path) as file:
        file.write(sealed(arrays, about))
        file.flush()
        os.fsync(file.fileno())  # so that after a power cut it is whole, too
    for old in [one for one in _paths(folder) if one.name <= path.name][:-_KEPT]:
        old.unlink()
    return path


def sealed(arrays: Mapping[str, Array], about: Mapping[str, Any]) -> bytes:
    """A checkpoint as a safetensors file that holds the SHA-256 of all its other bytes."""
    from safetensors.numpy import save

    texts = {"qkv": json.dumps(about, default=_plain), "sha256": _UNSEALED.decode()}
    content = save(dict(arrays), texts)
    checksum = hashlib.sha256(content).hexdigest().encode()
    return content.replace(b'"%b"' % _UNSEALED, b'"%b"' % checksum, 1)


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """The last one that is whole, or None where there is none.

    Raises:
        ValueError: there are some, and none is whole.
    """
    damaged: list[str] = []
    for path in reversed(_paths(folder)):
        try:
            return Checkpoint(path, *_read(path), tuple(damaged))
        except OSError as error:
            damaged.append(f"{path} cannot be read ({error.strerror or error})")
        except ValueError as error:
            damaged.append(f"{path} is damaged: {error}")
    if damaged:
        raise ValueError(f"train: there is no checkpoint that is whole: {'; '.join(damaged)}")
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
        try:
            kept = last_checkpoint(folder)
        except ValueError:
            kept = None
        there = f"{CHECKPOINTS}/{kept.path.name} is whole" if kept else ""
        good = there or "there is no checkpoint before"
        reason = error.strerror or str(error)
        told = f"{what} cannot be written ({reason}): {good}"
        raise OSError(error.errno, told, str(folder)) from error


def _paths(folder: Path) -> list[Path]:
    return sorted((folder / CHECKPOINTS).glob(f"step-{'[0-9]' * 8}.safetensors"))


def _read(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays of a checkpoint and what it says about them.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not what was written, or nothing that a run can go on from.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if not path.is_file():
        raise ValueError("it is not a file")
    content = path.read_bytes()
    seal = _SEAL.search(content)
    if seal is None:
        raise ValueError("it has no checksum")
    checksum = hashlib.sha256(memoryview(content)[: seal.start(1)])
    checksum.update(_UNSEALED)
    checksum.update(memoryview(content)[seal.end(1) :])
    if checksum.hexdigest().encode() != seal[1]:
        raise ValueError("its checksum is not that of its content")
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        arrays, about = load(content), json.loads(header["__metadata__"]["qkv"])
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"it is not a checkpoint of qkv ({error})") from None
    _check_state(about, int(path.stem.removeprefix("step-")))
    _check_arrays(arrays)
    return arrays, about


def _check_state(about: Any, step: int) -> None:
    for name, kind in _STATE.items():
        value = about.get(name) if isinstance(about, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r:.40}, and it must be of type {kind.__name__}")
        if kind in (int, float) and not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}, and it must be 0 or more")
    if about["step"] != step or about["updates"] > step:
        raise ValueError(f"step is {about['step']} and updates {about['updates']}, not {step}")
    steps = about["settings"].get("steps")
    if steps is not None and not (isinstance(steps, int) and step <= steps):
        raise ValueError(f"it is at step {step} of a run of {steps!r:.40}")


def _check_arrays(arrays: Mapping[str, Array]) -> None:
    if arrays.keys() != _ARRAYS:
        raise ValueError(f"it holds {', '.join(sorted(arrays))}, not {', '.join(sorted(_ARRAYS))}")
    like = arrays["parameters"]
    for name, array in arrays.items():
        if array.dtype not in (np.float32, np.float64) or array.ndim != 1:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}")
        if (array.dtype, array.shape) != (like.dtype, like.shape):
            raise ValueError(
                f"{name} is {array.dtype} of shape {array.shape}, and the parameters are "
                f"{like.dtype} of shape {like.shape}"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds numbers that are not finite")
    if (arrays["square"] < 0).any():
        raise ValueError("square holds numbers below 0")


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
