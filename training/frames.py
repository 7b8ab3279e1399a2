"""Everyday sentences with one missing word, and a test for equal or similar words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from training.wordnet import PARTS, WordNet

FRAMES = Path(__file__).with_name("stories.txt")
MASK = "[MASK]"
_WORD = re.compile(r"\[MASK\]|[^\W_]+(?:'[^\W_]+)*")
_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])")


@dataclass(frozen=True)
class Candidate:
    """A sentence with one word missing.

    Attributes:
        sentence: with [MASK] where the word is missing.
        family: the family's name in `stories.txt`.
        why: the reason for the guess, with {hidden} in place of the masked word.
        cue: the words of the filler in lower case.
        right: the right guesses for the missing word of this sentence. In `stories.txt`, these
            words follow the filler of the sentence and a colon.
        fits: the right words of all fillers of the family, and the words that `stories.txt` lists
            after "+". The words after "+" fit the gap with any filler.
    """

    sentence: str
    family: str
    why: str
    cue: frozenset[str]
    right: frozenset[str]
    fits: frozenset[str]

    @property
    def words(self) -> dict[str, list[tuple[int, int]]]:
        """Return all words except the missing word, in lower case, with their spans."""
        found: dict[str, list[tuple[int, int]]] = {}
        for match in _WORD.finditer(self.sentence):
            if match[0] != MASK:
                found.setdefault(match[0].lower(), []).append(match.span())
        return found


def candidates(text: str | None = None) -> list[Candidate]:
    r"""Return all sentences made from frames and fillers, each once.

    Args:
        text: a text in the format of `stories.txt`; by default the text of `stories.txt`.

    Raises:
        ValueError: a sentence does not have exactly one missing word.

    >>> text = '== young\nwhy: by "{hidden}"\nA {} is a young [MASK].\n> owl: bird\n+ cat'
    >>> [one] = candidates(text)
    >>> one.sentence, one.why, sorted(one.cue), sorted(one.right), sorted(one.fits)
    ('An owl is a young [MASK].', 'by "{hidden}"', ['owl'], ['bird'], ['bird', 'cat'])
    """
    found: dict[str, Candidate] = {}
    for family in re.split(r"^== ", text or FRAMES.read_text(encoding="utf-8"), flags=re.M)[1:]:
        name, why, *lines = family.strip().splitlines()
        general = {word for line in lines if line[:1] == "+" for word in line[1:].split()}
        fillers = {pair for _, pairs in _blocks(lines) for pair in pairs}
        fits = frozenset(general.union(*(right for _, right in fillers)))
        for frames, pairs in _blocks(lines):
            for frame, (filler, right) in ((f, pair) for f in frames for pair in pairs):
                sentence = _BEFORE_VOWEL.sub(r"\1n ", frame.replace("{}", filler))
                sentence = sentence[0].upper() + sentence[1:]
                if sentence.count(MASK) != 1:
                    raise ValueError(
                        f"stories: {sentence} needs exactly one {MASK}: correct {FRAMES.name}"
                    )
                cue = frozenset(word.lower() for word in _WORD.findall(filler))
                one = Candidate(sentence, name, why.removeprefix("why: "), cue, right, fits)
                found.setdefault(sentence, one)
    return list(found.values())


def _blocks(
    lines: Sequence[str],
) -> Iterator[tuple[list[str], list[tuple[str, frozenset[str]]]]]:
    """Yield each group of frames and fillers.

    A group consists of lines with frames, and then lines with the fillers for these frames. The
    next frame starts a new group.
    """
    frames: list[str] = []
    fillers: list[tuple[str, frozenset[str]]] = []
    for line in (*filter(None, lines), ""):
        if line[:1] == ">":
            for pair in line[1:].split("|"):
                filler, _, right = pair.partition(":")
                fillers.append((filler.strip(), frozenset(right.split())))
        elif line[:1] not in ("+", "#"):
            if fillers:
                yield frames, fillers
                frames, fillers = [], []
            frames.append(line)


@dataclass
class Repeats:
    """Tests whether two words are equal, forms of the same word, or similar.

    WordNet defines the forms of a word. Two words are similar in three cases. The longer word
    begins with the shorter word, which has at least three letters. The longer word ends with the
    shorter word, which has at least four letters. Or both words begin with the same four or more
    letters, and the longer word has at most three further letters.
    """

    wordnet: WordNet
    _forms: dict[str, frozenset[str]] = field(default_factory=dict)

    def forms(self, word: str) -> frozenset[str]:
        """Return the words in WordNet whose forms include `word`."""
        if word not in self._forms:
            self._forms[word] = frozenset(
                base
                for part in PARTS.values()
                for base in self.wordnet.bases(word, part)
                if (base, part) in self.wordnet.index
            )
        return self._forms[word]

    def __call__(self, word: str, other: str) -> bool:
        """Return whether a word repeats another word."""
        if word == other or self.forms(word) & self.forms(other):
            return True
        shorter, longer = sorted([word, other], key=len)
        alike = len(common_beginning(word, other))
        return (
            alike == len(shorter) >= 3
            or alike >= max(4, len(longer) - 3)
            or (len(shorter) >= 4 and longer.endswith(shorter))
        )


def common_beginning(word: str, other: str) -> str:
    """Return the letters with which both words begin.

    >>> common_beginning("kitten", "kitchen")
    'kit'
    """
    pairs = zip(word, other, strict=False)
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
