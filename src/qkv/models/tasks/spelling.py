"""Tokens as text while they come: as soon as a character, or a word, of it is whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from qkv.text import Tokenizer
from qkv.text.tokenizer import check_text

CONTEXT = 8  # tokens of the prompt that the first new ones are spelled with
_BROKEN = "\ufffd"  # what bytes that are no character, or not yet one, are shown as

# What is read without blanks between words: Thai to Khmer, and Chinese, Japanese and their like.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LAST_WORD = re.compile(rf"\s*[^\s{_UNSPACED}]*\Z")


class Spelling:
    """Tokens as text, as soon as a character of it is whole.

    Args:
        decode: from ids to their text.
        before: the tokens that the text continues.

    Attributes:
        spans: for each token that is spelled, from which character of the text to which it stands;
            those that make one character together have the same.

    >>> spelling = Spelling(lambda ids: bytes(ids).decode(errors="replace"))
    >>> [spelling.add(byte) for byte in "né".encode()], spelling.spans
    (['n', '', 'é'], [(0, 1), (1, 2), (1, 2)])
    """

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = [int(token) for token in before[-CONTEXT:]]
        # Ids from `_done` on are not yet text; those from `_first` on say how they are spelled.
        self._first, self._done = 0, len(self._ids)
        self.spans: list[tuple[int, int]] = []

    def add(self, token: int) -> str:
        """What is whole with this token, and was not before."""
        self._ids.append(token)
        return self._spelled(final=False)

    def finish(self) -> str:
        """The rest: there is no further token."""
        return self._spelled(final=True)

    def _spelled(self, *, final: bool) -> str:
        """The text of the ids that had none; nothing if it ends on half a character."""
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
        """How a token would be spelled next; nothing if it is no whole character, or special."""
        before = self._ids[-CONTEXT:]
        known, whole = self._decode(before), self._decode([*before, token])
        new = whole[len(known) :]
        return "" if new.endswith(_BROKEN) or not whole.startswith(known) else new


class TextStream:
    """Tokens as text, as soon as a word of it is whole.

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
        """What is whole with this token, and was not before."""
        return self._release(self.spelling.add(token), final=False)

    def finish(self) -> str:
        """The rest: there is no further token."""
        return self._release(self.spelling.finish(), final=True)

    def _release(self, new: str, *, final: bool) -> str:
        """What of the held text and this can be let go."""
        held = self._held + new
        found = [at for at in map(held.find, self._stop) if at >= 0]
        if found:
            held, self.stopped = held[: min(found)], True
        size = len(held)
        if not final and not found:
            last = _LAST_WORD.search(held)
            assert last is not None
            size = min(last.start(), *(_begun(held, stop) for stop in self._stop), size)
            size = len(held[:size].rstrip())  # a blank comes with the word behind it
        self._held = held[size:]
        self.text += held[:size]
        return held[:size]


def _begun(text: str, stop: str) -> int:
    """Where `stop` may have begun at the end of `text`; the length of `text` if it has not."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return len(text) - size
    return len(text)


def spelled(tokenizer: Tokenizer | None) -> Callable[[list[int]], str]:
    """From ids to their text; numbers where there is no tokenizer."""
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids))
    # a token table may have more rows than there are tokens
    return lambda ids: tokenizer.decode([i for i in ids if tokenizer.token(i) is not None])


def check_stop(stop: Any) -> tuple[str, ...]:
    """Stop strings, as one or several were given."""
    given = (stop,) if isinstance(stop, str) else stop
    try:
        strings = tuple(given)
    except TypeError:
        raise TypeError(f"generate: stop is {given!r:.40}: give strings") from None
    for text in strings:
        if not check_text(text, call="generate", name="a stop string"):
            raise ValueError("generate: stop has an empty string: leave it out")
    return strings
