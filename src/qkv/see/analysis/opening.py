"""What a page that computes opens on: a place, and a word that matters there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.arrays import Array
from qkv.attend import softmax
from qkv.edits import edits_of
from qkv.models.model import handed_on
from qkv.see.analysis.words import content, is_word, spans_of
from qkv.text import Tokenized
from qkv.text.tokenized import plain_tokens
from qkv.trace import Trace

if TYPE_CHECKING:
    from qkv.models import Model
    from qkv.models.tasks.predict import Guesses

COUNT = 5  # words that are shown


@dataclass(frozen=True)
class Opening:
    """A place of a text, what a model has there, and what becomes of it without a word.

    Attributes:
        place: of the token.
        before: the likeliest words there, with their probabilities.
        hidden: the places of the word whose hiding changes most; empty where there is no other.
        word: this word.
        after: the likeliest words when it is hidden; `before` where there is none.
    """

    place: int
    before: list[tuple[str, float]]
    hidden: list[int]
    word: str
    after: list[tuple[str, float]]


def opening_of(model: Model, trace: Trace) -> Opening:
    """The place of a text to begin with, and the word to hide.

    The place is the first mask token, else the last content word; in a decoder it is the last
    token, behind which the next word comes. The word is the content word
    without which the probabilities of all words at this place differ most (half the sum of what
    separates them), of those without which the likeliest word is another, if there are any.
    """
    special = list(trace.special)
    tokens = plain_tokens(trace.tokens, special)
    flags, _ = content(tokens, special)
    masks = [place for place, token in enumerate(tokens) if token == model.mask]
    words = [
        (list(range(first, end)), word)
        for first, end, word in spans_of(tokens, special)
        if flags[first] and first not in masks
    ]
    if model.generates:
        place = len(tokens) - 1
    else:
        place = masks[0] if masks else words[-1][0][0] if words else _first_word(tokens, special)
    as_it_is = _chances(model, trace, place)
    found = []
    for places, word in words:
        if place not in places:
            chances = _chances(model, trace, place, places)
            other = bool(chances.argmax() != as_it_is.argmax())
            found.append(((other, float(np.abs(chances - as_it_is).sum()) / 2), places, word))
    _, hidden, word = max(found, key=lambda one: one[0], default=(None, [], ""))
    before, after = (_guesses(model, trace, place, hide) for hide in ([], hidden))
    return Opening(place, before[0], hidden, word, after[0])


def _first_word(tokens: list[str], special: list[bool]) -> int:
    """The first token that is a word; without one, the first that is none of the tokenizer's."""
    return int(np.argmax(is_word(tokens, special))) or int(np.argmin(special))


def _chances(model: Model, trace: Trace, place: int, hide: list[int] | None = None) -> Array:
    """The probability of each word of the vocabulary at a place, in float64 (V)."""
    ids = np.asarray(trace.ids)
    [last] = handed_on(model, model.num_layers - 1)
    run = model.trace(ids, names=[last], hide=hide or ())
    logits = model.unembed(run[last][0, place])
    return softmax(logits.astype(np.float64))


def _guesses(model: Model, trace: Trace, place: int, hide: list[int]) -> Guesses:
    """The likeliest words at a place."""
    tokens = Tokenized(
        np.asarray(trace.ids), list(trace.tokens), list(trace.offsets), list(trace.special)
    )
    return model.guesses(tokens, [place], COUNT, edits_of(None, hide=hide, call="predict"))
