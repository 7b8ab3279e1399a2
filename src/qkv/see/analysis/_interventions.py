"""The effect of removing a head, or hiding a word, on a model's guess."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qkv.arrays import Array
from qkv.attend import softmax
from qkv.edits import edits_of
from qkv.models import Model
from qkv.models.model import handed_on
from qkv.models.tasks.predict import Guesses, in_words, likeliest
from qkv.see.analysis._words import content, is_word, spans_of
from qkv.see.analysis.head_weights import Index
from qkv.see.analysis.measures import STANDS_OUT
from qkv.text import Tokenized
from qkv.text.tokenized import plain_tokens
from qkv.trace import Trace

MOST_HEADS = 48  # the maximum number of heads to try; assets/store/rule.js uses the same maximum
MOST_TOKENS = 512

# `Effects` maps each (layer, head) to two numbers: the probability that moves to
# other words when the head is removed, and the new probability of the original first guess.
Effects = dict[tuple[int, int], tuple[float, float]]


@dataclass(frozen=True)
class Removal:
    """The effect of one head's removal on the guess at a text's first gap.

    Attributes:
        layer: the layer.
        head: the head.
        position: the position of the gap, the token where a word is missing.
        moved: the probability that moves to other words. It is half the sum of the absolute changes
            of all words' probabilities.
        word: the first guess of the unchanged model.
        before: the probability of `word` with all heads.
        after: the probability of `word` without the head.
        layers: the layers whose heads were tried.
    """

    layer: int
    head: int
    position: int
    moved: float
    word: str
    before: float
    after: float
    layers: tuple[int, ...]

    @property
    def stands_out(self) -> bool:
        """Return whether the effect is large enough to be mentioned in a view."""
        return self.moved >= STANDS_OUT


def gap_of(model: Model | None, trace: Trace) -> int | None:
    """Return the position of the first mask token; None if no word can be guessed there."""
    mask = None if model is None else model.mask
    if mask not in trace.tokens or trace.changed or not trace.ids:
        return None
    return trace.tokens.index(mask) if len(trace.tokens) <= MOST_TOKENS else None


def removed_in_turn(model: Model) -> list[int]:
    """List the layers whose heads are tried: the last layers, with up to 48 heads in total."""
    return [*range(model.num_layers)][-max(1, MOST_HEADS // model.num_heads) :]


def removal_of(
    model: Model | None, trace: Trace, layer: Index = None, head: Index = None
) -> Removal | None:
    """Find the head whose removal changes the guess most; return None for a text without a gap.

    Only the guess at the first gap is considered. Ties go to the lowest layer, then the lowest
    head.

    Args:
        model: the model.
        trace: the trace of the text, with token ids; its activations are not used.
        layer: the only layer to consider, if given.
        head: the only head of each layer to consider, if given.
    """
    position = gap_of(model, trace)
    if position is None or model is None:
        return None
    layers = removed_in_turn(model) if layer is None else [layer]
    logits, effects = removals(model, trace, position, layers)
    choices = {at: effect for at, effect in effects.items() if head in (None, at[1])}
    if not np.isfinite([moved for moved, _ in choices.values()]).all():
        return None
    best = max(choices, key=lambda at: choices[at][0])
    moved, after = choices[best]
    front = trace.tokens[max(0, position - 1) : position]
    [[(word, share)]] = in_words(likeliest(logits[None], 1), [front], model.tokenizer)
    return Removal(*best, position, moved, word, share, after, tuple(layers))


@np.errstate(invalid="ignore", over="ignore")
def removals(
    model: Model, trace: Trace, position: int, layers: Iterable[int]
) -> tuple[Array, Effects]:
    """Compute the logits at a position, and the effect of removing each head on the guess there.

    One batch removes all heads of a layer: it contains a copy of the text for each head, and each
    copy is computed without its head. The layers below are not computed again.

    Returns:
        The logits (V), and for each (layer, head) two probabilities: the probability that moves to
            other words, and the new probability of the first guess.
    """
    layers = list(layers)
    last = handed_on(model, model.num_layers - 1)[0]
    names = [*(("resid_pre", layer) for layer in layers), last]
    run = model.trace(np.asarray(trace.ids), names=names)
    logits = model.unembed(run[last][0, position])
    before = softmax(logits.astype(np.float64))
    best = int(before.argmax())
    effects: Effects = {}
    for layer in layers:
        heads = np.arange(model.layers[layer].attn.num_heads)

        def remove(z: Array, heads: Array = heads) -> Array:
            """Remove a different head from each copy of the text."""
            z[heads, :, heads] = 0
            return z

        resid = np.tile(run["resid_pre", layer], (len(heads), 1, 1))  # (H, T, D)
        resid = model.run_layers(resid, layer, edit={("z", layer): remove})
        after = softmax(model.unembed(resid[:, position]).astype(np.float64))  # (H, V)
        moved = np.abs(after - before).sum(axis=-1) / 2
        effects |= {
            (layer, head): (float(moved[head]), float(after[head, best]))
            for head in range(len(heads))
        }
    return logits, effects


COUNT = 5  # the number of words to show


@dataclass(frozen=True)
class Opening:
    """A position in a text, and a model's guesses there before and after a word is hidden.

    Attributes:
        position: the position of the token.
        before: the likeliest words at the position, with their probabilities.
        hidden: the positions of the hidden word's tokens; empty if the text has no word to hide.
            `opening_of` says how the hidden word is chosen.
        word: the hidden word.
        after: the likeliest words with `word` hidden; equal to `before` if no word is hidden.
    """

    position: int
    before: list[tuple[str, float]]
    hidden: list[int]
    word: str
    after: list[tuple[str, float]]


def opening_of(model: Model, trace: Trace) -> Opening:
    """Choose the position and the hidden word that a page shows when it opens.

    For an encoder, the position is the first mask token. If the text has no mask token, the
    position is the last content word. For a decoder, the position is the last token, and the guess
    is the next word. The hidden word is a content word. If hiding a word changes the likeliest
    guess, the function prefers such a word. If there are several such words, or none, the function
    chooses the word that changes the probabilities most when it is hidden. The change is half the
    sum of the absolute changes of all probabilities.
    """
    special = list(trace.special)
    tokens = plain_tokens(trace.tokens, special)
    flags, _ = content(tokens, special)
    masks = [position for position, token in enumerate(tokens) if token == model.mask]
    words = [
        (list(range(first, end)), word)
        for first, end, word in spans_of(tokens, special)
        if flags[first] and first not in masks
    ]
    if model.generates:
        position = len(tokens) - 1
    else:
        first = int(np.argmax(is_word(tokens, special))) or int(np.argmin(special))
        position = masks[0] if masks else words[-1][0][0] if words else first
    unchanged = _probabilities(model, trace, position)
    effects = []
    for positions, word in words:
        if position not in positions:
            changed = _probabilities(model, trace, position, positions)
            other = bool(changed.argmax() != unchanged.argmax())
            effects.append(((other, float(np.abs(changed - unchanged).sum()) / 2), positions, word))
    _, hidden, word = max(effects, key=lambda effect: effect[0], default=(None, [], ""))
    before, after = (_guesses(model, trace, position, hide) for hide in ([], hidden))
    return Opening(position, before[0], hidden, word, after[0])


def _probabilities(model: Model, trace: Trace, position: int, hide: Sequence[int] = ()) -> Array:
    """Compute the probability of each word of the vocabulary at a position, `(V,)` float64."""
    [last] = handed_on(model, model.num_layers - 1)
    run = model.trace(np.asarray(trace.ids), names=[last], hide=hide)
    return softmax(model.unembed(run[last][0, position]).astype(np.float64))


def _guesses(model: Model, trace: Trace, position: int, hide: list[int]) -> Guesses:
    """Return the likeliest words at a position."""
    tokens = Tokenized(
        np.asarray(trace.ids), list(trace.tokens), list(trace.offsets), list(trace.special)
    )
    return model.guesses(tokens, [position], COUNT, edits_of(None, hide=hide))
