"""Spell tokens as text while they come, as soon as a character or a word is complete."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from qkv.text import Tokenizer
from qkv.text.tokenizer import check_text

CONTEXT = 8  # last tokens of the prompt that are spelled with the first new tokens
_BROKEN = "\ufffd"  # stands for bytes that are not a character, or not yet

# Letters that are written without blanks between words: Thai to Khmer, Chinese, Japanese, ...
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LAST_WORD = re.compile(rf"\s*[^\s{_UNSPACED}]*\Z")


class Spelling:
    """Spells tokens as text, as soon as a character is complete.

    Args:
        decode: from ids to their text.
        before: the tokens that the text continues.

    Attributes:
        spans: the first character of each spelled token in the text, and the one after its last;
            tokens that make one character together have the same span.

    >>> spelling = Spelling(lambda ids: bytes(ids).decode(errors="replace"))
    >>> [spelling.add(byte) for byte in "né".encode()], spelling.spans
    (['n', '', 'é'], [(0, 1), (1, 2), (1, 2)])
    """

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = [int(token) for token in before[-CONTEXT:]]
        # Ids from `_done` on are not yet text; they are spelled with those from `_first` on.
        self._first, self._done = 0, len(self._ids)
        self.spans: list[tuple[int, int]] = []

    def add(self, token: int) -> str:
        """Add a token, and return the text that is complete with it."""
        self._ids.append(token)
        return self._spelled(final=False)

    def finish(self) -> str:
        """Return the rest of the text, after the last token."""
        return self._spelled(final=True)

    def _spelled(self, *, final: bool) -> str:
        """Return the text of the ids that have none; "" if it ends on half a character."""
        before = self._decode(self._ids[self._first : self._done])
        whole = self._decode(self._ids[self._first :])
        new = whole[len(before) :]
        if not final and (not new or new.endswith(_BROKEN)):
            return ""
        begin = self.spans[-1][1] if self.spans else 0
        self.spans += [(begin, begin + len(new))] * (len(self._ids) - self._done)
        self._first, self._done = self._done, len(self._ids)
        return new

    def named(self, token: int) -> str:
        """Return the text of a token after these; "" for part of a character or a special token."""
        before = self._ids[-CONTEXT:]
        known, whole = self._decode(before), self._decode([*before, token])
        new = whole[len(known) :]
        return "" if new.endswith(_BROKEN) or not whole.startswith(known) else new


class TextStream:
    """Spells tokens as text, as soon as a word is complete.

    Args:
        decode: from ids to their text.
        before: the tokens that the text continues.
        stop: the text ends before any of these.

    >>> words = {0: "one", 1: " tw", 2: "o", 3: " three"}
    >>> stream = TextStream(lambda ids: "".join(words[i] for i in ids), [0])
    >>> [stream.add(i) for i in (1, 2, 3)], stream.finish(), stream.text
    (['', '', ' two'], ' three', ' two three')
    """

    def __init__(
        self, decode: Callable[[list[int]], str], before: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self.spelling, self._stop = Spelling(decode, before), stop
        self._held = ""
        self.text = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Add a token, and return the text that is complete with it."""
        return self._release(self.spelling.add(token), final=False)

    def finish(self) -> str:
        """Return the rest of the text, after the last token."""
        return self._release(self.spelling.finish(), final=True)

    def _release(self, new: str, *, final: bool) -> str:
        """Return the text that is complete with `new`, and hold the rest."""
        held = self._held + new
        stops = [at for at in map(held.find, self._stop) if at >= 0]
        if stops:
            held, self.stopped = held[: min(stops)], True
        size = len(held)
        if not final and not stops:
            last = _LAST_WORD.search(held)
            assert last is not None
            size = min(last.start(), *(_begun(held, stop) for stop in self._stop), size)
            size = len(held[:size].rstrip())  # a blank comes with the next word
        self._held = held[size:]
        self.text += held[:size]
        return held[:size]


def _begun(text: str, stop: str) -> int:
    """Return where `stop` may have begun at the end of `text`; its length if nowhere."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return len(text) - size
    return len(text)


def spelled(tokenizer: Tokenizer | None) -> Callable[[list[int]], str]:
    """Return a function from ids to their text; to numbers without a tokenizer."""
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids))
    # a token table may have more rows than there are tokens
    return lambda ids: tokenizer.decode([i for i in ids if tokenizer.token(i) is not None])


def check_stop(stop: Any) -> tuple[str, ...]:
    """Return one or several stop strings as a tuple."""
    try:
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
    except TypeError:
        raise TypeError(f"generate: stop is {stop!r:.40}: give strings") from None
    for text in strings:
        if not check_text(text, call="generate", name="a stop string"):
            raise ValueError("generate: stop has an empty string: leave it out")
    return strings
