"""The run folder: what its files are called, and how they are written and read.

A run keeps in it a line of metrics for each step, checkpoints to go on from, and snapshots, models
from along the way.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array, finite
from qkv.files import replacing
from qkv.models.files.read import CONFIG, TOKENIZER

CHECKPOINTS, SNAPSHOTS = "checkpoints", "snapshots"
METRICS, CURVES = "metrics.jsonl", "curves.png"
MOST_STEPS = 99_999_999  # the names of checkpoints and snapshots have eight digits
_MOST_LOGGED = 10**15  # of a step or a loss that is taken for one
_STEP = re.compile(r"step-(\d{1,15})")
_KEPT = 2
_ARRAYS = {"parameters", "mean", "square"}
_STATE: dict[str, Any] = {
    **dict.fromkeys(("step", "tokens", "updates"), int),
    **{"seconds": float, **dict.fromkeys(("settings", "watch", "objectives"), dict)},
}
_UNSEALED = b"0" * 64  # where the checksum will stand, and what it is made with
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')


def need_free(folder: Path) -> None:
    """An error unless a run may begin in a folder.

    Raises:
        ValueError: there is one, or other files.
        NotADirectoryError: it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"train: {folder} is a file: name a folder")
    if _checkpoints(folder):
        raise ValueError(f"train: {folder} holds a run: go on with resume, or name another folder")
    if folder.is_dir() and {path.name for path in folder.iterdir()} - {CHECKPOINTS}:
        raise ValueError(
            f"train: {folder} holds files that are not of a run: name a new or empty folder"
        )


def tokenizer_path(folder: Path) -> Path:
    """Where a run keeps the tokenizer that it began with."""
    return folder / CHECKPOINTS / TOKENIZER


# Metrics


class Metrics:
    """Lines of JSON that are added to a file, after those of the steps before `step`.

    Lines of later steps, which a run that was killed has left, are removed.

    Attributes:
        file: what is written to, without a buffer.
    """

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / METRICS
        kept = [row for row in read_metrics(folder) if row["step"] <= step]
        if kept or path.exists():
            with replacing(path) as file:
                file.writelines(map(_line, kept))
        self.file = path.open("ab", buffering=0)  # what was written is there, whatever comes

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a line.

        Raises:
            OSError: the disk is full.
        """
        line = _line(row)
        while line:
            line = line[self.file.write(line) :]

    def close(self) -> None:
        """No more lines."""
        self.file.close()


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run; a last one that is not whole is left out.

    Raises:
        ValueError: a line is not JSON, or of no step.
    """
    path, rows = Path(folder) / METRICS, []
    for number, row in _logged(path, "read_metrics"):
        if not (isinstance(row, dict) and isinstance(row.get("step"), int | float)):
            raise ValueError(f"read_metrics: {path}, line {number} is not a line of metrics")
        rows.append(row)
    return rows


def read_losses(folder: Path, *, call: str) -> list[tuple[int, float]]:
    """The loss of each logged step, in order; a step that was logged twice counts as the later.

    Lines without a loss, which others write, and losses that are not finite are passed over.

    Raises:
        ValueError: a line is not JSON.
    """
    found: dict[int, float] = {}
    for _, row in _logged(folder / METRICS, call):
        step, loss = (row.get(k) if isinstance(row, dict) else None for k in ("step", "loss"))
        if not isinstance(step, int) or not isinstance(loss, int | float):
            continue
        if 0 <= step < _MOST_LOGGED and -_MOST_LOGGED < loss < _MOST_LOGGED:  # and no NaN
            found[step] = float(loss)
    return sorted(found.items())


def _logged(path: Path, call: str) -> Iterator[tuple[int, Any]]:
    """What each line holds, by its number; blank ones and a last one that is cut are left out."""
    if not path.is_file():
        return
    broken = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if broken:
                raise ValueError(f"{call}: {path}, line {broken} is no JSON: mend or remove it")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                broken = number
            else:
                yield number, row


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(finite(row), allow_nan=False).encode() + b"\n"


# Snapshots


def snapshots_in(folder: Path) -> dict[int, Path]:
    """The snapshots that are whole, by their steps, in order."""
    home = folder / SNAPSHOTS
    found = {}
    for path in home.iterdir() if home.is_dir() else ():
        match = _STEP.fullmatch(path.name)
        if match and (path / CONFIG).is_file():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def write_snapshot(folder: Path, step: int, save: Callable[[Path], object]) -> None:
    """Let `save` write a model to a new folder, which takes its place when it is whole."""
    place = folder / SNAPSHOTS / _step_name(step)
    part = place.with_name(f".{place.name}.part")
    with saving(f"the snapshot of step {step}", folder):
        try:
            place.parent.mkdir(exist_ok=True)
            save(part)
            shutil.rmtree(place, ignore_errors=True)  # of a run that was killed after this step
            part.replace(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _step_name(step: int) -> str:
    """What a checkpoint or snapshot is called."""
    return f"step-{step:08d}"


# Checkpoints


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
) -> None:
    """Write one, and remove those before it but for the last.

    Raises:
        OSError: it cannot be written; those that are there stay.
    """
    path = folder / CHECKPOINTS / f"{_step_name(step)}.safetensors"
    with saving(f"the checkpoint of step {step}", folder):
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as file:
            file.write(sealed(arrays, about))
            file.flush()
            os.fsync(file.fileno())  # so that after a power cut it is whole, too
        for old in [one for one in _checkpoints(folder) if one.name <= path.name][:-_KEPT]:
            old.unlink()


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
    for path in reversed(_checkpoints(folder)):
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
        good = (
            f"{CHECKPOINTS}/{kept.path.name} is whole" if kept else "there is no checkpoint before"
        )
        told = f"{what} cannot be written ({error.strerror or error}): {good}"
        raise OSError(error.errno, told, str(folder)) from error


def _checkpoints(folder: Path) -> list[Path]:
    """The files of checkpoints, in order."""
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
    """Raise unless a run can be at this step in this state."""
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
    """Raise unless these can be the parameters and the running means of a run."""
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
    """A setting as errors show it."""
    return f"{values[name]!r:.60}" if name in values else "left out"
