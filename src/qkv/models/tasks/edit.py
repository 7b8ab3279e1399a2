"""What a run does otherwise than the model would: heads left out, words that nobody looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from qkv.arrays import Array, is_whole_number, shown
from qkv.text import Tokenized
from qkv.text.tokenized import find_pieces, joined_words, plain_tokens

Ablate = Iterable[tuple[int, int | None]]  # heads, and layers whole
Hide = str | int | Iterable[str | int]  # words and places


@dataclass(frozen=True)
class Edits:
    """What a run does otherwise, once it is known to fit the model and its texts.

    Attributes:
        ablated: the heads to leave out, by their layer.
        visible: (B, T), which tokens are looked at; None where nothing is edited.
        asked: "ablate", pairs of layer and head, and "hide", words and places, where there are any.
    """

    ablated: Mapping[int, Sequence[int]] = field(default_factory=dict)
    visible: Array | None = None
    asked: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def edits(
    ablate: Ablate,
    hide: Hide,
    *,
    batch: Iterable[Tokenized],
    heads: Sequence[int],
    pieces: Callable[[str], list[list[str]]] | None,
    call: str,
) -> Edits:
    """What was asked for, checked.

    Args:
        ablate: the heads to leave out, None for all of a layer.
        hide: the words and places that nobody may look at.
        batch: the texts, which are read only if there is something to edit.
        heads: how many each layer has.
        pieces: the ways in which a word may be cut, none if the vocabulary does not have it; None
            where the model knows no words.
        call: who is named in an error.

    Raises:
        TypeError: `ablate` holds something else than pairs, or `hide` than words and places.
        ValueError: there is no such layer, head, word or place, or a text is left with no word.
    """
    pairs = _ablated_heads(ablate, heads, call)
    hidden = _hidden(hide, call)
    if not pairs and not hidden:
        return Edits()
    texts = list(batch)
    visible = np.ones((len(texts), max(map(len, texts), default=0)), bool)
    if words := [one for one in hidden if isinstance(one, str)]:
        if pieces is None:
            raise ValueError(
                f"{call}: hide has {words[0]!r} and the model has no tokenizer to know words by: "
                "give places, as hide=[3]"
            )
        _hide_words(visible, words, texts, pieces, call)
    _hide_places(visible, [one for one in hidden if isinstance(one, int)], texts, call)
    ablated: dict[int, list[int]] = {}
    for layer, head in pairs:
        ablated.setdefault(layer, []).append(head)
    asked: dict[str, Sequence[Any]] = {"ablate": pairs, "hide": hidden}
    return Edits(ablated, visible, {name: value for name, value in asked.items() if value})


def _ablated_heads(pairs: Any, heads: Sequence[int], call: str) -> list[tuple[int, int]]:
    """The (layer, head) pairs in order, each once, counted from 0; negative ones from the end."""
    found = set()
    many = isinstance(pairs, Iterable) and not isinstance(pairs, Mapping)
    for pair in pairs if many else [pairs]:
        numbers = tuple(pair) if isinstance(pair, tuple | list) else ()
        whole = len(numbers) == 2 and is_whole_number(numbers[0])
        if not whole or not (numbers[1] is None or is_whole_number(numbers[1])):
            raise TypeError(
                f"{call}: ablate has {shown(pair)}: write (layer, head) pairs, as [(0, 4)]"
            )
        layer = _from_start(int(numbers[0]), len(heads), "layer", "the model", call)
        if numbers[1] is None:
            found |= {(layer, head) for head in range(heads[layer])}
        else:
            head = _from_start(int(numbers[1]), heads[layer], "head", f"layer {layer}", call)
            found.add((layer, head))
    return sorted(found)


def _hidden(hide: Any, call: str) -> list[str | int]:
    """The words and places, each a string or an int."""
    many = isinstance(hide, Iterable) and not isinstance(hide, str | bytes | Mapping)
    found: list[str | int] = []
    for one in hide if many else [hide]:
        if not isinstance(one, str) and not is_whole_number(one):
            raise TypeError(
                f"{call}: hide has {shown(one)}: give words, and places as whole numbers"
            )
        found.append(one if isinstance(one, str) else int(one))
    return found


def _hide_words(
    visible: Array,
    words: Sequence[str],
    batch: Sequence[Tokenized],
    pieces: Callable[[str], list[list[str]]],
    call: str,
) -> None:
    """Nobody looks at these words, wherever they stand, of those that are `visible`, (B, T).

    A word may be a special token such as "[SEP]", by its name.
    """
    for word in words:
        ways = pieces(word)
        seen = False
        for text, row in zip(batch, visible, strict=True):
            tokens = plain_tokens(text.tokens, text.special)
            places = [i for cut in ways for found in find_pieces(tokens, cut) for i in found]
            marks = zip(text.tokens, text.special, strict=True)
            places += [i for i, (token, special) in enumerate(marks) if special and token == word]
            row[places] = False
            seen |= bool(places)
        if not seen:
            raise ValueError(
                f"{call}: hide has {word!r}, which is in no text: the words are {_listed(batch)}"
            )
    for number, text in enumerate(batch):
        own = ~np.array(text.special, bool)
        if own.any() and not (visible[number, : len(text)] & own).any():
            which = "the text" if len(batch) == 1 else f"text {number}"
            raise ValueError(f"{call}: hide leaves {which} no word to look at: leave one in sight")


def _hide_places(
    visible: Array, places: Sequence[int], batch: Sequence[Tokenized], call: str
) -> None:
    """Nobody looks at the tokens at these places of each text that has them; -1 is its last."""
    longest = visible.shape[1]
    for place in places:
        if not -longest <= place < longest:
            raise ValueError(
                f"{call}: hide has place {place} and no text has more than {longest} tokens: "
                f"give {-longest} to {longest - 1}, or a word"
            )
        for text, row in zip(batch, visible, strict=True):
            if -len(text) <= place < len(text):
                row[place % len(text)] = False


def _from_start(number: int, count: int, what: str, whole: str, call: str) -> int:
    """The number of a layer or head, of which there are `count`, counted from 0."""
    if not -count <= number < count:
        raise ValueError(
            f"{call}: ablate has {what} {number} and {whole} has {count}, 0 to {count - 1}"
        )
    return number % count


def _listed(batch: Sequence[Tokenized], most: int = 20) -> str:
    """The words of texts, each once, pieces joined."""
    named = (joined_words(plain_tokens(one.tokens, one.special), one.special) for one in batch)
    words = list(dict.fromkeys(chain.from_iterable(named)))
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
