"""Compute measures of heads, and find links: large weights between two words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.head_weights import Heads, Indices, Summary

# The thresholds of the rule by which views choose a head. The file assets/store/rule.js has the
# same thresholds, and docs/views.md explains them.
#
# STANDS_OUT: a view says that a head stands out if a weight exceeds the usual weight by this
# number, or if removing the head moves at least this much probability to other words.
# OF_POSITIONS: a head with an average weight of at least 0.4 on one position attends to positions
# rather than to words.
STANDS_OUT = 0.1
OF_POSITIONS = 0.4

# A function that computes one number per head from weights (H, L, S).
Measure = Callable[[Array], Array]


def measures_of(heads: Heads) -> dict[str, Array | None]:
    """Compute each measure for all heads, `(layers, heads)`; None if it cannot be computed.

    If only the largest weights of a text were kept, the only measures that can be computed are the
    weight on the first token and the weight on separators. To compute these two measures, the
    summed weight on each key is sufficient.
    """
    size, one_text = len(heads.queries.tokens), heads.other_keys is None
    separators = [key for key, special in enumerate(heads.keys.special) if special and key]
    names = ("entropy", "previous", "next", "first", "separators", "distance")
    measures: dict[str, Array | None] = dict.fromkeys(names)
    if not heads.weights:
        received = np.array([part.received for part in heads.summary])  # (layers, H, S)
        measures["first"] = received[..., 0] / size
        if separators:
            measures["separators"] = received[..., separators].sum(axis=-1) / size
        return measures
    ways: dict[str, Measure] = {"entropy": entropy, "first": lambda layer: on_keys(layer, [0])}
    if one_text and size > 1:
        ways["previous"] = lambda layer: on_offset(layer, -1)
        ways["next"] = lambda layer: on_offset(layer, 1)
    if one_text:
        ways["distance"] = distance
    if separators:
        ways["separators"] = lambda layer: on_keys(layer, separators)
    return measures | {
        name: np.array([way(layer) for layer in heads.weights]) for name, way in ways.items()
    }


def entropy(weights: Array) -> Array:
    """Compute the entropy of each head's weights, `(H,)` in bits: 1 bit for two equal weights.

    The entropy is the mean over queries of `-sum(w * log2(w))`; queries that do not attend to any
    key are left out.

    Source:
        Clark et al. 2019, "What Does BERT Look At?", section 3.3.

    >>> entropy(np.array([[[1.0, 0.0], [0.5, 0.5]]]))
    array([0.5])
    """
    exact = weights.astype(np.float64)
    logs = np.log2(exact, out=np.zeros_like(exact), where=exact > 0)
    return _means((-exact * logs).sum(axis=-1), exact)


def on_offset(weights: Array, offset: int) -> Array:
    """Compute the mean weight on the token at distance `offset`; -1 is the previous token.

    The result is `(H,)`. Queries without a token at this distance, and queries that attend to no
    key, are left out.

    Source:
        Clark et al. 2019, section 3.1.

    >>> on_offset(np.array([[[1.0, 0.0], [0.75, 0.25]]]), -1)
    array([0.75])
    """
    there = np.diagonal(weights, offset, axis1=1, axis2=2).astype(np.float64)  # (H, n)
    first = max(0, -offset)
    return _means(there, weights[:, first : first + there.shape[1]])


def on_keys(weights: Array, keys: Any) -> Array:
    """Sum each query's weights on these keys, and average the sums over the queries, `(H,)`.

    If `keys` contains only 0, the result is the weight on the first token. If `keys` contains the
    positions of all special tokens except token 0, the result is the weight on separators, such as
    [SEP].

    Source:
        Clark et al. 2019, section 3.2.

    >>> on_keys(np.array([[[1.0, 0.0], [0.75, 0.25]]]), [0])
    array([0.875])
    """
    parts = weights[..., np.asarray(keys)].astype(np.float64).sum(axis=-1)  # (H, L)
    return _means(parts, weights)


def on_cells(weights: Array, cells: Array) -> Array:
    """Sum each query's weights on the marked cells `(L, S)`, and average the sums, `(H,)`.

    Queries without a marked cell, and queries that do not attend to any key, are left out.

    >>> on_cells(np.array([[[1.0, 0.0], [0.75, 0.25]]]), np.array([[False, False], [True, False]]))
    array([0.75])
    """
    parts = np.where(cells, weights, 0).sum(axis=-1, dtype=np.float64)  # (H, L)
    return _means(parts, weights, np.asarray(cells.any(axis=-1)))


def after_copies(tokens: Sequence[str], special: Sequence[bool]) -> Array:
    """Find each token's induction targets: the tokens that follow its earlier occurrences.

    The result is `(L, L)` bool. In "a b c a", the target of the second "a" is "b". Special tokens
    have no targets. In "a a", the second "a" follows the first "a", but a token is never its own
    target.

    Source:
        Olsson et al. 2022, "In-context Learning and Induction Heads": the prefix matching score.

    >>> np.argwhere(after_copies(list("abca"), [False] * 4)).tolist()
    [[3, 1]]
    """
    cells = np.zeros((len(tokens), len(tokens)), dtype=bool)
    positions: dict[str, list[int]] = {}
    for i, (token, flag) in enumerate(zip(tokens, special, strict=True)):
        if not flag:
            cells[i, [p + 1 for p in positions.get(token, ()) if p + 1 < i]] = True
            positions.setdefault(token, []).append(i)
    return cells


def distance(weights: Array) -> Array:
    """Compute the mean distance of attention, `(H,)` in tokens.

    The distance is the mean over queries of `sum(w * |i - j|)`.

    Source:
        Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language
        Model", section 4.2.

    >>> distance(np.array([[[1.0, 0.0], [0.75, 0.25]]]))
    array([0.375])
    """
    rows, columns = np.arange(weights.shape[1]), np.arange(weights.shape[2])
    far = np.abs(rows[:, None] - columns).astype(np.float64)
    return _means(np.array([np.einsum("ij,ij->i", head, far) for head in weights]), weights)


def summarize(weights: Array, top_k: int) -> Summary:
    """Reduce weights `(H, L, S)` to each query's largest weights and each key's summed weight.

    If weights are equal, the earlier key comes first.

    >>> part = summarize(np.array([[[0.2, 0.5, 0.3], [0.5, 0.0, 0.5]]]), 2)
    >>> part.indices.tolist(), part.weights.tolist(), part.received.tolist()
    ([[[1, 2], [0, 2]]], [[[0.5, 0.3], [0.5, 0.5]]], [[0.7, 0.5, 0.8]])
    """
    count = min(top_k, weights.shape[2])
    indices = np.empty((*weights.shape[:2], count), np.int64)
    # sort one head at a time: the indices of all heads would need as much memory as the weights
    for index, head in enumerate(weights):
        indices[index] = np.argsort(-np.nan_to_num(head), axis=-1, kind="stable")[:, :count]
    largest = np.take_along_axis(weights, indices, axis=-1)
    received = np.asarray(np.nansum(weights, axis=1, dtype=np.float64))
    return Summary(np.where(largest > 0, indices, -1), largest, received)


def _means(parts: Array, weights: Array, there: Array | bool = True) -> Array:
    """Return the mean of each head's numbers: `parts` is `(H, L)`, the result is `(H,)`.

    The mean is over the queries that attend to at least one key and are True in `there`. The mean
    of a head without such queries is 0.
    """
    sees = (weights.sum(axis=-1) > 0) & there
    return np.array(
        [row[flags].mean() if flags.any() else 0.0 for row, flags in zip(parts, sees, strict=True)]
    )


def strongest(score: Array, count: int) -> list[int]:
    """Return the indices of the `count` largest numbers; the indices are sorted.

    If numbers are equal, the first is chosen.

    >>> strongest(np.array([0.1, 0.5, 0.3, 0.5]), 2)
    [1, 3]
    """
    return sorted(np.argsort(-np.nan_to_num(score), kind="stable")[:count].tolist())


def strongest_block(score: Array, most_rows: int, most_columns: int) -> tuple[list[int], list[int]]:
    """Return the sorted indices of the rows and of the columns that contain the largest numbers.

    >>> strongest_block(np.array([[1, 9, 0], [0, 0, 2], [8, 0, 0]]), 2, 2)
    ([0, 2], [0, 1])
    """
    n, m = score.shape
    rows = set(range(n)) if n <= most_rows else set()
    columns = set(range(m)) if m <= most_columns else set()
    for index in np.argsort(-np.nan_to_num(score), axis=None, kind="stable").tolist():
        if len(rows) >= min(n, most_rows) and len(columns) >= min(m, most_columns):
            break
        i, j = divmod(index, m)
        fits = (i in rows or len(rows) < most_rows), (j in columns or len(columns) < most_columns)
        if all(fits):
            rows.add(i)
            columns.add(j)
    return sorted(rows), sorted(columns)


@dataclass(frozen=True)
class Link:
    """One weight, from the token at `query` to the token at `key`.

    Attributes:
        layer: the layer.
        head: the head.
        query: the position of the token that attends.
        key: the position of the token that is attended to.
        weight: the weight.
        usual: the two average weights with which the weight is compared, from `Heads.usual`.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    usual: tuple[float, float] = field(default=(0.0, 0.0), compare=False)

    @property
    def of_positions(self) -> bool:
        """Return whether the head attends to positions rather than words.

        A head counts as attending to positions if one of the two averages in `usual` is at least
        `OF_POSITIONS` (0.4).
        """
        return max(self.usual) >= OF_POSITIONS

    @property
    def above(self) -> float:
        """The weight minus the usual weight, at least 0; always 0 if `of_positions` is true."""
        expected = max(2 * self.usual[0], self.usual[1])
        return 0.0 if self.of_positions else max(0.0, self.weight - expected)

    @property
    def stands_out(self) -> bool:
        """Return whether the weight exceeds the usual weight by at least `STANDS_OUT`."""
        return self.above >= STANDS_OUT


def strongest_links(
    heads: Heads, layer: int, head: int, count: int | None = None, queries: Indices = None
) -> list[Link]:
    """List a head's largest weights between two different content words, largest first.

    `queries` are the positions of the queries, by default of all content words. If weights are
    equal, the earlier query comes first; for the same query, the earlier key comes first. Weights
    of 0 are left out.
    """
    # both arrays are (L, S), or (L, k) if only the k largest weights are kept
    weights, keys = (part[head] for part in heads.links(layer, queries))
    order = np.argsort(-weights, axis=None, kind="stable")[:count]
    cells = zip(*np.unravel_index(order, weights.shape), strict=True)
    return [
        Link(layer, head, int(i), int(keys[i, j]), float(weights[i, j]))
        for i, j in cells
        if weights[i, j] > 0
    ]


def weights_from(heads: Heads, layer: int, head: int, positions: Sequence[int]) -> Array:
    """Return the weights from a word in one head, `(T,)`, averaged over the word's subwords."""
    return np.asarray(np.mean([heads.row(layer, head, position) for position in positions], axis=0))


def strongest_by_token(heads: Heads, rows: Sequence[int], count: int) -> list[Link]:
    """List a word's largest links over all heads, at most one link to each content word.

    Links to the word itself are left out. Ties go to the lowest layer, then the lowest head.
    """
    best: dict[int, Link] = {}
    keys = heads.content_keys(rows[0])
    for layer in heads.layers:
        for head in range(heads.count):
            weights = weights_from(heads, layer, head, rows)
            for key in keys:
                if weights[key] > (best[key].weight if key in best else 0.0):
                    best[key] = Link(layer, head, rows[0], key, float(weights[key]))
    return sorted(best.values(), key=lambda link: -link.weight)[:count]
