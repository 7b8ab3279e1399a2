"""What was given as `hide`: words, places and edges that are not looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from qkv.arrays import is_whole_number, shown
from qkv.models.tasks.edit import Hidden
from qkv.text import Tokenized
from qkv.text.tokenized import find_pieces, joined_words, plain_tokens

# Words, places, and edges: (query, key), (query, key, layer), (query, key, layer, head).
Hide = str | int | Iterable[str | int | tuple[int, ...]]

FOLLOWING = (None, None)  # in a list: each query masks the keys that follow it


def hide_asked(hide: Any, heads: Sequence[int], call: str) -> list[Any]:
    """The words, places and edges: strings, ints and tuples of ints."""
    many = isinstance(hide, Iterable) and not isinstance(hide, str | bytes | Mapping)
    found: list[Any] = []
    if isinstance(hide, tuple) and 2 <= len(hide) <= 4 and all(map(is_whole_number, hide)):
        raise TypeError(
            f"{call}: hide is {hide}, which may be places or one edge: write {[*hide]} for places, "
            f"{[hide]} for the edge"
        )
    for one in hide if many else [hide]:
        if isinstance(one, str) or one is FOLLOWING or is_whole_number(one):
            found.append(int(one) if is_whole_number(one) else one)
            continue
        numbers = tuple(one) if isinstance(one, tuple | list) else ()
        if not 2 <= len(numbers) <= 4 or not all(map(is_whole_number, numbers)):
            raise TypeError(
                f"{call}: hide has {shown(one)}: give words, places as whole numbers, and edges as "
                "(query, key), (query, key, layer) or (query, key, layer, head)"
            )
        edge = [int(number) for number in numbers]
        if len(edge) > 2:
            edge[2] = from_start(edge[2], len(heads), "hide", "layer", "the model", call)
        if len(edge) > 3:
            where = f"layer {edge[2]}"
            edge[3] = from_start(edge[3], heads[edge[2]], "hide", "head", where, call)
        found.append(tuple(edge))
    return found


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
    asked: int | tuple[int | None, ...],
    lengths: Sequence[int],
    limits: Sequence[int],
    call: str,
    absent: set[Any] | None = None,
) -> list[Hidden]:
    """A place, or an edge between two, or `FOLLOWING`, in each text that has them; -1 is its last.

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
