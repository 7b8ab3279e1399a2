"""The training loop, with checkpoints, snapshots, and a stop if the loss diverges."""

import math
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, public_call, value_error
from qkv._progress import training_progress
from qkv.arrays import Array, quote, real_number, whole_number
from qkv.files import StrPath, named_folder
from qkv.learn import run_folder
from qkv.learn._network import Network
from qkv.learn._objectives import Objective, Part
from qkv.learn.optimizer import AdamW, Schedule
from qkv.models.model import Model
from qkv.ops.linear import products_in_bfloat16
from qkv.signals import Interrupted, answering, leave

MOST_SKIPPED = 10  # After this many skipped steps in a row, the run ends.
_MEMORY = 0.95  # The weight of the previous value in the running mean of a loss.
_SOME = 20  # After this number of steps, a running mean is reliable.
_PRODUCTS: dict[str, Callable[[], AbstractContextManager[None]]]
_PRODUCTS = {"float32": nullcontext, "bfloat16": products_in_bfloat16}
# Limits in nats: how far the running mean of a loss may be above its lowest value so far.
_UNEASY = 1.0  # Above this limit, no checkpoint is written.
_TOO_MUCH = 3.0  # Above this limit, the run ends.


@dataclass(frozen=True)
class Trained:
    """The result of a run.

    Attributes:
        folder: the folder of the run.
        steps: the number of steps, including skipped steps.
        tokens: the number of tokens that were read.
        seconds: the duration of the training, including the time before the run was resumed.
        loss: the running mean of the loss over the last steps.
        skipped: the number of steps whose gradient was not finite.
    """

    folder: Path
    steps: int
    tokens: int
    seconds: float
    loss: float
    skipped: int


@public_call("train")
def train(
    network: Network,
    objectives: Objective | Iterable[Objective | Part],
    *,
    folder: StrPath,
    steps: int | None = None,
    minutes: float | None = None,
    schedule: Schedule | float = 1e-3,
    optimizer: AdamW | None = None,
    seed: int = 0,
    resume: bool = False,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float = 120.0,
    snapshots: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
    evaluate: Callable[[Model], Mapping[str, float]] | None = None,
    evaluate_steps: int | None = None,
    products: str = "float32",
    show_progress_bar: bool | None = None,
) -> Trained:
    """Train a network, and write the model to a folder.

    The folder then contains the model, which `qkv.load` reads; metrics.jsonl, with a line for each
    step; checkpoints/, with the last two checkpoints; and snapshots/, with the models of earlier
    steps (in float16).

    With `resume=True`, a stopped run continues from its last checkpoint. If `minutes` is None, the
    resumed run and an uninterrupted run give exactly equal models. On Ctrl-C, SIGTERM, SIGHUP or
    SIGQUIT, the run finishes the current step, and saves a checkpoint and the model. A step is
    skipped with a warning if its gradient is not finite.

    To extend a complete run, pass `resume=True` and larger `steps` or `minutes`; the optimizer
    keeps its state. The schedule then spans all steps: a run of 100 steps that continues for 100
    more gives the same model as a run of 200 steps if the rate is constant, as in `Schedule(1e-3,
    warmup=0, fall="none")`.

    Args:
        network: the network to train.
        objectives: one objective, or several objectives whose weighted losses are added.
        folder: the destination, which is created if it does not exist.
        steps: the number of steps.
        minutes: the maximum duration in minutes; pass `steps`, `minutes` or both.
        schedule: the learning-rate schedule. A number stands for `Schedule(number)`, so it is the
            highest rate.
        optimizer: the optimizer of this network; by default `AdamW(network)`.
        seed: the seed of the random numbers in each step.
        resume: continue from the last checkpoint in the folder.
        checkpoint_steps: the number of steps between two checkpoints.
        checkpoint_seconds: the maximum time in seconds between two checkpoints.
        snapshots: the steps after which a snapshot is written; a snapshot is also written after the
            last step. The default is about twelve steps at increasing intervals. With an empty
            list, no snapshots are written.
        settings: values that are stored in each checkpoint, such as the corpus. A run can be
            resumed only with the same values.
        evaluate: a function that takes the current model and returns named numbers, such as
            `{"test_accuracy": 0.5}`. The numbers become part of the step's line in metrics.jsonl.
        evaluate_steps: the number of steps between two calls of `evaluate`; `evaluate` is always
            called after the last step.
        products: the precision of multiplications by weight matrices, including those of the
            backward pass. With "bfloat16", both factors are first rounded to bfloat16; with
            "float32", they are not rounded. Products are always summed in float32. On some
            processors, a step with "bfloat16" takes about 4/5 of the time of a step with "float32".
        show_progress_bar: with None, a progress bar appears only on a terminal.

    Raises:
        ValueError: a number is out of range; the optimizer belongs to a different network; the
            folder holds a different run; or the folder has no checkpoint to resume from.
        Diverged: the loss keeps rising; ten steps in a row were skipped; or an output of the model
            is not finite. The run writes the model of the last good checkpoint to the folder.
        OSError: a file cannot be written; existing checkpoints stay intact.
        Interrupted: a signal stopped the run, after everything was saved. `Interrupted` is a
            subclass of KeyboardInterrupt.
    """
    if steps is None and minutes is None:
        raise value_error("steps and minutes are both None; pass one of them, or both")
    steps, seed = checked_limits(steps, minutes, seed)
    if products not in _PRODUCTS:
        raise value_error(f"products is {products!r}: choose {' or '.join(_PRODUCTS)}")
    if checkpoint_steps is not None:
        checkpoint_steps = whole_number(checkpoint_steps, name="checkpoint_steps", least=1)
    if evaluate_steps is not None:
        evaluate_steps = whole_number(evaluate_steps, name="evaluate_steps", least=1)
        if evaluate is None:
            raise value_error("evaluate_steps is given without evaluate; pass both, or neither")
    if optimizer is not None and optimizer.network is not network:
        raise value_error("the optimizer belongs to another network; pass AdamW(network)")
    if not isinstance(schedule, Schedule):
        schedule = Schedule(schedule)
    parts = _parts(objectives)
    home, wanted = named_folder(folder), spread(steps) if snapshots is None else snapshots
    optimizer = optimizer or AdamW(network)
    run = Training(
        home,
        network,
        parts,
        schedule,
        optimizer,
        seed,
        steps,
        minutes,
        frozenset(wanted),
        checkpoint_steps,
        checkpoint_seconds,
        evaluate,
        evaluate_steps,
    )
    extra = {} if products == "float32" else {"products": products}
    run.begin(resume, {**run.settings(), **extra, **(settings or {})})
    with asked_to_stop() as signals, _PRODUCTS[products]():
        try:
            run.go(signals, show_progress_bar)
            run.finish()
        except Diverged as error:
            raise invalid(Diverged, run.back_to_good(error)) from None
    if signals:
        message = f"stopped at step {run.step}: checkpoint and model are in {home}"
        raise Interrupted(message, signals[0])
    skipped, loss = run.watch.skipped, run.watch.loss()
    return Trained(home, run.step, run.tokens, run.seconds, loss, skipped)


def _parts(objectives: Objective | Iterable[Objective | Part]) -> list[Part]:
    """Return each objective with its weight in the loss; objectives need different names."""
    objectives = objectives if isinstance(objectives, Iterable) else [objectives]
    parts = [part if isinstance(part, Part) else Part(part) for part in objectives]
    names = [part.objective.name for part in parts]
    if not names or len(set(names)) < len(names):
        raise value_error(f"the objectives are {names}; pass one or more, with different names")
    return parts


def checked_limits(steps: int | None, minutes: float | None, seed: int) -> tuple[int | None, int]:
    """Return the steps and the seed of a run as Python integers.

    Raises:
        TypeError: `steps` or `seed` is not an integer.
        ValueError: `steps`, `minutes` or `seed` is out of range.
    """
    if steps is not None:
        steps = whole_number(steps, name="steps", least=1, most=run_folder.MOST_STEPS)
    if minutes is not None and not 0 < minutes < math.inf:
        raise value_error(f"minutes is {minutes}: it must be finite and above 0")
    return steps, whole_number(seed, name="seed", least=0, most=math.inf)


class Diverged(RuntimeError):
    """A run ended because its loss rose too much or was not finite. The last checkpoint is good."""


@dataclass
class LossMeans:
    """The running means of the losses of a run. The keys of the dicts are names of objectives.

    Attributes:
        skipped: the number of steps that were skipped.
        seen: the number of losses in each objective's running mean.
        mean: the running mean of the losses of each objective.
        lowest: the lowest running mean of each objective.
        in_a_row: the number of steps that were skipped since the last successful step.
    """

    skipped: int
    seen: dict[str, int]
    mean: dict[str, float]
    lowest: dict[str, float]
    in_a_row: int = 0

    @property
    def well(self) -> bool:
        """True if the last step was not skipped and each loss is near its lowest value so far."""
        rise = max((self.mean[name] - self.lowest[name] for name in self.mean), default=0.0)
        return self.in_a_row == 0 and rise <= _UNEASY

    def skip(self) -> None:
        """Count a skipped step.

        Raises:
            Diverged: too many steps in a row were skipped.
        """
        self.skipped += 1
        self.in_a_row += 1
        if self.in_a_row >= MOST_SKIPPED:
            raise Diverged(f"the gradient was not finite in {MOST_SKIPPED} steps in a row")

    def note(self, losses: Mapping[str, float]) -> None:
        """Add the losses of a step to the running means.

        Raises:
            Diverged: a loss is far above its lowest value.
        """
        self.in_a_row = 0
        for name, loss in losses.items():
            self.seen[name] = seen = self.seen.get(name, 0) + 1
            mean = self.mean.get(name, loss)
            mean += (loss - mean) * (1 - _MEMORY) / (1 - _MEMORY**seen)
            self.mean[name] = mean
            self.lowest[name] = lowest = min(self.lowest.get(name, mean), mean)
            if seen >= _SOME and mean - lowest > _TOO_MUCH:
                raise Diverged(f"the loss of {name} has risen from {lowest:.2f} to {mean:.2f}")

    def loss(self) -> float:
        """Return the sum of the running means; NaN before the first step."""
        return sum(self.mean.values()) if self.mean else math.nan


@dataclass
class Training:
    """A training run: its settings, and its state between two steps."""

    folder: Path
    network: Network
    parts: Sequence[Part]
    schedule: Schedule
    optimizer: AdamW
    seed: int
    steps: int | None
    minutes: float | None
    snapshots: Collection[int]
    checkpoint_steps: int | None
    checkpoint_seconds: float
    evaluate: Callable[[Model], Mapping[str, float]] | None = None
    evaluate_steps: int | None = None
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    watch: LossMeans = field(default_factory=lambda: LossMeans(0, {}, {}, {}))
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The progress of the run, from 0 at its start to 1 at its end."""
        return _share(self.step, self.seconds, self.steps, self.minutes)

    def begin(self, resume: bool, settings: dict[str, Any]) -> None:
        """Begin a new run, or resume from the last checkpoint of the folder."""
        self.about, folder = {"settings": settings}, self.folder
        saved = run_folder.last_checkpoint(folder)
        if resume:
            if saved is None:
                raise value_error(f"{folder} contains no checkpoint to resume from")
            theirs, reached = saved.about["settings"], (saved.about["step"], saved.about["seconds"])
            limits = theirs.get("steps"), theirs.get("minutes")
            done = _share(*reached, *limits) >= 1 > _share(*reached, self.steps, self.minutes)
            run_folder.need_same(theirs, settings, saved.path, run_folder.LIMITS if done else ())
            self.restore(saved)
            for step, path in run_folder.snapshots_in(folder).items():
                if step > self.step:  # the resumed run repeats this step
                    shutil.rmtree(path, ignore_errors=True)
            return
        if saved is not None:
            at = f"which is at step {saved.about['step']}"
            raise value_error(
                f"{folder} contains a run, {at}: continue with resume, or choose another folder"
            )
        if not self.network.is_finite():
            raise value_error(
                f"{self.network.source.name} has parameters or outputs that are not finite; choose "
                "another model"
            )
        with run_folder.saving("the folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.save()

    def go(self, signals: Sequence[int], show_progress_bar: bool | None) -> None:
        """Run steps until the run is complete or a signal stops it."""
        saved_at = time.monotonic()
        with (
            closing(run_folder.Metrics(self.folder, self.step)) as metrics,
            training_progress(show_progress_bar) as show,
        ):
            if self.step in self.snapshots:
                self.snapshot()
            while self.share < 1 and not signals:
                row = self.advance()
                every = self.evaluate_steps
                if self.share >= 1 or signals or (every and self.step % every == 0):
                    row |= self.run_evaluation(row)
                with run_folder.saving(run_folder.METRICS, self.folder):
                    metrics.write(row)
                show(self.share, in_words(row, self.steps, self.watch.loss()))
                if self.step in self.snapshots:
                    self.snapshot()
                every = self.checkpoint_steps
                due = every is not None and self.step % every == 0
                late = time.monotonic() - saved_at > self.checkpoint_seconds
                if (due or late) and self.watch.well:
                    self.need_finite()
                    self.save()
                    saved_at = time.monotonic()

    def finish(self) -> None:
        """Write the last checkpoint, the last snapshot and the model."""
        self.need_finite()
        if self.watch.well:
            self.save()
        if self.snapshots and self.step not in self.snapshots:
            self.snapshot()
        self.save_model()

    def need_finite(self) -> None:
        """Raise `Diverged` if a parameter or a running mean of AdamW is not finite."""
        if not self.network.is_finite():
            raise Diverged("the model's parameters or outputs are not finite")
        means = (self.optimizer.mean, self.optimizer.square)
        if not all(np.isfinite(mean).all() for mean in means):
            raise Diverged("the running means of AdamW are not finite")

    def advance(self) -> dict[str, Any]:
        """Run one step, and return its line for the metrics."""
        began, tokens = time.perf_counter(), 0
        middle = self.share + (0.5 / self.steps if self.steps else 0.0)
        rate = float(self.schedule(middle))
        self.network.gradient[:] = 0
        losses: dict[str, float] = {}
        total = 0.0
        with np.errstate(all="ignore"):  # checked below
            for number, part in enumerate(self.parts):
                weight = float(part.at(middle))
                if weight == 0:
                    continue
                rng = np.random.default_rng([self.seed, self.step, number])
                batch = part.objective.batch(self.step, rng)
                with self.network.weighted(weight):
                    loss, count = part.objective(self.network, batch)
                losses[part.objective.name] = float(loss)
                total, tokens = total + weight * float(loss), tokens + int(count)
            length = self.optimizer.length()
            skipped = not (math.isfinite(total) and math.isfinite(length))
            if not skipped:
                self.optimizer.step(rate, length)
        self.step, self.tokens = self.step + 1, self.tokens + tokens
        taken = time.perf_counter() - began
        self.seconds += taken
        if skipped:
            warnings.warn(
                f"train: step {self.step} was skipped: its loss is {total:.4g}, and its gradient "
                f"has the norm {length:.4g}",
                UserWarning,
                stacklevel=3,
            )
            self.watch.skip()
        else:
            self.watch.note(losses)
        return {
            "step": self.step,
            "tokens": self.tokens,
            "loss": total,
            "losses": losses,
            "rate": rate,
            "grad_norm": length,
            "tokens_per_second": round(tokens / taken, 1),
            "seconds": round(self.seconds, 3),
            **({"skipped": True} if skipped else {}),
        }

    def run_evaluation(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers of `evaluate` for the current model; {} without `evaluate`."""
        if self.evaluate is None:
            return {}
        found = self.evaluate(self.network.model())
        if not isinstance(found, Mapping) or not all(
            isinstance(name, str) and name not in row for name in found
        ):
            raise value_error(
                f"`evaluate` returned {quote(found)}; return a dict of numbers, such as "
                f'{{"test_accuracy": 0.5}}, with names other than {", ".join(row)}'
            )
        return {name: real_number(found[name], name=f"evaluate's {name}") for name in found}

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must repeat."""
        optimizer = self.optimizer
        return {
            "model": self.network.source.config,
            "dtype": self.network.flat.dtype.name,
            "objectives": {
                part.objective.name: {
                    "weight": "a function" if callable(part.weight) else part.weight,
                    "begin": part.begin,
                    **getattr(part.objective, "settings", {}),
                }
                for part in self.parts
            },
            "schedule": asdict(self.schedule),
            "betas": list(optimizer.betas),
            **{name: getattr(optimizer, name) for name in ("eps", "decay", "clip")},
            **{"seed": self.seed, "steps": self.steps, "minutes": self.minutes},
        }

    def save(self) -> None:
        """Write a checkpoint."""
        about = {
            **self.about,
            **{"step": self.step, "tokens": self.tokens, "seconds": self.seconds},
            **{"updates": self.optimizer.count, "watch": asdict(self.watch)},
            "objectives": {part.objective.name: part.objective.state() for part in self.parts},
        }
        run_folder.write_checkpoint(self.folder, self.step, self.arrays(), about)

    def arrays(self) -> dict[str, Array]:
        """Return the parameters and the optimizer's arrays `mean` and `square`, all (n,)."""
        means = {"mean": self.optimizer.mean, "square": self.optimizer.square}
        return {"parameters": self.network.flat, **means}

    def restore(self, saved: run_folder.Checkpoint) -> None:
        """Restore the state from a checkpoint, and warn if later checkpoints are damaged.

        Raises:
            ValueError: the checkpoint belongs to a different network or to different objectives.
        """
        about, numbers = saved.about, saved.arrays["parameters"]
        for damage in saved.damaged:
            message = f"train: {damage}; continuing from step {about['step']}"
            warnings.warn(message, UserWarning, stacklevel=2)
        flat = self.network.flat
        if (numbers.dtype, numbers.shape) != (flat.dtype, flat.shape):
            raise value_error(
                f"{saved.path} holds {numbers.size} numbers of {numbers.dtype}, but the network "
                f"has {flat.size} of {flat.dtype}; pass the same network"
            )
        for name, array in self.arrays().items():
            array[:] = saved.arrays[name]
        self.optimizer.count = about["updates"]
        self.step, self.tokens, self.seconds = about["step"], about["tokens"], about["seconds"]
        try:
            self.watch = LossMeans(**about["watch"])
            for part in self.parts:
                part.objective.restore(about["objectives"][part.objective.name])
        except (LookupError, TypeError) as error:
            raise value_error(f"{saved.path} does not contain the state of this run") from error

    def save_model(self) -> None:
        """Write the current model."""
        with run_folder.saving(f"the model of step {self.step}", self.folder):
            self.network.model().save(self.folder)

    def snapshot(self) -> None:
        """Write a snapshot of the model, in float16 if all numbers fit into float16."""
        small = np.abs(self.network.flat).max() <= np.finfo(np.float16).max
        model = self.network.model(np.float16 if small else None)
        run_folder.write_snapshot(self.folder, self.step, model.save)

    def back_to_good(self, error: Diverged) -> str:
        """Write the model of the last good checkpoint; return the message for the user."""
        step = self.step
        saved = run_folder.last_checkpoint(self.folder)
        if saved is not None:
            self.restore(saved)
            self.save_model()
        return (
            f"at step {step}, {error}: the run stops, and {self.folder} holds the model of "
            f"its last good checkpoint, step {self.step}: use a lower rate than "
            f"{self.schedule.rate:g}"
        )


def _share(step: int, seconds: float, steps: int | None, minutes: float | None) -> float:
    """Return the progress of a run with these limits, from 0 at its start to 1 at its end."""
    by_steps = 0.0 if steps is None else step / steps
    return max(by_steps, 0.0 if minutes is None else seconds / (60 * minutes))


def spread(steps: int | None, count: int = 12) -> list[int]:
    """Return `count` steps from 0 to `steps`, at increasing intervals.

    If `steps` is None, return 0, 1, 2, 4, 8, ...

    >>> spread(1000, 7)
    [0, 1, 4, 16, 63, 251, 1000]
    """
    if steps is None:
        return [0, *(2**power for power in range(40))]
    return sorted({0, *np.geomspace(1, max(steps, 1), count - 1).round().astype(int).tolist()})


def in_words(row: Mapping[str, Any], steps: int | None, loss: float) -> str:
    """Format a row of the metrics as a short text for the progress bar."""
    total = f"/{steps}" if steps else ""
    rate = row["tokens"] / max(row["seconds"], 1e-3)
    return f"step {row['step']}{total}, loss {loss:.3f}, {rate:,.0f} tokens/s"


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """Collect signals to stop after the current step; a second signal stops the run immediately."""
    signals: list[int] = []

    def ask(number: int, _: Any) -> None:
        if signals and number == signal.SIGINT:
            raise KeyboardInterrupt
        if signals:
            leave(number)
        signals.append(number)

    with answering(ask, signal.SIGINT):
        yield signals
