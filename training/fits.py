"""Measure how often a model's guesses fit: `python -m training.fits MODEL [MODEL ...]`.

`gaps.txt` contains 200 everyday sentences with a gap, and `openings.txt` contains 60 openings; each
line lists the words that fit. In both files, the part "[choose]" is for choosing between models.
We wrote all texts before we trained any model on books. MODEL is a folder or a name: an encoder is
measured on the gaps, a decoder on the openings.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import qkv
from training import command
from training.lesson import is_content
from training.shares import in_words

GAPS = Path(__file__).with_name("gaps.txt")
OPENINGS = Path(__file__).with_name("openings.txt")
PARTS = ("test", "choose")
FIVE = 5

WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_FIRST = re.compile(r"\s+[\"'(]*([^\W\d_]+(?:['-][^\W\d_]+)*)")


class Asked(NamedTuple):
    """A sentence with a gap ("_"), or the opening of a sentence.

    Attributes:
        text: the text as a reader types it.
        fitting: the words that fit, in lower case.
    """

    text: str
    fitting: frozenset[str]


class Said(NamedTuple):
    """A model's guesses for one gap or opening.

    Attributes:
        asked: the gap or the opening.
        words: the guesses, the most probable first.
    """

    asked: Asked
    words: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Return whether the first guess fits."""
        return self.among(1)

    @property
    def repeats(self) -> bool:
        """Return whether the first guess repeats a content word of the text."""
        first = self.words[:1]
        return bool(first) and is_content(first[0]) and first[0] in words_of(self.asked.text)

    def among(self, count: int) -> bool:
        """Return whether one of the first `count` guesses fits."""
        return any(word in self.asked.fitting for word in self.words[:count])


def asked(path: Path, part: str = "test") -> list[Asked]:
    """Read one part of `gaps.txt` or `openings.txt`.

    Raises:
        ValueError: a line does not consist of a text, "=" and words; the message names the line.

    >>> [len(asked(path, part)) for path in (GAPS, OPENINGS) for part in PARTS]
    [200, 60, 60, 25]
    """
    found, at = [], ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if line.startswith("["):
            at = line.strip("[]")
        elif line and not line.startswith("#") and at == part:
            text, _, words = line.partition(" = ")
            if not words:
                raise ValueError(f"fits: {path.name}, line {number}: write TEXT = WORD WORD ...")
            found.append(Asked(text, frozenset(words.split())))
    return found


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case.

    >>> words_of("It's a _ , Tom")
    ["it's", 'a', 'tom']
    """
    return [word.casefold() for word in WORD.findall(text)]


def guessed(model: qkv.Model, gaps: Sequence[Asked]) -> list[Said]:
    """Return the five most probable words in each gap."""
    assert model.tokenizer is not None
    mask = str(model.tokenizer.mask)
    found = []
    for gap in gaps:
        [guesses] = model.predict(gap.text.replace("_", mask), top_k=FIVE)
        found.append(Said(gap, tuple(word.casefold() for word, _ in guesses)))
    return found


def continued(model: qkv.Model, openings: Sequence[Asked], tokens: int = 6) -> list[Said]:
    """Continue each opening greedily; return the first new word of each continuation.

    If the model only extends the last word of an opening, there is no new word.
    """
    found = []
    for opening in openings:
        text = str(model.generate(opening.text, max_new_tokens=tokens))
        first = _FIRST.match(text)
        found.append(Said(opening, (first[1].casefold(),) if first else ()))
    return found


def shown(name: str, said: Sequence[Said]) -> str:
    """Return a report: how many guesses fit, with 95% confidence intervals.

    >>> one = Asked("the cat _ a mouse", frozenset(["ate"]))
    >>> print(shown("two guesses", [Said(one, ("ate", "saw")), Said(one, ("mouse", "ate"))]))
    two guesses: the first guess fits in 1 of 2, 50.0% (9.5 to 90.5), one of the five guesses
    fits in 2, 100.0% (34.2 to 100.0), texts whose first guess repeats a content word: 1
    """
    tries = len(said)
    first, five = (sum(one.among(count) for one in said) for count in (1, FIVE))
    parts = [f"{name}: the first guess fits in {first} of {tries}, {in_words(first, tries)}"]
    if any(len(one.words) > 1 for one in said):
        repeated = sum(one.repeats for one in said)
        parts += [f"one of the five guesses fits in {five}, {in_words(five, tries)}"]
        parts += [f"texts whose first guess repeats a content word: {repeated}"]
    return ", ".join(parts)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Measure models."""
    parser = argparse.ArgumentParser(prog="python -m training.fits", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", nargs="+", help="folders or names")
    parser.add_argument(
        "--choose", action="store_true", help="measure on the part kept for choosing models"
    )
    parser.add_argument("--wrong", action="store_true", help="also print wrong guesses")
    given = parser.parse_args(arguments)
    part = PARTS[given.choose]
    for name in given.models:
        model = qkv.load(name)
        writes = model.generates
        said = (continued if writes else guessed)(model, asked(OPENINGS if writes else GAPS, part))
        say(shown(name, said))
        for one in said if given.wrong else ():
            if not one.fits:
                say(f"  {one.asked.text}: {', '.join(one.words)}")


if __name__ == "__main__":
    command(main)
