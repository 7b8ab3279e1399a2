"""The attention of each head over one text, at each snapshot of a training run."""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import invalid, type_error, value_error
from qkv._progress import progress
from qkv.arrays import Array, is_whole_number
from qkv.models import Model, load
from qkv.models.run.truncation import callers
from qkv.see.analysis import measures, selection
from qkv.see.analysis._view_inputs import one_text, texts_of
from qkv.see.analysis.head_weights import Heads, heads_of
from qkv.see.analysis.selection import ChosenHead
from qkv.trace import Trace

Text = str | Sequence[int] | None

# Config keys that may differ between the models of one run, because they do not affect the results.
_ASIDE = {"dtype", "torch_dtype", "transformers_version", "_name_or_path", "seed"}


@dataclass(frozen=True)
class TrainingRun:
    """A training run.

    Attributes:
        name: the name of the run.
        steps: the steps of the run's snapshots, in order.
        losses: a pair (training step, loss) for each logged loss, in order; an empty list if the
            run has no log.
        open: the function that returns the model or the trace of a step.
    """

    name: str
    steps: list[int]
    losses: list[tuple[int, float]]
    open: Callable[[int], Any]


def read_run(run: Any) -> TrainingRun:
    """Read a run from a folder or a mapping.

    The keys of the mapping are steps, and its values are models or traces.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: the run has no snapshots, or its log cannot be read.
        TypeError: `run` is neither a folder nor a mapping from step to model or trace.
    """
    # imported late, because this import also loads the training loop
    from qkv.learn.run_folder import SNAPSHOTS, read_losses, snapshots_in

    if isinstance(run, Mapping):
        return _of_mapping(run)
    if not isinstance(run, str | os.PathLike):
        raise type_error(
            f"`run` has type {type(run).__name__}; pass the folder of a run, or a mapping from "
            "steps to models or traces"
        )
    folder = Path(run)
    if not folder.exists():
        raise invalid(
            FileNotFoundError, f"the folder {folder} does not exist; pass the folder of a run"
        )
    if not folder.is_dir():
        raise invalid(NotADirectoryError, f"{folder} is a file; pass the folder of a run")
    snapshots = snapshots_in(folder)
    if not snapshots:
        raise value_error(
            f"{folder} has no snapshots ({SNAPSHOTS}/step-00000100 and so on, each a "
            "model): `qkv train` writes them during training"
        )
    return TrainingRun(
        folder.resolve().name,
        list(snapshots),
        read_losses(folder),
        lambda step: load(snapshots[step]),
    )


def _of_mapping(run: Mapping[Any, Any]) -> TrainingRun:
    if not run:
        raise value_error("`run` is empty; pass at least one step, such as {100: model}")
    for step, snapshot in run.items():
        if not is_whole_number(step) or step < 0:
            raise type_error(f"{step!r:.40} is not a training step; pass a non-negative integer")
        if not isinstance(snapshot, Model | Trace):
            raise type_error(
                f"step {step} has type {type(snapshot).__name__}; pass a model or a trace "
                "(for an encoder-decoder, trace.encoder or trace.decoder)"
            )
    steps = sorted(int(step) for step in run)
    return TrainingRun("", steps, [], lambda step: run[step])


def traces(run: TrainingRun, text: Text, most: int) -> Iterator[tuple[int, Trace]]:
    """Run each snapshot and trace its attention weights; the first trace also has the scores.

    Args:
        run: the run.
        text: the text, or the ids of its tokens; None if the run holds traces.
        most: the maximum number of weights in one trace, summed over all layers and heads.

    Raises:
        ValueError: the text is missing, empty, too long, or given although the run holds traces; or
            the snapshots belong to different runs.
    """
    first: tuple[int, Any, Trace] | None = None
    with progress("snapshots", len(run.steps)) as advance:
        for step in run.steps:
            snapshot = run.open(step)
            if isinstance(snapshot, Trace):
                if text is not None:
                    raise type_error("the traces already have a text: leave `text` out")
                trace = one_text(snapshot)
                if not any(("pattern", layer) in trace for layer in range(trace.num_layers)):
                    raise value_error(
                        f"the trace of step {step} holds no weights: trace "
                        'hook_pattern with model.trace(text, names=["pattern"])'
                    )
                _check_size(len(trace.layers) * trace.num_heads, len(trace.tokens), most)
            else:
                if first is not None and not isinstance(first[1], Trace):
                    _check_configs(first[0], first[1].config, step, snapshot.config)
                trace = _trace_text(snapshot, text, most, again=first is not None)
            if first is None:
                first = (step, snapshot, trace)
            _check_alike(first[0], first[2], step, trace)
            yield step, trace
            advance(1)


def _trace_text(model: Model, text: Text, most: int, *, again: bool) -> Trace:
    if text is None:
        raise value_error(
            'the text is missing; pass one, as in replay(run, "the cat sat on the mat")'
        )
    if isinstance(text, str):
        (text,) = texts_of([text])
        size = len(model.tokenize(text))
    else:
        size = len(np.atleast_1d(text))
    _check_size(model.num_layers * model.num_heads, min(size, model.max_seq_length or size), most)
    with warnings.catch_warnings():
        if again:  # the first snapshot has already warned that the text was truncated
            warnings.simplefilter("ignore", UserWarning)
        names = ["pattern"] if again else ["pattern", "attn_scores"]
        trace = model.trace(text if isinstance(text, str) else np.asarray(text), names=names)
    return one_text(trace)


def _check_size(heads: int, size: int, most: int) -> None:
    if heads * size**2 > most:
        raise value_error(
            f"the text has {size:,} tokens, but with {heads} heads a page holds at most "
            f"{math.isqrt(most // heads):,} tokens; pass a shorter text"
        )


def _check_configs(a: int, config: dict[str, Any], b: int, other: dict[str, Any]) -> None:
    for name in sorted((config.keys() | other.keys()) - _ASIDE):
        if config.get(name) != other.get(name):
            raise value_error(
                f"the models of steps {a} and {b} are from different runs: {name} is "
                f"{config.get(name)!r:.40} at step {a} and {other.get(name)!r:.40} at step {b}"
            )


def _check_alike(a: int, trace: Trace, b: int, other: Trace) -> None:
    for what, one, two in (
        ("tokens", trace.tokens, other.tokens),
        ("ids of tokens", trace.ids if other.ids else [], other.ids if trace.ids else []),
        ("layers", trace.num_layers, other.num_layers),
        ("heads", trace.num_heads, other.num_heads),
    ):
        if one != two:
            raise value_error(
                f"steps {a} and {b} are from different runs or texts: they have different "
                f"{what}, {_few(one)} and {_few(two)}"
            )


def _few(value: Any, most: int = 60) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


# The largest number of weights in a page. Each weight takes 2 bytes, so all weights take at most
# 4 MB before base64.
MOST_CELLS = 2_000_000
MOST_LOSSES = 400
# A head is named after a measure, for example an induction head, if its score on random tokens is
# at least BECOMES. In a short text, a head can reach such a score by chance.
BECOMES = 0.5
# The random tokens: CONTROLS sequences of CONTROL_TOKENS tokens, each repeated once. If the model
# reads fewer than 2 * _LEAST_TOKENS tokens, heads do not get names.
CONTROLS, CONTROL_TOKENS, _LEAST_TOKENS = 10, 20, 5


class Score(NamedTuple):
    """A measure of the tokens that a head attends to.

    Attributes:
        name: a short name.
        of: a phrase for the measured weight, such as "weight on the next token".
        head: the name for heads with a high score, such as "a next-token head".
    """

    name: str
    of: str
    head: str


PREVIOUS = Score("previous", "weight on the previous token", "a previous-token head")
NEXT = Score("next", "weight on the next token", "a next-token head")
INDUCTION = Score(
    "induction",
    "weight on the token after an earlier occurrence of the same token",
    "an induction head",
)
FIRST = Score("first", "weight on the first token", "a first-token head")
# Each measure computes one number per head, `(H,)`, from the weights (H, L, L) of a layer and from
# the cells that `measures.after_copies` marks.
_MEASURES: dict[Score, Callable[[Array, Array], Array]] = {
    PREVIOUS: lambda layer, copies: measures.on_offset(layer, -1),
    NEXT: lambda layer, copies: measures.on_offset(layer, 1),
    INDUCTION: measures.on_cells,
    FIRST: lambda layer, copies: measures.on_keys(layer, [0]),
}


@dataclass(frozen=True, eq=False)
class Replay:
    """The weights and scores of one text at the snapshots of a run.

    Attributes:
        run: the name of the run.
        first: the trace of the first snapshot. Tokens and masks come from this trace.
        heads: the heads of the first snapshot.
        steps: the steps of the snapshots, in order.
        scores: the measures.
        values: the value of each measure, `(steps, layers, heads, scores)` float64.
        shown: the snapshots whose weights are kept, as indices into `steps`.
        weights: the attention weights of the shown snapshots, `(shown, layers, heads, L, L)`.
        hidden: the masked cells, `(layers, heads, L, L)`, if they are known.
        losses: a pair (training step, loss) for each logged loss.
        controls: the value of each measure on random tokens (see `CONTROLS`) at the first and the
            last snapshot, `(2, layers, heads, scores)`; None if the run holds traces, or the model
            reads too few tokens.
        control_tokens: the number of random tokens in each of these sequences before the sequence
            is repeated.
    """

    run: str
    first: Trace
    heads: Heads
    steps: list[int]
    scores: list[Score]
    values: Array
    shown: list[int]
    weights: Array
    hidden: Array | None
    losses: list[tuple[int, float]]
    controls: Array | None
    control_tokens: int

    @property
    def control(self) -> str:
        """Describe the random tokens on which `controls` was measured."""
        return f"{CONTROLS} sequences of {self.control_tokens} random tokens, each repeated once"

    @property
    def layers(self) -> list[int]:
        """Return the indices of the layers."""
        return self.heads.layers

    @property
    def rises(self) -> Array:
        """Return the increase of each score; if there is only one step, return the scores."""
        rises = self.values[-1] - self.values[0]
        return np.asarray(self.values[0] if len(self.steps) == 1 else rises)

    @property
    def knots(self) -> list[int]:
        """The steps on a chart's axis: those of the snapshots, and the first and last logged steps.

        In charts, these steps are equally spaced, because most runs take snapshots at growing
        intervals.
        """
        every = [*self.steps, *(step for step, _ in self.losses)]
        return sorted({*self.steps, min(every), max(every)})

    def course(self, head: ChosenHead, score: int) -> Array:
        """Return one score of one head at each step."""
        return np.asarray(self.values[:, self.layers.index(head.layer), head.head, score])

    def patterns(self, head: ChosenHead) -> Array:
        """Return one head's weights at each shown step, `(shown, L, L)`."""
        return np.asarray(self.weights[:, self.layers.index(head.layer), head.head])

    def hidden_of(self, head: ChosenHead) -> Array | None:
        """Return the masked cells of this head, `(L, L)`, if they are known."""
        index = self.layers.index(head.layer), head.head
        return None if self.hidden is None else self.hidden[index]

    def loss_at(self, step: int) -> float | None:
        """Return the loss logged at the step nearest to this step; None if no loss is logged."""
        nearest = min(self.losses, key=lambda logged: abs(logged[0] - step), default=None)
        return None if nearest is None else nearest[1]


def replay_of(run: TrainingRun, text: Text) -> Replay:
    """Trace a text with each snapshot of a run, and score each head.

    If a page cannot hold the weights of all snapshots, only the weights of some snapshots are kept.
    Snapshots with weights that are not finite are left out, with a warning. The heads of the first
    and the last snapshot are also scored on random tokens.

    Raises:
        ValueError: no snapshot has finite weights; or an argument is wrong (see `traces`).
    """
    first: tuple[Trace, Heads, list[Score]] | None = None
    steps: list[int] = []
    indices: list[int] = []
    values: list[Array] = []
    maps: list[Array] = []  # one array (layers, heads, L, L) per snapshot
    for index, (step, trace) in enumerate(traces(run, text, MOST_CELLS // min(2, len(run.steps)))):
        heads = heads_of(trace)
        if first is None:
            copies = measures.after_copies(heads.queries.tokens, heads.queries.special)
            first = trace, heads, _scores(heads, copies)
            trace.model = run.name or trace.model  # a run from a mapping has no name
            wanted = spread(len(run.steps), MOST_CELLS // heads.cells)
        weights = np.array(heads.weights, dtype=np.float32)
        if not np.isfinite(weights).all():
            continue
        if index in wanted:
            indices.append(len(steps))
            maps.append(weights)
        steps.append(step)
        values.append(_measure(first[2], weights, copies))
    if first is None or not indices:
        raise value_error(
            "no snapshot has finite weights: the run diverged before its first snapshot"
        )
    if len(steps) < len(run.steps):
        gone = ", ".join(str(step) for step in run.steps if step not in set(steps))
        warnings.warn(
            f"replay: these steps are left out, since their weights are not finite: {gone}",
            UserWarning,
            stacklevel=callers(),
        )
    trace, heads, scores = first
    controls, count = _controls(run, (steps[0], steps[-1]), trace, scores)
    hidden = [np.isneginf(heads.scores[n]) for n in heads.layers if n in heads.scores]
    return Replay(
        run.name,
        trace,
        heads,
        steps,
        scores,
        np.array(values),
        indices,
        np.array(maps),
        np.array(hidden) if len(hidden) == len(heads.layers) else None,
        run.losses,
        controls,
        count,
    )


def _measure(scores: Sequence[Score], weights: Array, copies: Array) -> Array:
    """Compute the value of each measure from weights (layers, H, L, L): (layers, H, scores)."""
    values = [[_MEASURES[score](layer, copies) for layer in weights] for score in scores]
    return np.array(values).transpose(1, 2, 0)


def _controls(
    run: TrainingRun, steps: Sequence[int], trace: Trace, scores: Sequence[Score]
) -> tuple[Array | None, int]:
    """Measure the heads on random tokens at these steps, and return `controls` and their length.

    The special tokens at the ends of the text also surround the random tokens.
    """
    models = [run.open(step) for step in steps]
    if any(isinstance(model, Trace) for model in models) or not len(trace.ids):
        return None, 0
    limit, tokenizer = models[0].max_seq_length, models[0].tokenizer
    special_ids = frozenset() if tokenizer is None else tokenizer.special_ids
    plain = [position for position, n in enumerate(trace.ids) if n not in special_ids]
    plain = plain or list(range(len(trace.ids)))
    front, back = trace.ids[: plain[0]], trace.ids[plain[-1] + 1 :]
    available = 2 * CONTROL_TOKENS if limit is None else limit - len(front) - len(back)
    count = min(CONTROL_TOKENS, available // 2)
    ids = [n for n in range(len(models[0].embedding.table)) if n not in special_ids]
    if count < _LEAST_TOKENS or len(ids) < 2 * _LEAST_TOKENS:
        return None, 0
    rng = np.random.default_rng(0)
    values = np.zeros((2, len(trace.layers), trace.num_heads, len(scores)))
    for _ in range(CONTROLS):
        drawn = rng.choice(ids, count, replace=len(ids) < count).tolist()
        text = np.array([*front, *drawn, *drawn, *back])
        for value, model in zip(values, models, strict=True):
            heads = heads_of(model.trace(text, names=["pattern"]))
            copies = measures.after_copies(heads.queries.tokens, heads.queries.special)
            value += _measure(scores, np.array(heads.weights), copies) / CONTROLS
    return values, count


def spread(count: int, most: int) -> list[int]:
    """Choose up to `most` of `count` indices, evenly spaced, including the first and the last.

    >>> spread(5, 9), spread(9, 3)
    ([0, 1, 2, 3, 4], [0, 4, 8])
    """
    indices = np.linspace(0, count - 1, max(1, min(count, most)))
    return [int(index) for index in np.rint(indices)]


def _scores(heads: Heads, copies: Array) -> list[Score]:
    """Choose the measures to compute for this text; induction, e.g., needs a repeated token."""
    chosen = [FIRST]
    if copies.any():
        chosen.insert(0, INDUCTION)
    if len(heads.queries.tokens) > 1:
        scores = (heads.scores.get(layer, np.zeros((1, 2, 2))) for layer in heads.layers)
        if not all(np.isneginf(np.diagonal(part, 1, axis1=1, axis2=2)).all() for part in scores):
            chosen.insert(0, NEXT)
        chosen.insert(0, PREVIOUS)
    return chosen


def choose(replay: Replay, layer: int | None, head: int | None) -> tuple[ChosenHead, int]:
    """Choose the head and score that rose most during training; return `(head, index of score)`.

    Ties go to the lowest layer, then the lowest head, then the first score.

    Raises:
        IndexError: `layer` or `head` is out of range; the message names the range.
    """
    layer, head = selection.checked_head(replay.heads, layer, head)
    heads = selection.heads_among(replay.heads, layer, head)
    rises = {at: replay.rises[replay.layers.index(at[0]), at[1]] for at in heads}
    best = max(heads, key=lambda at: float(rises[at].max()))
    score = int(rises[best].argmax())
    rose = "rose most" if rises[best][score] > 0 else "fell least"
    among = selection.scope_of(replay.heads, layer, head)
    reason = f"its {replay.scores[score].of} {rose} among all scores of {among}"
    return ChosenHead(*best, None, selection.ASKED if None not in (layer, head) else reason), score


def in_words(replay: Replay, head: ChosenHead, score: int) -> str:
    """Describe in a sentence how a head's score changes during training."""
    where, what = head.where, replay.scores[score]
    course, steps = replay.course(head, score), replay.steps
    first, last = float(course[0]), float(course[-1])
    if len(steps) == 1:
        return f"In {where}, the {what.of} is {last:.2f} at step {steps[0]:,}, the only snapshot."
    if f"{first:.2f}" == f"{last:.2f}":
        ends = f"step {steps[0]:,} to step {steps[-1]:,}"
        return f"In {where}, the {what.of} stays at {last:.2f} from {ends}."
    way = "rises" if last > first else "falls"
    went = (
        f"{what.of} {way} from {first:.2f} at step {steps[0]:,} to {last:.2f} at step {steps[-1]:,}"
    )
    if len(steps) > 2:
        most = int(np.argmax(np.diff(course) * (1 if last > first else -1)))
        went += f", with the largest change between steps {steps[most]:,} and {steps[most + 1]:,}"
    if replay.controls is not None and last > first:
        before, after = replay.controls[:, replay.layers.index(head.layer), head.head, score]
        if after >= BECOMES > before:
            return (
                f"L{where[1:]} becomes {what.head}: its {went}. On {replay.control}, this weight "
                f"rises from {before:.2f} to {after:.2f}."
            )
    return f"In {where}, the {went}."


def thin(losses: Sequence[tuple[int, float]], most: int) -> list[list[float]]:
    """Reduce a curve to `most` points or fewer; each new point is the mean of adjacent points.

    >>> thin([(0, 4.0), (1, 2.0), (2, 1.0), (3, 1.0)], 2)
    [[0.5, 3.0], [2.5, 1.0]]
    """
    if len(losses) <= most:
        return [[step, loss] for step, loss in losses]
    parts = np.array_split(np.array(losses, dtype=np.float64), most)
    return [part.mean(axis=0).tolist() for part in parts]
