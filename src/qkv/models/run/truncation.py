"""Truncate texts to a model's limit, and warn once about all truncated texts."""

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
from qkv.text.gaps import mask_gaps

MAX_CHARS = 2**20  # The maximum number of characters to read of a text.
CHARS_PER_TOKEN = 8  # From a long text, `CHARS_PER_TOKEN * limit` characters are read first.


@dataclass
class Cut:
    """Counts of texts and truncated texts, and the length of the longest text.

    If `a` and `b` are the counts of two parts of a corpus, `a + b` holds the counts of the whole
    corpus.

    Attributes:
        limit: the maximum number of tokens in a text; None for no limit.
        total: the number of texts.
        count: the number of texts with more tokens than the limit.
        torn: the number of texts of which only the first million characters were read.
        longest: the number of tokens in the longest text.
        unread: the length, in characters, of the longest text that was not read to its end.
        gaps: the number of texts that lost a mask token when they were truncated.
    """

    limit: int | None
    total: int = 0
    count: int = 0
    torn: int = 0
    longest: int = 0
    unread: int = 0
    gaps: int = 0

    def __add__(self, other: "Cut") -> "Cut":
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
        """Warn about truncated texts.

        Inside a block `with counting(cut):`, add the counts to `cut` instead of warning.
        """
        counted = _counted.get()
        if counted is not None:
            vars(counted).update(vars(counted + self))
            return
        length = f"{self.longest}"
        if self.unread:
            more = " or more" * (self.unread > MAX_CHARS)
            length = f"{min(self.unread, MAX_CHARS):,} characters{more}"
        texts, whose = ("texts were", "the longest") if self.total > 1 else ("text was", "it")
        cut = {f"{self.limit} tokens ({whose} has {length})": self.count}
        cut[f"{MAX_CHARS:,} characters"] = self.torn
        parts = [f"{n} of {self.total} {texts} cut to {what}" for what, n in cut.items() if n]
        if self.gaps:
            whose = "the gap" if self.total == 1 else f"in {self.gaps} of these texts, a gap"
            parts[-1] += f"; {whose} is in the part that was cut and is not read"
        if parts:
            warnings.warn(" and ".join(parts), UserWarning, stacklevel=callers())


# State: each reader of texts warns about its own truncated texts, unless a pool or a server counts
# the texts of all readers. The counts belong to the `with` block of one thread.
_counted: ContextVar[Cut | None] = ContextVar("_counted", default=None)


@contextmanager
def counting(cut: Cut) -> Iterator[None]:
    """In the `with` block, count truncated texts in `cut` instead of warning about them."""
    token = _counted.set(cut)
    try:
        yield
    finally:
        _counted.reset(token)


class Truncator:
    """Split texts into tokens up to a limit, and count the texts that were too long.

    If a text is much longer than the limit, the tokenizer usually reads only the text's first
    words, because the tokens of later words would be dropped. The tokenizer never reads more than
    about the first million characters of a text.

    Args:
        tokenizer: the model's tokenizer.
        limit: the maximum number of tokens in a text; None for no limit.
        mask: the token that replaces each "[MASK]" or "___" in a text (see `qkv.text.gaps`). If
            `mask` is None, nothing is replaced.

    >>> from qkv.text import WordTokenizer
    >>> truncator = Truncator(WordTokenizer("the cat sat"), 2)
    >>> [text.tokens for text in truncator(["the cat sat", "sat " * 10**6])]
    [['the', 'cat'], ['sat', 'sat']]
    """

    def __init__(self, tokenizer: Tokenizer, limit: int | None, mask: str | None = None) -> None:
        self._tokenizer, self.cut, self._mask = tokenizer, Cut(limit), mask

    def __call__(self, texts: Sequence[str]) -> list[Tokenized]:
        """Return the tokens of each text, truncated to the limit."""
        read, cuts = [mask_gaps(text, self._mask) for text in texts], self._cuts
        batch = self._cut([one.text for one in read])
        if self._cuts > cuts:
            counts = (tokens.tokens.count(self._mask or "") for tokens in batch)
            lost = (len(one.starts) > count for one, count in zip(read, counts, strict=True))
            self.cut.gaps += sum(lost)
        return [
            replace(tokens, offsets=one.original_spans(tokens.offsets)) if one.gaps else tokens
            for one, tokens in zip(read, batch, strict=True)
        ]

    @property
    def _cuts(self) -> int:
        """The number of texts truncated so far."""
        return self.cut.count + self.cut.torn

    def _cut(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into tokens, and return each text's tokens up to the limit.

        The texts already contain the mask tokens that `__call__` inserts.
        """
        cut = self.cut
        limit = math.inf if cut.limit is None else cut.limit
        enough = min(2 * CHARS_PER_TOKEN * limit, MAX_CHARS)
        short = iter(
            self._tokenizer.tokenize_batch([text for text in texts if len(text) <= enough])
        )
        batch = [next(short) if len(text) <= enough else self._beginning(text) for text in texts]
        cut.longest = max([cut.longest, *map(len, batch)])
        cut.total += len(batch)
        cut.count += sum(len(text) > limit for text in batch)
        left = self._tokenizer.cuts_left
        return [_shorten(text, limit, left) for text in batch]

    def _beginning(self, text: str) -> Tokenized:
        """Return the first tokens of a long text; if possible, tokenize only its beginning.

        The tokens up to the limit are the same as if the whole text were tokenized. This method
        tokenizes two prefixes of the text; the second prefix is about twice as long as the first.
        If both prefixes give the same tokens for the first prefix, later words cannot change these
        tokens. If the tokenizer's `keeps_words_apart` is false, a token may contain parts of two
        words. Later words may then change earlier tokens, so this method tokenizes the whole text,
        up to `MAX_CHARS` characters.
        """
        cut, limit, left = self.cut, self.cut.limit, self._tokenizer.cuts_left
        if limit is not None and not left and self._tokenizer.keeps_words_apart:
            most = CHARS_PER_TOKEN * limit
            while 2 * most <= min(len(text), MAX_CHARS):
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
        if len(text) > MAX_CHARS:
            cut.unread, cut.torn = max(cut.unread, len(text)), cut.torn + 1
            part = text[-MAX_CHARS:] if left else text[: _word_end(text, MAX_CHARS) or MAX_CHARS]
            tokens, before = self._tokenizer.tokenize(part), len(text) - len(part) if left else 0
            spans = [(a + before, b + before) if b else (a, b) for a, b in tokens.offsets]
            return replace(tokens, offsets=spans)
        return self._tokenizer.tokenize(text)


def callers() -> int:
    """Return the `stacklevel` of a warning: the number of calls up to the caller outside qkv."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("qkv."):
        frame, level = frame.f_back, level + 1
    return level


def _word_end(text: str, most: int) -> int:
    """Return the index of the last space that follows a word in `text[: most + 1]`, or 0."""
    end = text.rfind(" ", 0, most + 1)
    while end > 0 and text[end - 1].isspace():
        end = text.rfind(" ", 0, end)
    return max(end, 0)


def _tail(text: Tokenized) -> int:
    """Return the number of special tokens at the end of a text."""
    return sum(1 for _ in takewhile(bool, reversed(text.special)))


def _shorten(text: Tokenized, limit: float, left: bool) -> Tokenized:
    """Return the tokens of a text that a truncation keeps."""
    if len(text) <= limit:
        return text
    keep = indices_to_keep(text.special, int(limit), left)
    return Tokenized(
        ids=text.ids[keep],
        tokens=[text.tokens[i] for i in keep],
        offsets=[text.offsets[i] for i in keep],
        special=[text.special[i] for i in keep],
    )


def indices_to_keep(special: Sequence[bool], limit: int, left: bool) -> list[int]:
    """Return the indices of the tokens that a truncation to `limit` tokens keeps.

    The truncation keeps the first tokens and the special tokens at the end; if `left` is True, it
    keeps the special tokens at the start and the last tokens.

    >>> indices_to_keep([True, False, False, False, True], 3, False)
    [0, 1, 4]
    >>> indices_to_keep([True, False, False, False, True], 3, True)
    [0, 3, 4]
    """
    around = sum(1 for _ in takewhile(bool, special if left else reversed(special)))
    first = around if left else limit - around
    return [*range(first), *range(len(special) - limit + first, len(special))]
