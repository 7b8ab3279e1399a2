"""What a head does to the guess at a gap: the guess is made again without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.arrays import Array
from qkv.attend import softmax
from qkv.models.model import handed_on
from qkv.models.tasks.predict import in_words, likeliest
from qkv.see.analysis.findings import STANDS_OUT
from qkv.trace import Trace

if TYPE_CHECKING:
    from qkv.models import Model

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
