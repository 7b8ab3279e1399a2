"""The attention weights of each head over one text, between tokens or between words."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array, Arrays
from qkv.see.analysis._words import Span, content, is_word, labels_of, name_of, spans_of
from qkv.text.tokenized import plain_tokens
from qkv.trace import Seq2SeqTrace, Trace

LONG = 512  # A view of at least this many tokens shows only the largest weights of each query.
_MAX_WEIGHT = 1e30  # Weights above this number are replaced by NaN.

Index = int | None  # The index of a layer or a head. None means that the view chooses.
Indices = Sequence[int] | None  # The indices of layers, queries or keys; None means all indices.


class Summary(NamedTuple):
    """The largest weights of one layer, which are kept for a long text instead of all weights.

    Attributes:
        indices: `(H, L, k)`, the keys with the largest weights for each query; unused entries are
            -1.
        weights: `(H, L, k)`, the weights on these keys, largest first.
        received: `(H, S)`, the weight on each key, summed over all queries.
    """

    indices: Array
    weights: Array
    received: Array


@dataclass(frozen=True, eq=False)
class Axis:
    """The tokens or words along one axis of the weights: the queries, or the keys.

    Attributes:
        tokens: the tokens or words on this axis (L queries, or S keys).
        special: for each token, whether it is a special token, such as [CLS] or [SEP].
        labels: the names that a reader sees; by default the tokens themselves.
        spans: the range of tokens of each word, if the axis consists of words.
    """

    tokens: list[str]
    special: list[bool]
    labels: list[str] | None = None
    spans: list[Span] | None = None

    @cached_property
    def names(self) -> list[str]:
        """Return the names that pictures show for these tokens or words."""
        return labels_of(self.labels or self.tokens)

    def name_of(self, row: int, article: str = "the") -> str:
        """Return the name of a token or word for use in a sentence."""
        return name_of((self.labels or self.tokens)[row], article)

    @cached_property
    def content(self) -> tuple[Array, Array]:
        """Return the result of `qkv.see.analysis._words.content` for the tokens of this axis."""
        return content(self.tokens, self.special)

    @cached_property
    def is_word(self) -> Array:
        """Return a bool array: False for special tokens and punctuation, True otherwise."""
        return is_word(self.tokens, self.special)

    def position(self, row: int) -> int:
        """Return the text position of the word at index `row`: the position of its first token."""
        return row if self.spans is None else self.spans[row][0]

    def rows_of(self, positions: Iterable[int]) -> list[int]:
        """Return the indices of the words (or tokens) that contain these positions of the text."""
        if self.spans is None:
            return list(positions)
        firsts = [first for first, _, _ in self.spans]
        return sorted({bisect_right(firsts, position) - 1 for position in positions})


@dataclass(frozen=True, eq=False)
class Heads:
    """The attention weights of all heads over one text.

    Attributes:
        queries: the L queries.
        layers: the indices of the layers.
        weights: `(H, L, S)` for each layer; an empty list if only summaries were kept.
        summary: the summary of each layer; an empty list if all weights were kept.
        other_keys: the S keys, if they differ from the queries.
        scores: scaled scores `(H, L, S)` for each layer, -inf where masked. They are always scores
            between tokens, even if `weights` are between words.
        scale: for each layer, the factor by which raw scores are multiplied, if it is known.
        norms: `(H, S)` for each layer, the length of `v_j W_O` for each key j, as `value_norms`
            computes it; an empty list if the parameters are unknown.
        name: a name that distinguishes this text from the others in a view.
        text: the original text, if it is known.
        split: the position at which the second of two sentences begins.
        num_layers: the number of layers of the model; 0 if it is unknown.
        untrained: whether the parameters that compute queries and keys are random.
    """

    queries: Axis
    layers: list[int]
    weights: list[Array] = field(default_factory=list)
    summary: list[Summary] = field(default_factory=list)
    other_keys: Axis | None = None
    scores: Mapping[int, Array] = field(default_factory=dict)
    scale: Mapping[int, float] = field(default_factory=dict)
    norms: list[Array] = field(default_factory=list)
    name: str = ""
    text: str = ""
    split: int | None = None
    num_layers: int = 0
    untrained: bool = False

    def from_start(self, number: int, *, of: Literal["layer", "head"]) -> int:
        """Convert a layer or head index that counts from the end to an index from 0.

        >>> heads = Heads(Axis(["a", "."], [False, False]), [0, 1], num_layers=6)
        >>> heads.from_start(-1, of="layer"), heads.from_start(0, of="layer")
        (5, 0)
        """
        if number >= 0:
            return number
        every = max(self.num_layers, 1 + max(self.layers)) if of == "layer" else self.count
        return number + every if number >= -every else number

    @property
    def keys(self) -> Axis:
        """Return the axis of the keys, which is `queries` if no other keys are given."""
        return self.queries if self.other_keys is None else self.other_keys

    @property
    def count(self) -> int:
        """Return H, the number of heads in a layer."""
        return len(self.weights[0] if self.weights else self.summary[0].received)

    @property
    def cells(self) -> int:
        """Count the weights of all layers, including weights that were not kept."""
        return len(self.layers) * self.count * len(self.queries.tokens) * len(self.keys.tokens)

    def content_keys(self, query: int) -> list[int]:
        """List the positions of all content words, except occurrences of the query's own word."""
        flags, numbers = self.keys.content
        if self.other_keys is None:
            flags = flags & (numbers != numbers[query])
        return [int(key) for key in np.flatnonzero(flags)]

    def between_content(self, weights: Array, queries: Indices = None) -> Array:
        """Keep weights `(..., L, S)` between two different content words; set all others to -1.

        If `queries` are given, these positions replace the content words among the queries.

        >>> heads = Heads(Axis(["a", "."], [False, False]), [0])
        >>> heads.between_content(np.full((2, 2), 0.5)).tolist()
        [[-1.0, -1.0], [-1.0, -1.0]]
        """
        pairs = self._pair_content(self._every_key, queries)
        return np.where(pairs & ~np.isnan(weights), weights, -1.0)

    def links(
        self, layer: int, queries: Indices = None, keys: Indices = None
    ) -> tuple[Array, Array]:
        """Return a layer's weights between different content words, and the positions of the keys.

        Args:
            layer: the layer.
            queries: the positions of the queries; by default all content words.
            keys: the positions of the keys; by default all content words.

        Returns:
            `(weights, keys)`, both `(H, L, S)`, or `(H, L, k)` if only the k largest are kept. If a
            pair is not two different content words, its weight is -1.
        """
        index = self.layers.index(layer)
        if self.weights:
            weights, at = self.weights[index], self._every_key
        else:
            at, weights, _ = self.summary[index]
        pairs = self._pair_content(at, queries, keys) & ~np.isnan(weights)
        return np.where(pairs, weights, -1.0), np.broadcast_to(at, weights.shape)

    def best_links(
        self, layer: int, queries: Indices = None, keys: Indices = None
    ) -> tuple[Array, Array, Array]:
        """Return each head's largest link as `(weights, queries, keys)`, each `(H,)`."""
        weights, at = self.links(layer, queries, keys)
        heads = np.arange(self.count)
        best = weights.reshape(self.count, -1).argmax(axis=1)
        row, column = np.divmod(best, weights.shape[2])
        return weights[heads, row, column], row, at[heads, row, column]

    def usual(self, layer: int, head: int, query: int, key: int) -> tuple[float, float]:
        """Return two average weights, to compare with the weight from `query` to `key`.

        Returns:
            `(at_distance, on_key)`: `at_distance` is the mean weight over all pairs of words that
                are as far apart as `query` and `key`, in the same direction. If queries and keys
                come from two different sequences, `at_distance` is 0. `on_key` is the mean weight
                on `key` from the other words that may attend to `key`.
        """
        positions = np.arange(len(self.queries.tokens))
        column = np.nan_to_num(self.at(layer, head, positions, np.full(len(positions), key)))
        words = self.queries.is_word
        others = words & (positions != query)
        if self.other_keys is not None:
            return 0.0, _mean(column[others])
        others &= positions != key
        others &= (positions > key) | bool(column[:key].any())
        ahead = positions + key - query
        pairs = words & (ahead >= 0) & (ahead < len(positions))
        pairs[pairs] = words[ahead[pairs]]
        along = self.at(layer, head, positions[pairs], ahead[pairs])
        return _mean(np.nan_to_num(along)), _mean(column[others])

    def at(self, layer: int, head: int, queries: Any, keys: Array) -> Array:
        """Return one head's weights from queries to keys; weights that were not kept count as 0."""
        index = self.layers.index(layer)
        if self.weights:
            return np.asarray(self.weights[index][head][queries, keys])
        indices, weights, _ = (part[head] for part in self.summary[index])
        same = indices[queries] == keys[..., None]
        return np.asarray(np.where(same, weights[queries], 0.0).sum(axis=-1, dtype=np.float64))

    def row(self, layer: int, head: int, query: int) -> Array:
        """Return the weights of one query on all keys, `(S,)`; weights not kept count as 0."""
        return self.at(layer, head, query, self._every_key)

    def weights_of(self, layer: int, head: int) -> Array:
        """Return a head's kept weights: `(L, S)`, or `(L, k)` if only the k largest are kept."""
        index = self.layers.index(layer)
        weights = self.weights[index] if self.weights else self.summary[index].weights
        return np.asarray(weights[head])

    def excerpt(self, layer: int, head: int, most: int) -> tuple[list[int], list[int], Array]:
        """Return the part of a head's weights that has the largest kept links.

        The part has at most `most` queries and at most `most` keys.

        Returns:
            `(queries, keys, weights)`: weights that were not kept are NaN.
        """
        links, keys = (part[head] for part in self.links(layer))
        rows, columns = _corner(links, keys, most)
        at = keys[rows, :, None] == columns  # (rows, k, columns)
        values = np.where(at, self.weights_of(layer, head)[rows, :, None], 0.0).sum(axis=1)
        return rows, columns, np.where(at.any(axis=1), values, np.nan)

    def hidden(self, layer: int, head: int) -> Array | None:
        """Return which cells of a head are masked, `(L, S)` bool; None if the scores are not known.

        The cell of a pair of words is masked if all pairs of their tokens are masked.
        """
        if layer not in self.scores:
            return None
        hidden = np.isneginf(self.scores[layer][head])
        for axis, spans in enumerate((self.queries.spans, self.keys.spans)):
            if spans is not None:
                firsts = [first for first, _, _ in spans]
                hidden = np.logical_and.reduceat(hidden, firsts, axis=axis)
        return np.asarray(hidden)

    @property
    def _every_key(self) -> Array:
        return np.arange(len(self.keys.tokens))

    def _pair_content(self, at: Array, queries: Indices = None, keys: Indices = None) -> Array:
        """Return a bool array: True where a query and a key are two different content words.

        `at` holds the positions of keys, `(S,)` or `(..., L, k)`. If `queries` or `keys` is given,
        its positions are used instead of the content words.
        """
        (flags, numbers), (key_flags, key_numbers) = self.queries.content, self.keys.content
        if queries is not None:
            flags = np.isin(np.arange(len(flags)), queries)
        if keys is not None:
            key_flags = np.isin(np.arange(len(key_flags)), keys)
        pairs = flags[:, None] & key_flags[at] & (at >= 0)
        if self.other_keys is None and (queries is None or keys is None):
            pairs &= numbers[:, None] != key_numbers[at]
        return np.asarray(pairs)


Kept = tuple[list[int], list[Array], list[Summary]]


def kept_in(trace: Trace | Seq2SeqTrace, layers: Iterable[int], prefix: str = "") -> Kept:
    """Return the traced layers and their weights or, if no weights were traced, their summaries.

    The result is `(layers, weights, [])` or `(layers, [], summaries)`. The arrays' names begin with
    `prefix`, which is "cross_attn." for attention between two texts.
    """
    layers = list(layers)
    whole = [layer for layer in layers if (f"{prefix}pattern", layer) in trace]
    if whole:
        return whole, [summable(trace[f"{prefix}pattern", layer][0]) for layer in whole], []
    parts = [f"{prefix}{part}" for part in ("top_indices", "top_weights", "received")]
    short = [layer for layer in layers if (parts[1], layer) in trace]
    arrays = ([trace[part, layer][0] for part in parts] for layer in short)
    return short, [], [Summary(at, summable(top), summable(all_)) for at, top, all_ in arrays]


def summable(weights: Array) -> Array:
    """Set to NaN all weights that are infinite or too large to be summed.

    >>> summable(np.array([0.5, np.inf, -1e300]))
    array([0.5, nan, nan])
    """
    if float(np.abs(weights).max(initial=0.0)) <= _MAX_WEIGHT:
        return weights
    fine = np.abs(weights.astype(np.float64)) <= _MAX_WEIGHT
    return np.where(fine, weights, np.nan).astype(weights.dtype)


def heads_of(trace: Trace, *, parameters: Arrays | None = None, name: str = "") -> Heads:
    """Read the heads from a trace of one text.

    Args:
        trace: a trace of one text, with weights or with the summaries of `top_k`.
        parameters: the model's parameters, which `value_norms` needs.
        name: a name that distinguishes the text from the others in a view.
    """
    layers, weights, summary = kept_in(trace, range(trace.num_layers))
    scored = [layer for layer in layers if weights and ("attn_scores", layer) in trace]
    scales = {layer: _scale(trace, layer) for layer in scored}
    return Heads(
        Axis(list(trace.tokens), list(trace.special), plain_tokens(trace.tokens, trace.special)),
        layers,
        weights,
        summary,
        scores={layer: trace["attn_scores", layer][0] for layer in scored},
        scale={layer: scale for layer, scale in scales.items() if scale is not None},
        norms=_norms(trace, layers, parameters or {}),
        name=name,
        text=trace.text,
        num_layers=trace.num_layers,
        untrained=trace.untrained,
    )


def _corner(links: Array, keys: Array, most: int) -> tuple[list[int], list[int]]:
    """Return the sorted queries and the sorted keys of the largest links, up to `most` of each."""
    rows: set[int] = set()
    columns: set[int] = set()
    for index in np.argsort(-links, axis=None, kind="stable")[: 20 * most].tolist():
        row, column = divmod(index, links.shape[1])
        key = int(keys[row, column])
        if key < 0 or len(rows | {row}) > most or len(columns | {key}) > most:
            continue
        rows.add(row)
        columns.add(key)
    return sorted(rows), sorted(columns)


def _scale(trace: Trace, layer: int) -> float | None:
    """Return the scale of the raw scores; None if a bias or softcap also changes the scores."""
    if not all((name, layer) in trace for name in "qkv"):
        return None
    settings = trace.attention_inputs(layer)
    if any(settings.get(name) is not None for name in ("softcap", "bias", "alibi_slopes")):
        return None
    mask = settings.get("attn_mask")
    # A float mask is added to the scaled scores. The sum is not a multiple of the raw scores.
    if mask is not None and np.asarray(mask).dtype != bool:
        return None
    scale = settings.get("scale")
    return 1 / math.sqrt(trace["q", layer].shape[-1]) if scale is None else float(scale)


def value_norms(v: Array, out_proj: Array) -> Array:
    """Compute the length of `v_j W_O` for each query head and each key j, `(Hq, S)`.

    A key adds its weight times `v_j W_O` to the output of attention.

    Args:
        v: the values `(S, Hkv, dv)`, including their bias.
        out_proj: `(Hq * dv, D)`; rows `h * dv` to `(h + 1) * dv` belong to head h.

    Source:
        Kobayashi et al. 2020, "Attention is Not Only a Weight", section 2.2; the paper writes f(x)
        for `v_j W_O`.

    >>> value_norms(np.array([[[3.0, 4.0]], [[0.0, 1.0]]]), np.eye(2))
    array([[5., 1.]])
    """
    size = v.shape[2]
    parts = out_proj.astype(np.float64).reshape(-1, size, out_proj.shape[1])  # (Hq, dv, D)
    shared = len(parts) // v.shape[1]
    values = np.repeat(v.astype(np.float64), shared, axis=1)  # (S, Hq, dv)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.linalg.norm(np.einsum("shd,hde->hse", values, parts), axis=-1))


def _norms(trace: Trace, layers: list[int], parameters: Arrays) -> list[Array]:
    norms = []
    for layer in layers:
        weight = parameters.get(f"blocks.{layer}.attn.out_proj.weight")
        if weight is None or ("v", layer) not in trace:
            return []
        v = trace["v", layer][0]  # (T, Hkv, dv)
        heads = trace.num_heads
        if weight.shape[0] != heads * v.shape[2]:
            raise value_error(
                f"the trace has {heads} heads of size {v.shape[2]} in layer {layer}, but "
                f"the model's output projection has {weight.shape[0]} rows; pass the trace's "
                "own model"
            )
        norms.append(value_norms(v, weight))
    return norms


def _mean(values: Array) -> float:
    return float(values.mean(dtype=np.float64)) if values.size else 0.0


def by_word(heads: Heads) -> Heads:
    """Merge the subwords of a text into words; if no token is a subword, return `heads` unchanged.

    The weight on a word is the sum of the weights on its subwords. The weight from a word is the
    mean of the weights from its subwords.

    >>> axis = Axis(["a", "##b", "c"], [False] * 3)
    >>> heads = Heads(axis, [0], [np.full((1, 3, 3), 1 / 3)])
    >>> merged = by_word(heads)
    >>> merged.queries.tokens, merged.weights[0].round(2).tolist(), merged.queries.position(1)
    (['ab', 'c'], [[[0.67, 0.33], [0.67, 0.33]]], 2)
    """
    rows, columns = (spans_of(axis.tokens, axis.special) for axis in (heads.queries, heads.keys))
    if len(rows) == len(heads.queries.tokens) and len(columns) == len(heads.keys.tokens):
        return heads
    split = heads.split
    return replace(
        heads,
        queries=_merge_axis(heads.queries, rows),
        other_keys=None if heads.other_keys is None else _merge_axis(heads.other_keys, columns),
        weights=[merge_words(layer, rows, columns) for layer in heads.weights],
        summary=[_merged_summary(part, rows, columns) for part in heads.summary],
        scale={},
        norms=[],
        split=None if split is None else int(np.searchsorted([span[0] for span in rows], split)),
    )


def _merge_axis(axis: Axis, spans: list[Span]) -> Axis:
    """Merge the tokens of an axis into words; a word of one token keeps the token's name."""
    names = axis.labels
    return Axis(
        [word for _, _, word in spans],
        [axis.special[first] for first, _, _ in spans],
        names and [names[first] if end - first == 1 else word for first, end, word in spans],
        spans,
    )


def _merged_summary(part: Summary, rows: Sequence[Span], columns: Sequence[Span]) -> Summary:
    """Sum the kept weights between subwords, and keep the largest sums for each word."""
    row_of, key_of = (
        np.repeat(np.arange(len(spans)), [end - first for first, end, _ in spans])
        for spans in (rows, columns)
    )
    heads, _, top_k = part.indices.shape
    there = part.indices >= 0
    head, query, _ = np.nonzero(there)
    line = head * len(rows) + row_of[query]  # the index of the row in an array (H * words, k)
    cells, at = np.unique(line * len(columns) + key_of[part.indices[there]], return_inverse=True)
    sizes = np.array([end - first for first, end, _ in rows])
    shares = np.nan_to_num(part.weights[there]).astype(np.float64) / sizes[row_of[query]]
    sums = np.bincount(at, shares, len(cells))
    line, key = np.divmod(cells, len(columns))
    order = np.lexsort((key, -sums, line))
    line, key, sums = line[order], key[order], sums[order]
    rank = np.arange(len(line)) - np.searchsorted(line, line)  # the rank of each weight in its row
    top = rank < top_k
    indices = np.full((heads * len(rows), top_k), -1, np.int64)
    weights = np.zeros(indices.shape, part.weights.dtype)
    indices[line[top], rank[top]] = key[top]
    weights[line[top], rank[top]] = sums[top]
    received = np.add.reduceat(part.received, [first for first, _, _ in columns], axis=-1)
    shape = heads, len(rows), top_k
    return Summary(indices.reshape(shape), weights.reshape(shape), received)


def merge_words(weights: Array, queries: Sequence[Span], keys: Sequence[Span]) -> Array:
    """Merge weights between subwords `(..., L, S)` into weights between words.

    The weight on a word is the sum of the weights on its subwords. The weight from a word is the
    mean of the weights from its subwords. Each row therefore still sums to 1.

    Source:
        Clark et al. 2019, section 4.1.

    >>> merge_words(np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
    ...             [(0, 1, "a"), (1, 3, "b")], [(0, 1, "a"), (1, 3, "b")])
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    rows = np.add.reduceat(weights, [first for first, _, _ in queries], axis=-2)
    merged = np.add.reduceat(rows, [first for first, _, _ in keys], axis=-1)
    merged /= np.array([[end - first] for first, end, _ in queries], merged.dtype)
    return np.asarray(merged)
