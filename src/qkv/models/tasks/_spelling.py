"""Convert new tokens to text as soon as a character or a word is complete."""

import re
from collections.abc import Callable, Sequence
from os.path import commonprefix
from typing import Any

from qkv._argument_errors import type_error, value_error
from qkv.text import Tokenizer
from qkv.text.tokenizer import check_text

CONTEXT = 8  # To name a token, decode it together with at most this many preceding tokens.
BROKEN = "\ufffd"  # `decode` returns this for an incomplete character.
_BYTES = 4  # the maximum number of bytes of a character in UTF-8

# Letters of scripts without spaces between words, such as Thai, Burmese, Khmer and Chinese.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LAST_WORD = re.compile(rf"\s*[^\s{_UNSPACED}]*\Z")


class Spelling:
    r"""Converts tokens to text as soon as a character is complete.

    Args:
        decode: a function that converts ids to text.
        before: the tokens that precede the text. If they end inside a character, the text begins
            with that character.

    Attributes:
        spans: for each decoded token, where its characters begin and end in the text. If
            several tokens form one character, they have the same span.
        prompt: the text of `before`, if `before` ends inside a character that the new tokens
            complete; this character is not in `prompt`. Otherwise None.

    >>> spelling = Spelling(lambda ids: bytes(ids).decode(errors="replace"))
    >>> [spelling.add(byte) for byte in "né".encode()], spelling.spans
    (['n', '', 'é'], [(0, 1), (1, 2), (1, 2)])
    >>> Spelling(lambda ids: bytes(ids).decode(errors="replace"), b"n\xc3").add(0xA9)
    'é'
    """

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = [int(token) for token in before]
        # The ids from `_done` on are not yet converted to text. The next call decodes all ids from
        # `_first` on, because the text of an id can depend on the ids before it.
        self._first, self._done = 0, len(self._ids)
        self.spans: list[tuple[int, int]] = []
        self.prompt: str | None = None

    def add(self, token: int) -> str:
        """Add a token, and return the text that this token completes."""
        self._ids.append(token)
        return self._decode_rest(final=False)

    def finish(self) -> str:
        """Return the rest of the text; call this method after the last `add`."""
        return self._decode_rest(final=True)

    def _decode_rest(self, *, final: bool) -> str:
        """Decode the ids that are not yet text; return "" if a character is incomplete."""
        before = self._decode(self._ids[self._first : self._done])
        whole = self._decode(self._ids[self._first :])
        is_completed = before.endswith(BROKEN) and not whole.startswith(before)
        known = self._complete(whole) if is_completed else len(before)
        new = whole[known:]
        if not final and (not new or new.endswith(BROKEN)):
            return ""
        begin = self.spans[-1][1] if self.spans else 0
        self.spans += [(begin, begin + len(new))] * (len(self._ids) - self._done)
        if is_completed:  # these tokens complete a character that began in the prompt
            self.prompt = whole[:known]
        else:
            self._first = self._done
        self._done = len(self._ids)
        return new

    def _complete(self, whole: str) -> int:
        """Return how many characters of `whole` the prompt's tokens spell completely."""
        cuts = range(max(0, self._done - _BYTES), self._done + 1)
        texts = [[whole, self._decode(self._ids[:cut])] for cut in cuts]
        return max(map(len, map(commonprefix, texts)))

    def text_of(self, token: int) -> str:
        """Return the text of a possible next token; "" for special tokens or partial characters."""
        before = self._ids[-CONTEXT:]
        known, whole = self._decode(before), self._decode([*before, token])
        new = whole[len(known) :]
        return "" if new.endswith(BROKEN) or not whole.startswith(known) else new


class TextStream:
    """Converts tokens to text as soon as a word is complete.

    Args:
        decode: a function that returns the text of ids.
        before: the tokens that precede the text.
        stop: the text ends before the first of these strings.

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
        """Add a token, and return the text that this token completes."""
        return self._release(self.spelling.add(token), final=False)

    def finish(self) -> str:
        """Return the rest of the text; call this method after the last `add`."""
        return self._release(self.spelling.finish(), final=True)

    def _release(self, new: str, *, final: bool) -> str:
        """Add `new` to the text; return the complete words, and keep the rest for later."""
        held = self._held + new
        stops = [at for at in map(held.find, self._stop) if at >= 0]
        if stops:
            held, self.stopped = held[: min(stops)], True
        size = len(held)
        if not final and not stops:
            last = _LAST_WORD.search(held)
            assert last is not None
            size = min(last.start(), *(_find_beginning(held, stop) for stop in self._stop), size)
            size = len(held[:size].rstrip())  # a space is returned with the next word
        self._held = held[size:]
        self.text += held[:size]
        return held[:size]


def _find_beginning(text: str, stop: str) -> int:
    """Return where an unfinished `stop` string at the end of `text` begins.

    For example, "EN" is an unfinished "END". Return `len(text)` if `text` does not end with an
    unfinished `stop` string.
    """
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return len(text) - size
    return len(text)


def decode_function(tokenizer: Tokenizer | None) -> Callable[[list[int]], str]:
    """Return a function that decodes ids; without a tokenizer, it joins the ids with spaces."""
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids))
    # a token table may have more rows than there are tokens
    return lambda ids: tokenizer.decode([i for i in ids if tokenizer.token(i) is not None])


def check_stop(stop: Any) -> tuple[str, ...]:
    """Return one or several stop strings as a tuple."""
    try:
        strings = (stop,) if isinstance(stop, str) else tuple(stop)
    except TypeError:
        raise type_error(f"`stop` is {stop!r:.40}; pass strings") from None
    for text in strings:
        if not check_text(text, name="a stop string"):
            raise value_error("`stop` contains an empty string: omit the empty string")
    return strings
