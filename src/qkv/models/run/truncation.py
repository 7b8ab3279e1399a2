"""Reading texts up to a model's limit, and saying once what was cut."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from qkv.text import Tokenized, Tokenizer
from qkv.text.gaps import masked

MOST = 2**20  # characters of a text that are read
ROOM = 8  # characters for each token of the limit, of what is looked at first


@dataclass
class Cut:
    """How many texts were cut; those of two parts of a corpus add up: `one + other`.

    Attributes:
        limit: the most tokens of a text; None for no limit.
        total: how many texts were read.
        count: how many had more tokens than the limit.
        torn: how many were cut to a million characters first.
        longest: the most tokens that a text had.
        unread: the most characters of a text whose tokens were not all counted.
        gaps: how many had a mask token behind the limit.
    """

    limit: int | None
    total: int = 0
    count: int = 0
    torn: int = 0
    longest: int = 0
    unread: int = 0
    gaps: int = 0

    def __add__(self, other: Cut) -> Cut:
        return Cut(
            self.limit,
            self.total + other.total,
            self.count + other.count,
            self.torn + other.torn,
            max(self.longest, other.longest),
            max(self.unread, other.unread),
            self.gaps + other.gaps,
        )

    def warn(self) -> None:
        """A warning that counts what was cut, if anything was and nobody is `counting`."""
        counted = _counted.get()
        if counted is not None:
            vars(counted).update(vars(counted + self))
            return
        length = f"{self.longest}"
        if self.unread:
            length = f"{min(self.unread, MOST):,} characters{' or more' * (self.unread > MOST)}"
        texts, whose = ("texts were", "the longest") if self.total > 1 else ("text was", "it")
        cut = {f"{self.limit} tokens ({whose} has {length})": self.count}
        cut[f"{MOST:,} characters"] = self.torn
        said = [f"{n} of {self.total} {texts} cut to {what}" for what, n in cut.items() if n]
        if self.gaps:
            first = f"{MOST:,} characters" if self.limit is None else f"{self.limit} tokens"
            whose = "the gap" if self.total == 1 else f"in {self.gaps} of them a gap"
            said[-1] += f"; {whose} is beyond the first {first} and is not read"
        if said:
            warnings.warn(" and ".join(said), UserWarning, stacklevel=callers())


_counted: ContextVar[Cut | None] = ContextVar("_counted", default=None)


@contextmanager
def counting(cut: Cut) -> Iterator[None]:
    """Add to `cut` what is cut in here, and do not warn of it."""
    token = _counted.set(cut)
    try:
        yield
    finally:
        _counted.reset(token)


class Truncator:
    """Cuts texts into tokens, as many as a limit takes, and counts how many were too long.

    Of a long text only the beginning is cut into tokens, so long that those that are kept are the
    same as of the whole; and never more than the first million characters.

    Args:
        tokenizer: the model's.
        limit: the most tokens of a text; None for no limit.
        mask: what a gap of a text is read as (`qkv.text.gaps`); None for what is written there.

    >>> from qkv.text import WordTokenizer
    >>> truncator = Truncator(WordTokenizer("the cat sat"), 2)
    >>> [text.tokens for text in truncator(["the cat sat", "sat " * 10**6])]
    [['the', 'cat'], ['sat', 'sat']]
    """

    def __init__(self, tokenizer: Tokenizer, limit: int | None, mask: str | None = None) -> None:
        self._tokenizer, self.cut, self._mask = tokenizer, Cut(limit), mask

    def __call__(self, texts: Sequence[str]) -> list[Tokenized]:
        """The tokens of each text, none of them more than the limit."""
        read, cuts = [masked(text, self._mask) for text in texts], self._cuts
        batch = self._cut([one.text for one in read])
        if self._cuts > cuts:
            ends = (max((end for _, end in tokens.offsets), default=0) for tokens in batch)
            lost = (one.starts[-1:] >= [end] for one, end in zip(read, ends, strict=True))
            self.cut.gaps += sum(lost)
        return [
            replace(tokens, offsets=one.given(tokens.offsets)) if one.gaps else tokens
            for one, tokens in zip(read, batch, strict=True)
        ]

    @property
    def _cuts(self) -> int:
        """How many texts were cut so far."""
        return self.cut.count + self.cut.torn

    def _cut(self, texts: Sequence[str]) -> list[Tokenized]:
        """The same of texts whose gaps are written as the mask token."""
        cut = self.cut
        limit = math.inf if cut.limit is None else cut.limit
        enough = min(2 * ROOM * limit, MOST)
        short = iter(
            self._tokenizer.tokenize_batch([text for text in texts if len(text) <= enough])
        )
        batch = [next(short) if len(text) <= enough else self._beginning(text) for text in texts]
        cut.longest = max([cut.longest, *map(len, batch)])
        cut.total += len(batch)
        cut.count += sum(len(text) > limit for text in batch)
        return [_shortened(text, limit) for text in batch]

    def _beginning(self, text: str) -> Tokenized:
        """The tokens of a long text, so many that those up to the limit are certain.

        Two beginnings that end where a word does are cut into tokens: what the shorter one gives is
        certain where the longer one begins with the same. That holds for all that may follow, since
        no token reaches from one word into the next (`keeps_words_apart`).
        """
        cut, limit = self.cut, self.cut.limit
        if limit is not None and self._tokenizer.keeps_words_apart:
            most = ROOM * limit
            while 2 * most <= min(len(text), MOST):
                first, second = _word_end(text, most), _word_end(text, 2 * most)
                most *= 2
                if not 0 < first < second:
                    continue
                short, long = self._tokenizer.tokenize_batch([text[:first], text[:second]])
                body = len(short) - _tail(short)
                enough = limit - _tail(long) <= body and len(long) > limit
                alike = np.array_equal(short.ids[:body], long.ids[:body])
                alike = alike and short.offsets[:body] == long.offsets[:body]
                if enough and alike:
                    cut.unread = max(cut.unread, len(text))
                    return long
        if len(text) > MOST:
            cut.unread, cut.torn = max(cut.unread, len(text)), cut.torn + 1
            text = text[: _word_end(text, MOST) or MOST]
        return self._tokenizer.tokenize(text)


def callers() -> int:
    """For a warning: how many calls up the first one is that is not ours."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("qkv."):
        frame, level = frame.f_back, level + 1
    return level


def _word_end(text: str, most: int) -> int:
    """The last place up to `most` that has a blank behind it and none before, 0 for none."""
    place = text.rfind(" ", 0, most + 1)
    while place > 0 and text[place - 1].isspace():
        place = text.rfind(" ", 0, place)
    return max(place, 0)


def _tail(text: Tokenized) -> int:
    """How many special tokens the end has."""
    return sum(1 for _ in takewhile(bool, reversed(text.special)))


def _shortened(text: Tokenized, limit: float) -> Tokenized:
    """The first tokens, with the special ones at the end kept as the last."""
    if len(text) <= limit:
        return text
    tail = _tail(text)
    keep = [*range(int(limit) - tail), *range(len(text) - tail, len(text))]
    return Tokenized(
        ids=text.ids[keep],
        tokens=[text.tokens[place] for place in keep],
        offsets=[text.offsets[place] for place in keep],
        special=[text.special[place] for place in keep],
    )
