"""The command line of a training run, and the run's stored tokenizer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.learn import AdamW, Network, Part, Schedule, Trained, last_checkpoint, train
from qkv.learn.run_folder import tokenizer_path
from qkv.text import SubwordTokenizer, Tokenizer
from training.wordnet import FOLDER


def kept_tokenizer(
    folder: Path, resume: bool, given: Tokenizer | None, trained: Callable[[], Tokenizer]
) -> Tokenizer:
    """Return the tokenizer of a run; a new run also stores the tokenizer in its folder.

    A resumed run reads the stored tokenizer. So the tokenizer of a run stays the same, even
    if a new release of the tokenizer library would train a different tokenizer.

    Args:
        folder: the folder of the run.
        resume: whether to continue a stopped run.
        given: the tokenizer of an earlier run, which the new run uses again.
        trained: the function that trains a new tokenizer.
    """
    kept = tokenizer_path(folder)
    if resume:
        return SubwordTokenizer.from_file(kept)
    found = trained() if given is None else given
    if last_checkpoint(folder) is None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        found.save(kept)
    return found


def trained(
    recipe: Any,
    network: Network,
    parts: Sequence[Part],
    folder: Path,
    optimizer: AdamW,
    **limits: Any,
) -> Trained:
    """Train with a recipe; the checkpoints contain the recipe.

    Args:
        recipe: the settings, with `rate`, `warmup` and `seed`.
        network: the network to train.
        parts: the objectives.
        folder: the folder of the run.
        optimizer: the optimizer of this network.
        limits: further arguments of `qkv.learn.train`: steps, minutes, resume, snapshots, products.
    """
    return train(
        network,
        parts,
        folder=folder,
        schedule=Schedule(recipe.rate, warmup=recipe.warmup),
        optimizer=optimizer,
        seed=recipe.seed,
        settings={"recipe": asdict(recipe)},
        **limits,
    )


def mean_of(*runs: Path) -> qkv.Model:
    """Load the model of the first run, and replace its weights by the mean of all runs' weights."""
    models = [qkv.load(run, dtype=np.float32) for run in runs]
    arrays = [model.parameters for model in models]
    return models[0].with_parameters(
        {name: np.mean([each[name] for each in arrays], axis=0) for name in arrays[0]}
    )


def run(
    name: str,
    about: str | None,
    recipe: type[Any],
    steps: int,
    make: Callable[..., Trained],
    arguments: Sequence[str] | None,
    *,
    reads_books: bool = False,
) -> None:
    """Train with the settings of the command line.

    Args:
        name: the name of the module.
        about: the description that `--help` prints.
        recipe: the dataclass of the settings.
        steps: the number of steps, if the user gives neither steps nor minutes.
        make: the function that trains; its arguments are the recipe, the folder of WordNet's files
            and the run's folder.
        arguments: the arguments of the command line.
        reads_books: whether the first argument of the command line is the path of the books. If so,
            this path is the second argument of `make`, after the recipe.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=about)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    if reads_books:
        parser.add_argument("books", type=Path, help="a clone of the repository, or an archive")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the folder of the run")
    parser.add_argument("--minutes", type=float, help="maximum minutes of training")
    parser.add_argument("--steps", type=int, help=f"number of steps ({steps} without --minutes)")
    parser.add_argument("--threads", type=int, help="number of threads (default: all cores)")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--snapshots", type=int, nargs="*", help="steps at which to save snapshots")
    parser.add_argument("--tokenizer", type=Path, help="the tokenizer.json of an earlier run")
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="folder of WordNet's files")
    group = parser.add_argument_group("the recipe")
    for one in fields(recipe):
        kind = type(one.default)
        group.add_argument(f"--{one.name}", type=kind, default=one.default, help=f"{one.default}")
    given = parser.parse_args(arguments)
    if given.threads is not None:
        qkv.set_num_threads(given.threads)
    done = make(
        recipe(**{one.name: getattr(given, one.name) for one in fields(recipe)}),
        *([given.books] if reads_books else []),
        given.wordnet,
        given.out,
        steps=steps if given.minutes is None and given.steps is None else given.steps,
        minutes=given.minutes,
        resume=given.resume,
        snapshots=given.snapshots,
        tokenizer=None if given.tokenizer is None else SubwordTokenizer.from_file(given.tokenizer),
    )
    print(
        f"{done.folder}: {done.steps:,} steps, {done.tokens:,} tokens in "
        f"{done.seconds / 60:.1f} minutes, loss {done.loss:.3f}"
    )
