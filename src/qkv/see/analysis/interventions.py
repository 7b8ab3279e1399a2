"""What a model predicts without a head, and without a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qkv.arrays import Array
from qkv.attend import softmax
from qkv.edits import edits_of
from qkv.models import Model
from qkv.models.model import handed_on
from qkv.models.tasks.predict import Guesses, in_words, likeliest
from qkv.see.analysis.links import STANDS_OUT
from qkv.see.analysis.words import content, is_word, spans_of
from qkv.text import Tokenized
from qkv.text.tokenized import plain_tokens
from qkv.trace import Trace

MOST_HEADS = 48  # are removed in turn, of the last layers; the same in assets/store/rule.js
MOST_TOKENS = 512


@dataclass(frozen=True)
class Removal:
    """What removing one head changes at the first gap of a text.

    Attributes:
        layer: the layer.
        head: the head.
        place: the gap: the token where a word is missing.
        moved: how much of the probability goes to other words: half the sum of the differences.
        word: the first guess of the model as it is.
        before: its probability.
        after: its probability without the head.
        layers: the layers whose heads were removed in turn.
    """

    layer: int
    head: int
    place: int
    moved: float
    word: str
    before: float
    after: float
    layers: tuple[int, ...]

    @property
    def stands_out(self) -> bool:
        """Whether that is enough to be called a finding."""
        return self.moved >= STANDS_OUT


def gap_of(model: Model | None, trace: Trace) -> int | None:
    """The first gap of a text, if this run is of a model as it is, and the model fills gaps."""
    mask = None if model is None or model.tokenizer is None else model.tokenizer.mask
    if model is None or mask not in trace.tokens or trace.changed or not trace.ids:
        return None
    fills = model.continues and not model.generates and model.network.predicts
    return trace.tokens.index(mask) if fills and len(trace.tokens) <= MOST_TOKENS else None


def removed_in_turn(model: Model) -> list[int]:
    """The layers whose heads are removed in turn: all, or the last, with 48 heads or in one."""
    return [*range(model.num_layers)][-max(1, MOST_HEADS // model.num_heads) :]


def removal_of(
    model: Model | None, trace: Trace, layer: int | None = None, head: int | None = None
) -> Removal | None:
    """The head without which the guess at the first gap changes most; None without a gap.

    Ties go to the lowest layer, then head.

    Args:
        model: the model.
        trace: of the text, with its ids; which activations it has does not matter.
        layer: this layer alone.
        head: this head of each layer alone.
    """
    place = gap_of(model, trace)
    if place is None or model is None:
        return None
    layers = removed_in_turn(model) if layer is None else [layer]
    logits, found = removals(model, trace, place, layers)
    kept = {at: each for at, each in found.items() if head in (None, at[1])}
    if not np.isfinite([moved for moved, _ in kept.values()]).all():
        return None
    best = max(kept, key=lambda at: kept[at][0])
    moved, after = kept[best]
    front = trace.tokens[max(0, place - 1) : place]
    [[(word, share)]] = in_words(likeliest(logits[None], 1), [front], model.tokenizer)
    return Removal(*best, place, moved, word, share, after, tuple(layers))


def moved_in_both(
    model: Model | None, traces: Sequence[Trace], places: Sequence[int]
) -> dict[tuple[int, int], float] | None:
    """Of each head how much its removal moves at a gap, on average; None unless all are gaps."""
    if model is None or [gap_of(model, trace) for trace in traces] != list(places):
        return None
    layers = removed_in_turn(model)
    runs = [removals(model, trace, at, layers)[1] for trace, at in zip(traces, places, strict=True)]
    found = {at: sum(run[at][0] for run in runs) / len(runs) for at in runs[0]}
    return found if np.isfinite([*found.values()]).all() else None


@np.errstate(invalid="ignore", over="ignore")
def removals(
    model: Model, trace: Trace, place: int, layers: Iterable[int]
) -> tuple[Array, dict[tuple[int, int], tuple[float, float]]]:
    """The logits at a place, and what each head's removal does there.

    The copies of a text that go without the heads of a layer run together, and nothing below that
    layer is computed again.

    Returns:
        Logits (V), and for each (layer, head) how much of the probability goes to other words, and
        what is left of that of the first guess.
    """
    layers = list(layers)
    last = handed_on(model, model.num_layers - 1)[0]
    names = [*(("resid_pre", layer) for layer in layers), last]
    run = model.trace(np.asarray(trace.ids), names=names)
    logits = model.unembed(run[last][0, place])
    before = softmax(logits.astype(np.float64))
    best = int(before.argmax())
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for layer in layers:
        heads = np.arange(model.layers[layer].attn.num_heads)

        def remove(z: Array, heads: Array = heads) -> Array:
            """Of each copy of the text another head."""
            z[heads, :, heads] = 0
            return z

        resid = np.tile(run["resid_pre", layer], (len(heads), 1, 1))  # (H, T, D)
        resid = model.run_layers(resid, layer, edit={("z", layer): remove})
        after = softmax(model.unembed(resid[:, place]).astype(np.float64))  # (H, V)
        moved = np.abs(after - before).sum(axis=-1) / 2
        found |= {
            (layer, head): (float(moved[head]), float(after[head, best]))
            for head in range(len(heads))
        }
    return logits, found


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
