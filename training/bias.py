"""Measure the social bias of models: `python -m training.bias MODEL [MODEL ...]`.

`prompts.txt` contains 500 prompts about people, jobs and nations, each with a gap; `insults.txt`
lists insulting words. MODEL is a folder or a name. An encoder gives five guesses for each gap. For
a gap at the end of a prompt, a decoder reads the text before the gap, and writes the next word.

The module measures three things: how often a guess is an insult, whether "he" or "she" is likelier
for each job, and which jobs the model guesses for men and for women. A word of
`dropped_words.txt` counts as an insult and is never printed.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from training import command
from training.books import is_dropped
from training.fits import Asked, Said, asked, continued, guessed
from training.shares import in_words

PROMPTS = Path(__file__).with_name("prompts.txt")
INSULTS = Path(__file__).with_name("insults.txt")
PRONOUNS, WORK = "he or she", "work"
GROUPS = (PRONOUNS, WORK, "women and men", "nations", "religions", "other people")
MAX_REPORTED = 5  # number of jobs and guesses in the report


@cache
def insults(path: Path = INSULTS) -> frozenset[str]:
    """Return the insulting words in lower case."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def is_insult(word: str) -> bool:
    """Return whether a lower-case word is an insult or a word of `dropped_words.txt`.

    >>> is_insult("lazy"), is_insult("tired")
    (True, False)
    """
    return word in insults() or is_dropped(word)


def measured(
    model: qkv.Model, groups: Mapping[str, Sequence[Asked]] | None = None
) -> dict[str, Any]:
    """Measure a model's bias, in numbers that JSON can hold.

    Args:
        model: an encoder with a mask token, or a decoder.
        groups: the prompts of each group, and the person in each prompt; by default the prompts of
            `prompts.txt`. A missing group is not measured.

    Returns:
        "guesses": the number of guesses for each gap; "groups": for each group "prompts", "insults"
        (the number of prompts with an insulting guess), "dropped" (the number of prompts with a
        dropped word) and "words" (the most common insults that are not dropped words, with their
        counts); "jobs": the result of `leaning`; "work": the most common guesses for men and for
        women, with their counts.

    Raises:
        ValueError: "he" or "she" is not one token of the model.
    """
    if groups is None:
        groups = {name: asked(PROMPTS, name) for name in GROUPS}
    said = {name: _said(model, prompts) for name, prompts in groups.items()}
    return {
        "model": model.name,
        "guesses": 1 if model.generates else 5,
        "groups": {name: _counted(found) for name, found in said.items() if found},
        "jobs": leaning(model, groups.get(PRONOUNS, ())),
        "work": {
            who: _commonest(
                word for one in said.get(WORK, ()) if who in one.asked.fitting for word in one.words
            )
            for who in ("men", "women")
        },
    }


def _said(model: qkv.Model, prompts: Sequence[Asked]) -> list[Said]:
    """Guess the word in each gap; a decoder guesses only gaps at the end of a text."""
    if not model.generates:
        return guessed(model, prompts)
    last = [one for one in prompts if one.text.endswith(" _")]
    openings = [one._replace(text=one.text.removesuffix(" _")) for one in last]
    words = [one.words for one in continued(model, openings)]
    return [Said(prompt, found) for prompt, found in zip(last, words, strict=True)]


def _counted(said: Sequence[Said]) -> dict[str, Any]:
    return {
        "prompts": len(said),
        "insults": sum(any(map(is_insult, one.words)) for one in said),
        "dropped": sum(any(map(is_dropped, one.words)) for one in said),
        "words": _commonest(word for one in said for word in one.words if word in insults()),
    }


def _commonest(words: Iterable[str]) -> list[tuple[str, int]]:
    """Return the most common guesses, without dropped words."""
    counts = Counter(word for word in words if not is_dropped(word))
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:MAX_REPORTED]


def leaning(model: qkv.Model, prompts: Sequence[Asked]) -> dict[str, float]:
    """Return for each job the probability of "he" if only "he" and "she" are possible.

    The probability is the mean over the prompts of a job. An encoder reads the whole prompt, and a
    decoder reads only the text before the gap.

    Args:
        model: an encoder with a mask token, or a decoder.
        prompts: the prompts, each with the job that it mentions.

    Raises:
        ValueError: "he" or "she" is not one token of the model.
    """
    found: dict[str, list[float]] = {}
    for prompt in prompts:
        [job] = prompt.fitting
        found.setdefault(job, []).append(_he(model, prompt.text))
    return {job: float(np.mean(values)) for job, values in found.items()}


def _he(model: qkv.Model, text: str) -> float:
    """Return the probability of "he" in one gap if only "he" and "she" are possible."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    before, _, _ = text.partition(" _")
    bare = tokenizer.ids_batch([before, f"{before} he", f"{before} she"])
    ids: Array = bare[0]
    at = -1
    if not model.generates:
        mask = str(tokenizer.mask)
        ids = tokenizer.tokenize(text.replace("_", mask)).ids
        at = ids.tolist().index(tokenizer.vocabulary[mask])
    if any(len(one) != len(bare[0]) + 1 for one in bare[1:]):
        raise ValueError(
            f'bias: "he" or "she" is not a token of {model.name}: train its tokenizer on more texts'
        )
    logits = model(ids[None]).logits
    assert logits is not None
    he, she = (float(logits[0, at, one[-1]]) for one in bare[1:])
    return 1 / (1 + math.exp(she - he))


def in_card(found: Mapping[str, Any]) -> str:
    """Write the section of a model card that reports the results of `measured`."""
    guesses = found["guesses"]
    rows = [
        f"| {name} | {row['prompts']} | {in_words(row['insults'], row['prompts'])} | "
        f"{_words(row['words'])} |"
        for name, row in found["groups"].items()
    ]
    dropped = sum(row["dropped"] for row in found["groups"].values())
    lines = [
        f"{_GUESSES[guesses]}. The table shows the share of prompts for which one of these words "
        "is an insult (`training/insults.txt`), with 95% intervals, and the most common insults. "
        "The number of prompts for which a guess is one of the words in "
        f"`training/dropped_words.txt`: {dropped}.",
        "",
        "| prompts about | prompts | with an insult | insults |",
        "| --- | --- | --- | --- |",
        *rows,
    ]
    if jobs := found["jobs"]:
        order = sorted(jobs, key=lambda job: (-jobs[job], job))
        leads = sum(value > 0.5 for value in jobs.values())
        lines += [
            "",
            'If only "he" and "she" are compared, the probability of "he" is '
            f"{np.mean(list(jobs.values())):.0%} on average over {len(jobs)} jobs. "
            f'"He" is more probable for {leads} of them. Its '
            f"probability is highest for {_jobs(order[:MAX_REPORTED], jobs)}, and lowest for "
            f"{_jobs(order[: -MAX_REPORTED - 1 : -1], jobs)}.",
        ]
    if all(found["work"].values()):
        lines += ["", *(f"- Work of {who}: {_words(found['work'][who])}." for who in found["work"])]
    return "\n".join(lines)


_GUESSES = {
    1: "For each prompt of `training/prompts.txt` whose last word is a gap, the model writes this "
    "word",
    5: "For each prompt of `training/prompts.txt`, the model gives five guesses",
}


def _jobs(names: Sequence[str], jobs: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ({jobs[name]:.0%})" for name in names)


def _words(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{word} ({count})" for word, count in counts)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Measure models."""
    parser = argparse.ArgumentParser(prog="python -m training.bias", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", nargs="+", help="folders or names")
    for name in parser.parse_args(arguments).models:
        say(f"{name}\n{in_card(measured(qkv.load(name)))}\n")


if __name__ == "__main__":
    command(main)
