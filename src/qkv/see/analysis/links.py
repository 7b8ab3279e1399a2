"""x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.head_weights import Heads

# What a head has to do to stand out, here and in assets/store/rule.js; docs/views.md says why.
STANDS_OUT = 0.1  # of a weight, or of the probability at a gap


OF_PLACES = 0.4  # a head that gives as much to a distance, or to one word, looks at a place


@dataclass(frozen=True)
class Link:
    """One weight: what the token at `query` puts on the token at `key`.

    Attributes:
        layer: the layer.
        head: the head.
        query: the place of the token that looks.
        key: the place of the token that is looked at.
        weight: the weight.
        usual: what the head gives to that distance, and to that key, as `Heads.usual` has it.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    usual: tuple[float, float] = field(default=(0.0, 0.0), compare=False)

    @property
    def expected(self) -> float:
        """What position and the word looked at would have it at most."""
        at_distance, on_key = self.usual
        return max(2 * at_distance, on_key)

    @property
    def of_places(self) -> bool:
        """Whether its head looks at that distance, or at that word, whatever the words are."""
        return max(self.usual) >= OF_PLACES

    @property
    def above(self) -> float:
        """By how much it is more than is expected; 0 where that is no more, or its head's habit."""
        return 0.0 if self.of_places else max(0.0, self.weight - self.expected)

    @property
    def stands_out(self) -> bool:
        """Whether that is enough to be called a finding."""
        return self.above >= STANDS_OUT


def strongest_links(heads: Heads, layer: int, head: int, count: int | None = None) -> list[Link]:
    """The largest weights of one head between two different content words, largest first.

    Ties go to the earlier query, then the earlier key. Weights of 0 are no links.
    """
    weights, keys = (
        part[head] for part in heads.links(layer)
    )  # (L, S), or (L, k) where only those are kept
    order = np.argsort(-weights, axis=None, kind="stable")[:count]
    places = zip(*np.unravel_index(order, weights.shape), strict=True)
    return [
        Link(layer, head, int(i), int(keys[i, j]), float(weights[i, j]))
        for i, j in places
        if weights[i, j] > 0
    ]


def attended(heads: Heads, layer: int, head: int, positions: Sequence[int]) -> Array:
    """What a word attends to in one head, `(T,)` and summing to 1: the mean over its pieces."""
    return np.asarray(np.mean([heads.row(layer, head, place) for place in positions], axis=0))


def strongest_by_token(heads: Heads, rows: Sequence[int], count: int) -> list[Link]:
    """The content words that a word looks at most, each in the head where it does so most.

    The word itself is left out. Ties go to the lowest layer, then head.
    """
    best: dict[int, Link] = {}
    keys = heads.content_keys(rows[0])
    for layer in heads.layers:
        for head in range(heads.count):
            weights = attended(heads, layer, head, rows)
            for key in keys:
                if weights[key] > (best[key].weight if key in best else 0.0):
                    best[key] = Link(layer, head, rows[0], key, float(weights[key]))
    return sorted(best.values(), key=lambda link: -link.weight)[:count]
