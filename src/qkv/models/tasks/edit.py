"""What a run does otherwise than the model would: heads left out, words that nobody looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from qkv.arrays import Array, is_whole_number
from qkv.text import Tokenized
from qkv.text.tokenized import find_pieces, joined_words, plain_tokens
from qkv.text.tokenizer import check_text


def edits(
    ablate: Iterable[tuple[int, int]],
    hide: str | Iterable[str],
    *,
    batch: Sequence[Tokenized],
    heads: Sequence[int],
    pieces: Callable[[str], list[list[str]]],
) -> tuple[dict[int, Array], dict[str, Sequence[Any]]]:
    """Which keys each head sees, `(B, Hq or 1, 1, T)`, by the layers that need it; what was asked.

    A head that is left out sees nothing: its context is 0, and so is all it would add.

    Args:
        ablate: the heads to leave out.
        hide: the words that nobody may look at.
        batch: the texts.
        heads: how many each layer has.
        pieces: the ways in which a word may be cut, none if the vocabulary does not have it.

    Returns:
        The masks, and "ablate", pairs of layer and head, and "hide", words, where there are any.

    Raises:
        TypeError: `ablate` holds something else than pairs, or a word is not a string.
        ValueError: there is no such layer, head or word, or a text is left with no word.
    """
    ablated = _ablated_heads(ablate, heads)
    words = [hide] if isinstance(hide, str) else list(hide)
    visible = _visible(words, batch, pieces)
    masks = dict.fromkeys(range(len(heads)), visible) if words else {}
    for layer, head in ablated:
        shape = (len(batch), heads[layer], *visible.shape[2:])
        masks[layer] = np.broadcast_to(masks.get(layer, visible), shape).copy()
        masks[layer][:, head] = False
    asked: dict[str, Sequence[Any]] = {"ablate": ablated, "hide": words}
    return masks, {name: value for name, value in asked.items() if value}


def _ablated_heads(pairs: Iterable[tuple[int, int]], heads: Sequence[int]) -> list[tuple[int, int]]:
    """The (layer, head) pairs in order, each once, counted from 0; negative ones from the end."""
    found = set()
    for pair in [pairs] if is_whole_number(pairs) else pairs:
        numbers = tuple(pair) if isinstance(pair, tuple | list) else ()
        if len(numbers) != 2 or not all(map(is_whole_number, numbers)):
            raise TypeError(f"trace: ablate has {pair!r}: write (layer, head) pairs, as [(0, 4)]")
        layer, head = (int(number) for number in numbers)
        layer = _from_start(layer, len(heads), "layer", "the model")
        found.add((layer, _from_start(head, heads[layer], "head", f"layer {layer}")))
    return sorted(found)


def _visible(
    words: Sequence[str], batch: Sequence[Tokenized], pieces: Callable[[str], list[list[str]]]
) -> Array:
    """Which tokens of each text may be looked at, `(B, 1, 1, T)`: not these words, wherever.

    A word may be a special token such as "[SEP]", by its name.
    """
    visible = np.ones((len(batch), 1, 1, max(map(len, batch))), bool)
    for word in words:
        ways = pieces(check_text(word, call="trace", name="a word of hide"))
        seen = False
        for text, row in zip(batch, visible, strict=True):
            tokens = plain_tokens(text.tokens, text.special)
            places = [i for cut in ways for found in find_pieces(tokens, cut) for i in found]
            marks = zip(text.tokens, text.special, strict=True)
            places += [i for i, (token, special) in enumerate(marks) if special and token == word]
            row[..., places] = False
            seen |= bool(places)
        if not seen:
            raise ValueError(
                f"trace: hide has {word!r}, which is in no text: the words are {_listed(batch)}"
            )
    for number, text in enumerate(batch):
        if not (visible[number, 0, 0, : len(text)] & ~np.array(text.special, bool)).any():
            which = "the text" if len(batch) == 1 else f"text {number}"
            raise ValueError(f"trace: hide leaves {which} no word to look at: leave one in sight")
    return visible


def _from_start(number: int, count: int, what: str, whole: str) -> int:
    """The number of a layer or head, of which there are `count`, counted from 0."""
    if not -count <= number < count:
        raise ValueError(
            f"trace: ablate has {what} {number} and {whole} has {count}, 0 to {count - 1}"
        )
    return number % count


def _listed(batch: Sequence[Tokenized], most: int = 20) -> str:
    """The words of texts, each once, pieces joined."""
    named = (joined_words(plain_tokens(one.tokens, one.special), one.special) for one in batch)
    words = list(dict.fromkeys(chain.from_iterable(named)))
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
