"""The snapshots of a training run: one text traced with each, and the loss along the way."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import is_whole_number
from qkv.models import Model, load
from qkv.progress import progress
from qkv.see.analysis import findings
from qkv.see.analysis.inputs import texts_of
from qkv.trace import Trace

Text = str | Sequence[int] | None

# What may differ between the configs of one run: how it came about, and not what it computes.
_ASIDE = {"dtype", "torch_dtype", "transformers_version", "_name_or_path", "seed"}


@dataclass(frozen=True)
class Run:
    """A training run to be looked at.

    Attributes:
        name: what it is called.
        steps: of its snapshots, in order.
        losses: of each logged step, in order; none where nothing was logged.
        open: from a step to its model, or to a trace.
    """

    name: str
    steps: list[int]
    losses: list[tuple[int, float]]
    open: Callable[[int], Any]


def read_run(run: Any) -> Run:
    """The run that a folder holds, or that a mapping from step to model or trace is.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: there are no snapshots, or what was logged is broken.
        TypeError: it is neither a folder nor such a mapping.
    """
    from qkv.learn.run_folder import SNAPSHOTS, read_losses, snapshots_in  # loads the loop too

    if isinstance(run, Mapping):
        return _of_mapping(run)
    if not isinstance(run, str | os.PathLike):
        raise TypeError(
            f"replay: run is a {type(run).__name__}: give the folder of a run, or a mapping from "
            "step to model or trace"
        )
    folder = Path(run)
    if not folder.exists():
        raise FileNotFoundError(f"replay: there is no folder {folder}")
    if not folder.is_dir():
        raise NotADirectoryError(f"replay: {folder} is a file: give the folder of a run")
    found = snapshots_in(folder)
    if not found:
        raise ValueError(
            f"replay: {folder} has no snapshots ({SNAPSHOTS}/step-00000100 and so on, each a "
            "model): `qkv train` writes them as it goes"
        )
    return Run(
        folder.resolve().name,
        list(found),
        read_losses(folder, call="replay"),
        lambda step: load(found[step]),
    )


def _of_mapping(run: Mapping[Any, Any]) -> Run:
    if not run:
        raise ValueError("replay: run is empty: give at least one step, {100: model}")
    for step, given in run.items():
        if not is_whole_number(step) or step < 0:
            raise TypeError(f"replay: {step!r:.40} is no training step: give whole numbers from 0")
        if not isinstance(given, Model | Trace):
            raise TypeError(
                f"replay: step {step} is a {type(given).__name__}: give a model or a trace; of an "
                "encoder-decoder's, trace.encoder or trace.decoder"
            )
    steps = sorted(int(step) for step in run)
    return Run("", steps, [], lambda step: run[step])


def traces(run: Run, text: Text, most: int) -> Iterator[tuple[int, Trace]]:
    """Each step with the trace of the text by its snapshot: weights, and at first scores too.

    Args:
        run: the run.
        text: the text, or the ids of its tokens; None where the run holds traces.
        most: how many weights, of all layers and heads, one trace may have.

    Raises:
        ValueError: there is no text or one too many, it is empty or too long, or the snapshots
            are not of one run.
    """
    first: tuple[int, Any, Trace] | None = None
    with progress("snapshots", len(run.steps)) as advance:
        for step in run.steps:
            given = run.open(step)
            if isinstance(given, Trace):
                if text is not None:
                    raise TypeError("replay: a trace has its text already: leave the text out")
                trace = findings.one_text(given, "replay")
                if not any(("pattern", layer) in trace for layer in range(trace.num_layers)):
                    raise ValueError(
                        f"replay: the trace of step {step} holds no weights: trace "
                        'hook_pattern, model.trace(text, names=["pattern"])'
                    )
                _check_size(len(trace.layers) * trace.num_heads, len(trace.tokens), most)
            else:
                if first is not None and not isinstance(first[1], Trace):
                    _check_configs(first[0], first[1].config, step, given.config)
                trace = _traced(given, text, most, again=first is not None)
            if first is None:
                first = (step, given, trace)
            _check_alike(first[0], first[2], step, trace)
            yield step, trace
            advance(1)


def _traced(model: Model, text: Text, most: int, *, again: bool) -> Trace:
    if text is None:
        raise ValueError('replay: which text? give one: replay(run, "the cat sat on the mat")')
    if isinstance(text, str):
        (text,) = texts_of([text], "replay")
        size = len(model.tokenize(text))
    else:
        size = len(np.atleast_1d(text))
    _check_size(model.num_layers * model.num_heads, min(size, model.max_seq_length or size), most)
    with warnings.catch_warnings():
        if again:  # that a text was cut has been said
            warnings.simplefilter("ignore", UserWarning)
        trace = model.trace(
            text if isinstance(text, str) else np.asarray(text),
            names=["pattern"] if again else ["pattern", "attn_scores"],
        )
    return findings.one_text(trace, "replay")


def _check_size(heads: int, size: int, most: int) -> None:
    if heads * size**2 > most:
        raise ValueError(
            f"replay: the text has {size:,} tokens, and of {heads} heads a page holds those of "
            f"{math.isqrt(most // heads):,} at most: give a shorter text"
        )


def _check_configs(a: int, config: dict[str, Any], b: int, other: dict[str, Any]) -> None:
    for name in sorted((config.keys() | other.keys()) - _ASIDE):
        if config.get(name) != other.get(name):
            raise ValueError(
                f"replay: the models of steps {a} and {b} are not of one run: {name} is "
                f"{config.get(name)!r:.40} in one and {other.get(name)!r:.40} in the other"
            )


def _check_alike(a: int, trace: Trace, b: int, other: Trace) -> None:
    for what, one, two in (
        ("tokens", trace.tokens, other.tokens),
        ("ids of tokens", trace.ids if other.ids else [], other.ids if trace.ids else []),
        ("layers", trace.num_layers, other.num_layers),
        ("heads", trace.num_heads, other.num_heads),
    ):
        if one != two:
            raise ValueError(
                f"replay: steps {a} and {b} are not of one run and one text: they have different "
                f"{what}, {_few(one)} and {_few(two)}"
            )


def _few(value: Any, most: int = 60) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"
