"""Read, write and plot the files in the folder of a training run.

The folder contains metrics with a line for each step, checkpoints from which a run can be resumed,
and snapshots (models of earlier steps).
"""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv._argument_errors import invalid, public_call, type_error, value_error
from qkv.arrays import Array, Arrays, finite
from qkv.extras import need
from qkv.files import StrPath, replacing
from qkv.models.files.read import CONFIG, TOKENIZER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHECKPOINTS, SNAPSHOTS = "checkpoints", "snapshots"
METRICS, CURVES = "metrics.jsonl", "curves.png"
MOST_STEPS = 99_999_999  # The names of checkpoints and snapshots have eight digits.
_MOST_LOGGED = 10**15  # `read_losses` skips a line whose step or loss is not below 10**15.
_STEP = re.compile(r"step-(\d{1,15})")
_KEPT = 2
_ARRAYS = {"parameters", "mean", "square"}
_STATE: dict[str, Any] = {
    **dict.fromkeys(("step", "tokens", "updates"), int),
    **{"seconds": float, **dict.fromkeys(("settings", "watch", "objectives"), dict)},
}
_UNSEALED = b"0" * 64  # placeholder for the checksum while the checksum is being computed
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_INK, _FAINT = "#333333", "#dddddd"
_SEAL = re.compile(rb'"sha256":"([0-9a-f]{64})"')


def need_free(folder: Path) -> None:
    """Raise an error if a folder is not free for a new run.

    Raises:
        ValueError: the folder holds a run, or other files.
        NotADirectoryError: the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise invalid(NotADirectoryError, f"{folder} is a file; pass a folder")
    if _checkpoints(folder):
        raise value_error(
            f"{folder} contains a run: continue with resume, or choose another folder"
        )
    if folder.is_dir() and {path.name for path in folder.iterdir()} - {CHECKPOINTS}:
        raise value_error(
            f"{folder} contains files that do not belong to a run; choose an empty folder"
        )


def tokenizer_path(folder: Path) -> Path:
    """Return the path at which the folder of a run keeps a copy of the tokenizer."""
    return folder / CHECKPOINTS / TOKENIZER


# Metrics


class Metrics:
    """A writer that appends JSON lines to a run's metrics.

    The constructor removes the lines of steps after `step`. A run that is resumed at `step` writes
    these lines again.

    Attributes:
        file: the open file, without a buffer.
    """

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / METRICS
        rows = [row for row in read_metrics(folder) if row["step"] <= step]
        if rows or path.exists():
            with replacing(path) as file:
                file.writelines(map(_line, rows))
        self.file = path.open("ab", buffering=0)  # with a buffer, a crash would lose lines

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a line.

        Raises:
            OSError: the disk is full.
        """
        line = _line(row)
        while line:
            line = line[self.file.write(line) :]

    def close(self) -> None:
        """Close the file."""
        self.file.close()


@public_call("read_metrics")
def read_metrics(folder: StrPath) -> list[dict[str, Any]]:
    """Read the metrics of a run; an incomplete last line is ignored.

    Raises:
        ValueError: a line is not JSON, or has no step.
    """
    path, rows = Path(folder) / METRICS, []
    for number, row in _read_lines(path):
        if not (isinstance(row, dict) and isinstance(row.get("step"), int | float)):
            raise value_error(f"{path}, line {number} is not a line of metrics")
        rows.append(row)
    return rows


def read_losses(folder: Path) -> list[tuple[int, float]]:
    """Read the loss of each logged step, in order.

    If a step was logged twice, its later loss is used. Losses that are not finite are skipped, and
    so are lines without a loss, which other programs may write.

    Raises:
        ValueError: a line is not JSON.
    """
    losses: dict[int, float] = {}
    for _, row in _read_lines(folder / METRICS):
        step, loss = (row.get(k) if isinstance(row, dict) else None for k in ("step", "loss"))
        if not isinstance(step, int) or not isinstance(loss, int | float):
            continue
        if 0 <= step < _MOST_LOGGED and -_MOST_LOGGED < loss < _MOST_LOGGED:  # also rejects NaN
            losses[step] = float(loss)
    return sorted(losses.items())


def _read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and content of each line; skip blank lines and an incomplete last line."""
    if not path.is_file():
        return
    broken = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if broken:
                raise value_error(f"{path}, line {broken} is not JSON: correct or remove it")
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


# Curves


def plot_curves(folder: StrPath) -> "Figure":
    """Plot the learning rate and the losses (raw and smoothed) of a run over its steps.

    Args:
        folder: the folder of the run.

    Raises:
        ValueError: the folder has no metrics.
        ImportError: matplotlib is not installed.
    """
    rows = read_metrics(folder)
    if not rows:
        raise ValueError(f"plot_curves: {Path(folder) / METRICS} contains no steps")
    need("matplotlib", "plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    names = list(dict.fromkeys(name for row in rows for name in row["losses"]))
    for name, color in zip(names, _COLORS * len(names), strict=False):
        logged = ((row["step"], row["losses"].get(name)) for row in rows)
        points = [(step, loss) for step, loss in logged if loss is not None]
        steps, losses = np.array(points, np.float64).reshape(-1, 2).T
        smooth = running_means(losses)
        above.plot(steps, losses, color=color, alpha=0.25, linewidth=0.8)
        end = f"{name}, {smooth[-1]:.3f} at the end" if smooth.size else name
        above.plot(steps, smooth, color=color, linewidth=1.8, label=end)
    skipped = [row["step"] for row in rows if row.get("skipped")]
    if skipped:
        top = above.get_ylim()[1]
        above.plot(skipped, [top] * len(skipped), "x", color=_INK, label=f"skipped: {len(skipped)}")
    below.plot([row["step"] for row in rows], [row["rate"] for row in rows], color=_INK)
    above.set_ylabel("loss (nats)", color=_INK)
    below.set_ylabel("rate", color=_INK)
    below.set_xlabel("step", color=_INK)
    below.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    below.set_ylim(bottom=0)
    above.legend(frameon=False, labelcolor=_INK)
    for axes in (above, below):
        axes.grid(color=_FAINT, linewidth=0.6)
        axes.tick_params(colors=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_FAINT)
    return figure


def write_curves(folder: StrPath) -> Path:
    """Plot the curves of a run, and save the plot in its folder."""
    figure: Any = plot_curves(folder)
    path = Path(folder) / CURVES
    with replacing(path) as file:
        figure.savefig(file, format="png")
    return path


def running_means(values: Array) -> Array:
    """Return running means of values. Each window is one thirtieth as long as the array.

    >>> running_means(np.arange(90.0))[[0, 1, 2, 50]]
    array([ 0. ,  0.5,  1. , 49. ])
    """
    width = max(1, len(values) // 30)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - width)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


# Snapshots


def snapshots_in(folder: Path) -> dict[int, Path]:
    """Return the paths of all complete snapshots, keyed by step, earliest first."""
    home = folder / SNAPSHOTS
    paths = {}
    for path in home.iterdir() if home.is_dir() else ():
        match = _STEP.fullmatch(path.name)
        if match and (path / CONFIG).is_file():
            paths[int(match[1])] = path
    return dict(sorted(paths.items()))


def write_snapshot(folder: Path, step: int, save: Callable[[Path], object]) -> None:
    """Write a snapshot with `save`; the snapshot's folder appears only when it is complete."""
    path = folder / SNAPSHOTS / _step_name(step)
    part = path.with_name(f".{path.name}.part")
    with saving(f"the snapshot of step {step}", folder):
        try:
            path.parent.mkdir(exist_ok=True)
            save(part)
            shutil.rmtree(path, ignore_errors=True)  # remove the folder of an earlier run
            part.replace(path)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _step_name(step: int) -> str:
    """Return the name of a checkpoint or snapshot."""
    return f"step-{step:08d}"


# Checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run at a step.

    Attributes:
        path: the path of the file.
        arrays: the parameters, and the optimizer's arrays `mean` and `square`; each is (n,).
        about: the step, the settings and all other state, as JSON values.
        damaged: for each later checkpoint, the reason why that checkpoint cannot be used.
    """

    path: Path
    arrays: dict[str, Array]
    about: dict[str, Any]
    damaged: tuple[str, ...] = ()


def write_checkpoint(folder: Path, step: int, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Write a checkpoint. Keep only the new checkpoint and the previous one.

    Raises:
        OSError: the checkpoint cannot be written; earlier checkpoints stay.
    """
    path = folder / CHECKPOINTS / f"{_step_name(step)}.safetensors"
    with saving(f"the checkpoint of step {step}", folder):
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as file:
            file.write(seal_checkpoint(arrays, about))
            file.flush()
            os.fsync(file.fileno())  # Even after a power failure, the file is complete.
        for old in [other for other in _checkpoints(folder) if other.name <= path.name][:-_KEPT]:
            old.unlink()


def seal_checkpoint(arrays: Arrays, about: Mapping[str, Any]) -> bytes:
    """Return a checkpoint as the bytes of a safetensors file with a checksum in its header.

    The checksum is the SHA-256 of the same bytes with 64 zeros in place of the checksum.
    """
    from safetensors.numpy import save

    texts = {"qkv": json.dumps(about, default=_plain), "sha256": _UNSEALED.decode()}
    content = save(dict(arrays), texts)
    checksum = hashlib.sha256(content).hexdigest().encode()
    return content.replace(b'"%b"' % _UNSEALED, b'"%b"' % checksum, 1)


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """Read and return the last complete checkpoint, or None if the folder has no checkpoint.

    Raises:
        ValueError: no checkpoint is complete.
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
        raise value_error(f"all checkpoints are damaged: {'; '.join(damaged)}")
    return None


# The settings that may grow when a complete run continues.
LIMITS = ("steps", "minutes")


def need_same(
    stored: Mapping[str, Any], settings: Mapping[str, Any], path: Path, free: Collection[str] = ()
) -> None:
    """Raise an error if the settings of a run differ from the `stored` settings of a checkpoint.

    The settings with names in `free` may differ.

    Raises:
        ValueError: a setting differs; the message names the first such setting.
    """
    same = json.loads(json.dumps(settings, default=_plain))  # Tuples become lists.
    theirs, ours = dict(_flat(stored)), dict(_flat(same))
    for name in [*theirs, *ours]:
        if name not in free and theirs.get(name) != ours.get(name):
            raise value_error(
                f"{path} belongs to a run with {name} {_quote(theirs, name)}, but now "
                f"{name} is {_quote(ours, name)}; pass the same value, or another folder"
            )


@contextmanager
def saving(what: str, folder: Path) -> Iterator[None]:
    """Re-raise each OSError with `what` and the last checkpoint added to its message."""
    try:
        yield
    except OSError as error:
        try:
            checkpoint = last_checkpoint(folder)
        except ValueError:
            checkpoint = None
        good = (
            f"{CHECKPOINTS}/{checkpoint.path.name} is complete"
            if checkpoint
            else "there is no earlier checkpoint"
        )
        message = f"{what} cannot be written ({error.strerror or error}): {good}"
        raise OSError(error.errno, message, str(folder)) from error


def _checkpoints(folder: Path) -> list[Path]:
    """Return the files of checkpoints, in order."""
    return sorted((folder / CHECKPOINTS).glob(f"step-{'[0-9]' * 8}.safetensors"))


def _read(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read the arrays and the other state of a checkpoint.

    Raises:
        OSError: the checkpoint cannot be read.
        ValueError: the checkpoint is damaged, or a run cannot resume from it.
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
        raise ValueError("its checksum does not match its content")
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        arrays, about = load(content), json.loads(header["__metadata__"]["qkv"])
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"it is not a qkv checkpoint ({error})") from None
    _check_state(about, int(path.stem.removeprefix("step-")))
    _check_arrays(arrays)
    return arrays, about


def _check_state(about: Any, step: int) -> None:
    """Raise an error if `about` is not a valid state of a run at this step."""
    for name, kind in _STATE.items():
        value = about.get(name) if isinstance(about, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r:.40}, but must be of type {kind.__name__}")
        if kind in (int, float) and not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}, and it must be 0 or more")
    if about["step"] != step or about["updates"] > step:
        raise ValueError(
            f"step is {about['step']} and updates is {about['updates']}: "
            f"step must be {step}, and updates must be at most {step}"
        )
    steps = about["settings"].get("steps")
    if steps is not None and not (isinstance(steps, int) and step <= steps):
        raise ValueError(f"its step is {step}, but the run has {steps!r:.40} steps")


def _check_arrays(arrays: Arrays) -> None:
    """Raise an error if the arrays of a checkpoint are not valid.

    A checkpoint has the arrays `parameters`, `mean` and `square`, of equal shape and dtype.
    """
    if arrays.keys() != _ARRAYS:
        raise ValueError(
            f"its arrays are {', '.join(sorted(arrays))}, not {', '.join(sorted(_ARRAYS))}"
        )
    like = arrays["parameters"]
    for name, array in arrays.items():
        has = f"{name} is {array.dtype} of shape {array.shape}"
        if array.dtype not in (np.float32, np.float64) or array.ndim != 1:
            raise ValueError(has)
        if (array.dtype, array.shape) != (like.dtype, like.shape):
            raise ValueError(f"{has}, but the parameters are {like.dtype} of shape {like.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} contains numbers that are not finite")
    if (arrays["square"] < 0).any():
        raise ValueError("square contains negative numbers")


def _plain(value: Any) -> Any:
    """Convert a NumPy number or array to a value that JSON can store."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise type_error(
        f"a checkpoint cannot hold a {type(value).__name__}; pass numbers, strings, lists and dicts"
    )


def _flat(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value in nested dicts with its path, for example "model.hidden_size"."""
    if not isinstance(values, dict):
        yield name, values
        return
    for key, value in values.items():
        yield from _flat(value, f"{name}.{key}" if name else key)


def _quote(values: Mapping[str, Any], name: str) -> str:
    """Return the value of a setting as text, for an error."""
    return f"{values[name]!r:.60}" if name in values else "left out"
