"""Links: weights between words that are worth a sentence, and whether they stand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.head_weights import Heads

# Limits of the rule for a head, here and in assets/store/rule.js; docs/views.md gives the reasons.
STANDS_OUT = 0.1  # of a weight, or of the probability at a gap
OF_PLACES = 0.4  # a head with this average for a distance, or for a key, attends to a position


@dataclass(frozen=True)
class Link:
    """One weight, from the token at `query` to the token at `key`.

    Attributes:
        layer: the layer.
        head: the head.
        query: the position of the token that attends.
        key: the position of the token that is attended to.
        weight: the weight.
        usual: the averages of its distance and of its key, from `Heads.usual`.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    usual: tuple[float, float] = field(default=(0.0, 0.0), compare=False)

    @property
    def expected(self) -> float:
        """Return the weight that its distance and its key explain."""
        return max(2 * self.usual[0], self.usual[1])

    @property
    def of_places(self) -> bool:
        """Whether its head attends to that distance, or to that word, whatever the words are."""
        return max(self.usual) >= OF_PLACES

    @property
    def above(self) -> float:
        """Return its weight above the expected one; 0 for a head that attends to a position."""
        return 0.0 if self.of_places else max(0.0, self.weight - self.expected)

    @property
    def stands_out(self) -> bool:
        """Whether it is far enough above the expected weight to be a finding."""
        return self.above >= STANDS_OUT


def strongest_links(heads: Heads, layer: int, head: int, count: int | None = None) -> list[Link]:
    """List a head's largest weights between two different content words, largest first.

    Ties go to the earlier query, then the earlier key. Weights of 0 are no links.
    """
    # (L, S), or (L, k) if only the k largest are kept
    weights, keys = (part[head] for part in heads.links(layer))
    order = np.argsort(-weights, axis=None, kind="stable")[:count]
    places = zip(*np.unravel_index(order, weights.shape), strict=True)
    return [
        Link(layer, head, int(i), int(keys[i, j]), float(weights[i, j]))
        for i, j in places
        if weights[i, j] > 0
    ]


def attended(heads: Heads, layer: int, head: int, positions: Sequence[int]) -> Array:
    """Return the weights from a word in one head, `(T,)`, as the mean over its subwords."""
    return np.asarray(np.mean([heads.row(layer, head, place) for place in positions], axis=0))


def strongest_by_token(heads: Heads, rows: Sequence[int], count: int) -> list[Link]:
    """List the content words that a word attends to most, each in its strongest head.

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
