"""Where the words, places and edges of `hide` stand in each text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from qkv.models.run.edit import Hidden
from qkv.text import Tokenized
from qkv.text.tokenized import find_pieces, joined_words, plain_tokens


def hidden_words(
    words: Sequence[str],
    batch: Sequence[Tokenized],
    pieces: Callable[[str], list[list[str]]] | None,
    call: str,
    first: int = 0,
    absent: set[Any] | None = None,
) -> list[Hidden]:
    """Nobody looks at these words, wherever they stand.

    A word may be a special token such as "[SEP]", by its name. One that is in no text is an error,
    unless it may still be `absent`, from which those that are there are taken out. Errors count
    the texts from `first`.
    """
    if pieces is None:
        raise ValueError(
            f"{call}: hide has {words[0]!r} and the model has no tokenizer to know words by: "
            "give places, as hide=[3]"
        )
    hidden: list[set[int]] = [set() for _ in batch]
    for word in words:
        ways = pieces(word)
        seen = False
        for text, row in zip(batch, hidden, strict=True):
            tokens = plain_tokens(text.tokens, text.special)
            places = [i for cut in ways for found in find_pieces(tokens, cut) for i in found]
            marks = zip(text.tokens, text.special, strict=True)
            places += [i for i, (token, special) in enumerate(marks) if special and token == word]
            row.update(places)
            seen |= bool(places)
        if absent is not None:
            absent.difference_update([word] * seen)
        elif not seen:
            raise ValueError(
                f"{call}: hide has {word!r}, which is in no text: the words are {_listed(batch)}"
            )
    for number, (text, row) in enumerate(zip(batch, hidden, strict=True)):
        own = {i for i, special in enumerate(text.special) if not special}
        if own and own <= row:
            which = "the text" if len(batch) == 1 and not first else f"text {first + number}"
            raise ValueError(f"{call}: hide leaves {which} no word to look at: leave one in sight")
    return [
        Hidden(number, None, place, None, None)
        for number, row in enumerate(hidden)
        for place in sorted(row)
    ]


def hidden_places(
    asked: int | tuple[int, ...],
    lengths: Sequence[int],
    limits: Sequence[int],
    call: str,
    absent: set[Any] | None = None,
) -> list[Hidden]:
    """A place, or an edge between two, in each text that has them; -1 is its last.

    `lengths` are those of the texts, and `limits` with what may follow them; `absent` is as for
    `hidden_words`.
    """
    given: list[Any] = [None, asked] if isinstance(asked, int) else [*asked]
    query, key, layer, head = [*given, None, None][:4]
    least, most = -max(lengths, default=0), max(limits, default=0)
    outside = [place for place in (query, key) if place is not None and not least <= place < most]
    if outside and absent is None:
        raise ValueError(
            f"{call}: hide has place {outside[0]} and no text has more than {most} tokens: "
            f"give {least} to {most - 1}, or a word"
        )
    if absent is not None:
        absent.difference_update([] if outside else [asked])
    found = []
    for number, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
        if all(place is None or -length <= place < limit for place in (query, key)):
            at = None if query is None else query + length * (query < 0)
            seen = None if key is None else key + length * (key < 0)
            found.append(Hidden(number, at, seen, layer, head))
    return found


def from_start(number: int, count: int, given: str, what: str, whole: str, call: str) -> int:
    """The number of a layer or head, of which there are `count`, counted from 0."""
    if not -count <= number < count:
        raise ValueError(
            f"{call}: {given} has {what} {number} and {whole} has {count}, 0 to {count - 1}"
        )
    return number % count


def _listed(batch: Sequence[Tokenized], most: int = 20) -> str:
    """The words of texts, each once, pieces joined."""
    named = (joined_words(plain_tokens(one.tokens, one.special), one.special) for one in batch)
    words = list(dict.fromkeys(chain.from_iterable(named)))
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
