"""The words of a text whose effects `why` measures, as spans of whole tokens."""

import re
from typing import NamedTuple

from qkv.see.analysis._words import FUNCTION_WORDS, is_punctuation
from qkv.text import Tokenized
from qkv.text.tokenized import without_blanks

UNITS = ("word", "token")


class Unit(NamedTuple):
    """Tokens that are hidden together, `[first, stop)`, and their characters in the text."""

    text: str
    first: int
    stop: int


def units_of(tokens: Tokenized, unit: str = "word", mask: str | None = None) -> list[Unit]:
    """List the words of a text, or its tokens; special tokens and mask tokens belong to none.

    A word ends at white space. Punctuation at its ends is a word of its own; marks inside it stay
    ("don't", "3.14"). In writing without spaces, each token is a word, and tokens that share a
    character are one word. A token that contains parts of two words belongs to the first; a token
    of white space belongs to the word before it, or to none.

    Args:
        tokens: the tokens of a text, with the text.
        unit: "word" or "token".
        mask: the mask token.
    """
    text, units = tokens.text, list[Unit]()
    pairs = zip(tokens.special, tokens.tokens, strict=True)
    none = [special or token == mask for special, token in pairs]
    written = list(text)
    for (begin, end), apart in zip(tokens.offsets, none, strict=True):
        written[begin:end] = " " * (end - begin) if apart else written[begin:end]
    borders = _borders("".join(written))
    last = (-1, -1, False)  # of the token before: its region, its end, and whether it is a word's
    for position, (begin, end) in enumerate(tokens.offsets):
        blank = not text[begin:end].strip()
        if none[position] or begin >= end or (blank and not last[2]):
            last = (-1, -1, False)
            continue
        start = begin + len(text[begin:end]) - len(text[begin:end].lstrip())
        region = last[0] if blank else borders[start]
        apart = not blank and without_blanks(text[start])
        joins = blank or (begin < last[1] if apart else region == last[0])
        if unit == "word" and joins and last[2]:
            _, first, _ = units.pop()
            at = tokens.offsets[first][0]
        else:
            first, at = position, begin
        units.append(Unit(text[at:end].strip() or text[at:end], first, position + 1))
        last = (region, end, True)
    return units


def _borders(text: str) -> list[int]:
    """Return the number of the word of each character; -1 for white space."""
    numbers, count = [-1] * len(text), 0
    for chunk in re.finditer(r"\S+", text):
        marks = [is_punctuation(mark) for mark in chunk[0]]
        inner = [at for at, is_mark in enumerate(marks) if not is_mark] or [len(marks)]
        for at in range(len(marks)):
            part = (at >= inner[0]) + (at > inner[-1])
            numbers[chunk.start() + at] = count + part
        count += 3
    return numbers


def is_content(word: str) -> bool:
    """Return whether a word is neither punctuation nor an English function word.

    >>> [is_content(word) for word in ("Paris", "The", "don't", "...", "天")]
    [True, False, False, False, True]
    """
    return word.lower() not in FUNCTION_WORDS and not is_punctuation(word)
