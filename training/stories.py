"""Find sentences in which masking a word or ablating a head changes the first guess.

`python -m training.stories MODEL` prints the stories that it finds, the best first. MODEL is a
folder or a name; by default, it is the included encoder. `--keep 3 8 21` writes the stories with
these numbers to stories.json in the model's folder, and into the model's card. README, pages and
tests read this file.

Search. `stories.txt` contains sentences with one missing word (frames) and words for the frames
(fillers), which make over 2,500 sentences. No sentence is generated at random, and no sentence is
an example of WordNet. In each sentence, the search masks every word in turn (`hide`), and ablates
every head in turn (`ablate`).

A story is a sentence with an edit that changes the first guess. Conditions:

- both guesses are whole words in WordNet but not function words, and have a probability of 4% or
  more;
- no guess repeats a content word of the sentence, a form of this word, or a word with a similar
  beginning or end (see `Repeats`);
- the edit at least halves the probability of the first guess.

Order. Four criteria determine the order; an earlier criterion has priority:

1. The first guess is one of the right words for this filler.
2. If the edit masks a word, the filler contains this word. If the edit ablates a head, the filler
   contains the word to which the missing word attends most in this head.
3. The second guess would be right with another filler in the frame.
4. The *swing* is large.

The swing is how much the edit lowers the log odds of the first guess against the second
guess. Each sentence gives at most one story with a masked word, and one with an ablated head. Only
a reader can judge whether a story is easy to understand.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.models.files.find import find_model
from qkv.see.analysis._words import is_function_word
from training import command
from training.frames import MASK, Candidate, Repeats, candidates
from training.told import STORIES, keep, story
from training.wordnet import FOLDER, read

NAME = "books"  # the included model
LEAST = 0.04  # the minimum probability of a guess
RATIO = 2.0  # the minimum factor by which the first guess becomes less probable
TOP = 40  # the number of stories to print
RANKED = 5  # the number of guesses kept from each run
_AT_ONCE = 64  # the number of texts in a batch

_Edit = tuple[int, ...] | tuple[tuple[int, int], ...]  # masked positions, or ablated heads
Ranked = tuple[tuple[str, float], ...]  # words and their probabilities, the most probable first


@dataclass(frozen=True)
class Found:
    """The effect of one edit on the first guess of a sentence.

    Attributes:
        candidate: the sentence.
        before: the most probable words without the edit.
        after: the most probable words with the edit.
        swing: how much the edit lowers the log odds of the first guess against the second.
        drop: how much the edit lowers the log probability of the first guess.
        hide: the masked word, if the edit masks a word.
        ablate: (layer, head), if the edit removes a head.
        median: if the edit removes a head, the median of `drop` over all heads. For the median,
            each head is removed alone from this sentence's run.
        looks: in the ablated head, the word to which the gap attends most, and its weight.
        alike: whether the first guess after masking the word in `looks` is the same as after
            ablating the head.
    """

    candidate: Candidate
    before: Ranked
    after: Ranked
    swing: float
    drop: float
    hide: str | None = None
    ablate: tuple[int, int] | None = None
    median: float = 0.0
    looks: tuple[str, float] = ("", 0.0)
    alike: bool = False

    @property
    def marks(self) -> tuple[bool, bool, bool]:
        """Return whether criteria 1, 2 and 3 of the module's docstring hold."""
        word = self.hide or self.looks[0]
        one = self.candidate
        return self.before[0][0] in one.right, word in one.cue, self.after[0][0] in one.fits

    @property
    def rank(self) -> tuple[bool, bool, bool, float]:
        """Return the sort key; the story with the largest key comes first."""
        return *self.marks, self.swing

    @property
    def reason(self) -> str:
        """Return the reason for the change of the guess, as one sentence."""
        hidden = self.hide or self.looks[0]
        told = self.candidate.why.replace("{hidden}", hidden)
        if hidden not in self.candidate.cue:
            told = f'"{hidden}" is what leads to "{self.before[0][0]}"'
        if self.ablate is not None:
            layer, head = self.ablate
            rest = told.removeprefix(f'"{hidden}" ')
            then = f": {told}" if rest == told else f", which {rest}"
            told = f'Head {layer}.{head} attends from the gap to "{hidden}"{then}'
        return told[0].upper() + told[1:] + "."

    @property
    def told(self) -> dict[str, Any]:
        """Return the story as data for `training.told.story`."""
        return {
            "sentence": self.candidate.sentence,
            "hide": [self.hide] if self.hide else [],
            "ablate": [list(self.ablate)] if self.ablate else [],
            "reason": self.reason,
        }


@dataclass(frozen=True)
class _Run:
    """A forward pass: the tokens of a sentence, and the edit."""

    number: int  # the number of the sentence
    ids: list[int]
    position: int  # the position of the mask
    hide: tuple[int, ...] = ()
    ablate: tuple[tuple[int, int], ...] = ()


class _Guesser:
    """Computes the probabilities of all words of the vocabulary, for many sentences at once."""

    def __init__(self, model: qkv.Model) -> None:
        tokenizer = model.tokenizer
        if tokenizer is None or tokenizer.mask is None or model([[0, 1]]).logits is None:
            raise ValueError(
                f"stories: {model.name} cannot predict masked words: choose another model"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.mask = tokenizer.mask
        self.words = [tokenizer.token(k) or "" for k in range(len(model.embedding.table))]
        names = model.trace([[0, 1]]).names()
        last = f"blocks.{model.num_layers - 1}.hook_normalized_resid_post"
        self.last = last if last in names else f"blocks.{model.num_layers - 1}.hook_resid_post"

    def run(self, number: int, candidate: Candidate) -> tuple[_Run, dict[str, tuple[int, ...]]]:
        """Return an unedited sentence, and the tokens of each of its words."""
        sentence = candidate.sentence
        text = self.tokenizer.tokenize(sentence.replace(MASK, self.mask))
        grown = len(self.mask) - len(MASK)  # added to offsets after the mask
        start = sentence.index(MASK)
        words = {}
        for word, spans in candidate.words.items():
            moved = [(a + grown, b + grown) if a > start else (a, b) for a, b in spans]
            words[word] = tuple(
                k
                for k, (a, b) in enumerate(text.offsets)
                if any(a < end and b > begin for begin, end in moved)
            )
        return _Run(number, text.ids.tolist(), text.tokens.index(self.mask)), words

    def log_probabilities(self, runs: Sequence[_Run]) -> Iterator[tuple[_Run, Array]]:
        """Return the log probabilities (V,) of all tokens at the gap in each run's text.

        The model computes runs in batches. All runs of a batch have the same edits.
        """
        order = sorted(runs, key=lambda run: (run.ablate, run.hide, len(run.ids), run.number))
        changes = [
            k
            for k, (a, b) in enumerate(pairwise(order), 1)
            if (a.ablate, a.hide) != (b.ablate, b.hide)
        ]
        for begin, end in pairwise([0, *changes, len(order)]):
            for first in range(begin, end, _AT_ONCE):
                yield from self._together(order[first : min(first + _AT_ONCE, end)])

    def _together(self, runs: Sequence[_Run]) -> Iterator[tuple[_Run, Array]]:
        trace = self.model.trace(
            [run.ids for run in runs],
            names=[self.last],
            ablate=runs[0].ablate,
            hide=list(runs[0].hide),  # `hide` reads a tuple of two positions as a link
        )
        rows = trace[self.last][np.arange(len(runs)), [run.position for run in runs]]
        logits = self.model.unembed(rows).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        yield from zip(runs, logits.astype(np.float32), strict=True)

    def ranked(self, log_probabilities: Array) -> Ranked:
        """Return the most probable words with their probabilities."""
        best = np.argsort(-log_probabilities, kind="stable")[:RANKED]
        return tuple((self.words[k].lower(), float(np.exp(log_probabilities[k]))) for k in best)

    def looks(
        self, run: _Run, words: Mapping[str, Sequence[int]], head: tuple[int, int]
    ) -> tuple[str, float]:
        """Return the word to which the gap attends most in a head, and the weight on this word."""
        [weights] = self.model.trace([run.ids], names=["pattern"])["pattern", head[0]][:, head[1]]
        found = {word: float(weights[run.position, list(at)].sum()) for word, at in words.items()}
        best = max(found, key=lambda word: found[word])
        return best, found[best]


def search(
    model: qkv.Model, given: Sequence[Candidate], repeats: Repeats, least: float = LEAST
) -> list[Found]:
    """Search sentences for stories, and return them, the best first.

    Args:
        model: an encoder that predicts masked words.
        given: the sentences.
        repeats: the test of repeated words.
        least: the minimum probability of a guess. Each of the two guesses must reach it.

    Raises:
        ValueError: the model cannot predict masked words.
    """
    guesser = _Guesser(model)
    runs = [guesser.run(number, one) for number, one in enumerate(given)]

    def good(number: int, guess: tuple[str, float]) -> bool:
        word, probability = guess
        known = word.isalpha() and len(word) > 1 and not is_function_word(word)
        if not known or probability < least or not repeats.forms(word):
            return False
        seen = (other for other in given[number].words if not is_function_word(other))
        return not any(repeats(word, other) for other in seen)

    before = {
        run.number: logs
        for run, logs in guesser.log_probabilities([run for run, _ in runs])
        if good(run.number, guesser.ranked(logs)[0])
    }
    edited = [
        _Run(run.number, run.ids, run.position, **edit)
        for run, words in runs
        if run.number in before
        for edit in _edits(model, words)
    ]
    found = []
    every: dict[int, dict[_Edit, tuple[float, str]]] = {}
    for run, logs in guesser.log_probabilities(edited):
        was = before[run.number]
        first, second = int(was.argmax()), int(logs.argmax())
        drop = float(was[first] - logs[first])
        every.setdefault(run.number, {})[run.hide or run.ablate] = drop, guesser.words[second]
        after = guesser.ranked(logs)
        if first != second and drop >= np.log(RATIO) and good(run.number, after[0]):
            swing = drop + float(logs[second] - was[second])
            one = Found(given[run.number], guesser.ranked(was), after, swing, drop)
            found.append((run, one))
    return _best(
        [
            _explained(guesser, one, run, runs[run.number][1], every[run.number])
            for run, one in found
        ]
    )


def _explained(
    guesser: _Guesser,
    found: Found,
    run: _Run,
    words: Mapping[str, tuple[int, ...]],
    every: Mapping[_Edit, tuple[float, str]],
) -> Found:
    """Add the masked word or the ablated head to a story; `every` has the effects of all edits."""
    if run.hide:
        return replace(found, hide=next(word for word, at in words.items() if at == run.hide))
    [head] = run.ablate
    word, weight = guesser.looks(run, words, head)
    drops = [drop for edit, (drop, _) in every.items() if isinstance(edit[0], tuple)]
    _, hidden = every.get(words[word], (0, ""))
    return replace(
        found,
        ablate=head,
        median=float(np.median(drops)),
        looks=(word, weight),
        alike=hidden == every[run.ablate][1],
    )


def _edits(model: qkv.Model, words: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, Any]]:
    """Yield an edit for each word to mask, then for each head to ablate."""
    if len(words) > 1:
        yield from ({"hide": positions} for positions in words.values())
    for layer in range(model.num_layers):
        yield from ({"ablate": ((layer, head),)} for head in range(model.num_heads))


def _best(found: Sequence[Found]) -> list[Found]:
    """Sort stories; keep at most one masked word and one head for each sentence."""
    order = sorted(found, key=lambda one: (*(-x for x in one.rank), one.candidate.sentence))
    kept: dict[tuple[str, bool], Found] = {}
    for one in order:
        kept.setdefault((one.candidate.sentence, one.hide is None), one)
    return list(kept.values())


def shown(found: Sequence[Found], top: int, sentences: int) -> str:
    """Format the first stories as numbered plain text."""
    lines = [f"{len(found)} found in {sentences} sentences", ""]
    for number, one in enumerate(found[:top], 1):
        edit = f'hide "{one.hide}"'
        if one.ablate is not None:
            edit = f"without head {one.ablate[0]}.{one.ablate[1]}"
        stars = "".join("*" if mark else "-" for mark in one.marks)
        lines.append(f"{number:4} {stars} {one.candidate.sentence}  [{one.candidate.family}]")
        lines.append(f"         {'as it is':24} {_in_a_line(one.before)}")
        lines.append(f"         {edit:24} {_in_a_line(one.after)}")
        moved = f"swing {one.swing:.1f}, log probability -{one.drop:.1f}"
        if one.ablate is not None:
            word, weight = one.looks
            moved += f" (the median head {-one.median:+.1f}), attends to {word} {weight:.2f}"
            moved += ", as with that hidden" if one.alike else ""
        lines.append(f"         {moved}")
    lines += [
        "",
        "***: the first guess is right; the edit concerns a word of the filler; the second guess "
        "would be right with another filler",
    ]
    return "\n".join(lines)


def _in_a_line(ranked: Ranked) -> str:
    return ", ".join(f"{word} {probability:.2f}" for word, probability in ranked)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Search with one model."""
    parser = argparse.ArgumentParser(prog="python -m training.stories", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", nargs="?", default=NAME, help=f"a folder or a name ({NAME})")
    parser.add_argument("--top", type=int, default=TOP, help=f"number of stories to print ({TOP})")
    parser.add_argument(
        "--least", type=float, default=LEAST, help=f"minimum probability of a guess ({LEAST})"
    )
    parser.add_argument(
        "--keep", type=int, nargs="*", metavar="NUMBER", help="write the stories with these numbers"
    )
    parser.add_argument("--json", action="store_true", help="print the stories as JSON")
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="folder of WordNet's files")
    given = parser.parse_args(arguments)
    model, every = qkv.load(given.model), candidates()
    found = search(model, every, Repeats(read(given.wordnet)), given.least)
    if given.keep is not None:
        if odd := [number for number in given.keep if not 1 <= number <= len(found)]:
            raise ValueError(
                f"stories: --keep has {odd[0]}, but only {len(found)} stories were found; pass "
                f"numbers from 1 to {len(found)}"
            )
        folder = find_model(given.model)
        told = [story(model, found[number - 1].told) for number in given.keep]
        sentences = {one.candidate.sentence for one in found}
        keep(folder, {"searched": len(every), "found": len(sentences), "stories": told})
        say(f"{folder / STORIES}: {len(told)} stories")
    elif given.json:
        rows = [vars(one) | one.told | {"marks": one.marks} for one in found[: given.top]]
        say(json.dumps([row | {"candidate": row["candidate"].family} for row in rows], indent=2))
    else:
        say(shown(found, given.top, len(every)))


if __name__ == "__main__":
    command(main)
