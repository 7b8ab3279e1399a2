"""Everyday sentences with one word missing, and which words repeat each other."""

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
        family: of `stories.txt`.
        why: the reason that the family gives, with {hidden} for the word that is hidden.
        cue: the words of the filler, in small letters.
        right: those that would be right in the place, as they were written beside the filler.
        fits: those that would do with another filler.
    """

    sentence: str
    family: str
    why: str
    cue: frozenset[str]
    right: frozenset[str]
    fits: frozenset[str]

    @property
    def words(self) -> dict[str, list[tuple[int, int]]]:
        """The words in small letters, and where each of them stands; not the missing one."""
        found: dict[str, list[tuple[int, int]]] = {}
        for match in _WORD.finditer(self.sentence):
            if match[0] != MASK:
                found.setdefault(match[0].lower(), []).append(match.span())
        return found


def candidates(text: str | None = None) -> list[Candidate]:
    r"""All sentences that come of frames and fillers, each once.

    Args:
        text: as `stories.txt` is written; by default what stands there.

    Raises:
        ValueError: a sentence has not one word missing.

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
                    raise ValueError(f"stories: {sentence} has not one {MASK}: mend {FRAMES.name}")
                cue = frozenset(word.lower() for word in _WORD.findall(filler))
                one = Candidate(sentence, name, why.removeprefix("why: "), cue, right, fits)
                found.setdefault(sentence, one)
    return list(found.values())


def _blocks(
    lines: Sequence[str],
) -> Iterator[tuple[list[str], list[tuple[str, frozenset[str]]]]]:
    """Frames, and the fillers that stand under them; a frame behind fillers begins anew."""
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
    """Whether a word repeats another: it is the same, a form of it, or begins or ends as it does.

    Forms are WordNet's. Words begin alike if the one, of three letters or more, is the beginning of
    the other, or if they share four letters or more and all but three of the longer one; they end
    alike if the one, of four letters or more, is the end of the other.
    """

    wordnet: WordNet
    _forms: dict[str, frozenset[str]] = field(default_factory=dict)

    def forms(self, word: str) -> frozenset[str]:
        """The words that WordNet knows of which this one is a form; none if it knows none."""
        if word not in self._forms:
            self._forms[word] = frozenset(
                base
                for part in PARTS.values()
                for base in self.wordnet.bases(word, part)
                if (base, part) in self.wordnet.index
            )
        return self._forms[word]

    def __call__(self, word: str, other: str) -> bool:
        """Whether it does."""
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
    """The letters that two words begin with.

    >>> common_beginning("kitten", "kitchen")
    'kit'
    """
    pairs = zip(word, other, strict=False)
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
