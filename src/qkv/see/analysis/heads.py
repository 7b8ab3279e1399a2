"""The heads of one text as a view takes them, whether from a trace or from plain arrays."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.largest import strongest_block
from qkv.see.analysis.words import Span, content, is_word
from qkv.trace import Trace

LONG = 512  # tokens from which only the largest weights of each query are shown


class Summary(NamedTuple):
    """What is kept of one layer's weights where a text is long.

    Attributes:
        indices: `(H, L, k)` the keys of the largest weights, -1 where there are fewer.
        weights: `(H, L, k)` those weights, largest first.
        received: `(H, S)` each key's weight, summed over all queries.
    """

    indices: Array
    weights: Array
    received: Array


class Excerpt(NamedTuple):
    """A part of one head's weights that is small enough to draw.

    Attributes:
        rows: the queries.
        columns: the keys.
        places: which queries these are.
        values: the weights, NaN where one was not kept.
        hidden: where a mask hides a key, if that is known.
        missing: what a cell without a number is, in words.
    """

    rows: list[str]
    columns: list[str]
    places: list[int]
    values: Array
    hidden: Array | None
    missing: str


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of one text.

    Attributes:
        tokens: the L queries.
        special: which of them are special ([CLS], [SEP] and their like).
        layers: the numbers of the layers.
        weights: for each layer `(H, L, S)`; empty where only a summary was kept.
        summary: for each layer what was kept; empty where the weights are there.
        keys: the S keys, where they are other tokens than the queries.
        key_special: which keys are special, where there are other keys.
        scores: layer to scaled scores `(H, L, S)`, -inf where a mask hides; always of tokens.
        scale: layer to what its raw scores were multiplied by, where that is known.
        norms: for each layer `(H, S)`, the length of what each key gives; or empty.
        name: what this text is called beside others.
        text: the text as it was given, where that is known.
        split: where the second of two sentences begins.
        shown: tokens as they are to be read; as they are if left out.
        shown_keys: the same of other keys.
        others: of layers that are left out as they look from or at other tokens, what they are.
        spans: where the queries are words, the tokens of the text that make up each.
        key_spans: the same of the keys.
    """

    tokens: list[str]
    special: list[bool]
    layers: list[int]
    weights: list[Array] = field(default_factory=list)
    summary: list[Summary] = field(default_factory=list)
    keys: list[str] | None = None
    key_special: list[bool] | None = None
    scores: Mapping[int, Array] = field(default_factory=dict)
    scale: Mapping[int, float] = field(default_factory=dict)
    norms: list[Array] = field(default_factory=list)
    name: str = ""
    text: str = ""
    split: int | None = None
    shown: list[str] | None = None
    shown_keys: list[str] | None = None
    others: Mapping[int, str] = field(default_factory=dict)
    spans: list[Span] | None = None
    key_spans: list[Span] | None = None

    @property
    def count(self) -> int:
        """H, how many heads a layer has."""
        return len(self.weights[0] if self.weights else self.summary[0].received)

    @property
    def all_keys(self) -> list[str]:
        """The S keys, whether they are the queries or others."""
        return self.tokens if self.keys is None else self.keys

    @property
    def all_key_special(self) -> list[bool]:
        """Which of them are special."""
        return self.special if self.key_special is None else self.key_special

    @property
    def query_names(self) -> list[str]:
        """The queries as they are to be read."""
        return self.shown or self.tokens

    @property
    def key_names(self) -> list[str]:
        """The keys as they are to be read."""
        if self.keys is None:
            return self.query_names
        return self.shown_keys or self.keys

    @property
    def cells(self) -> int:
        """How many weights there are in all layers, whether they are kept or not."""
        return len(self.layers) * self.count * len(self.tokens) * len(self.all_keys)

    def place(self, row: int) -> int:
        """The token of the text with which a query begins."""
        return row if self.spans is None else self.spans[row][0]

    def rows_of(self, places: Iterable[int]) -> list[int]:
        """The queries in which these tokens of the text are."""
        if self.spans is None:
            return list(places)
        firsts = [first for first, _, _ in self.spans]
        return sorted({bisect_right(firsts, place) - 1 for place in places})

    def content_keys(self, query: int) -> list[int]:
        """The keys that belong to other content words than this query."""
        keys = np.arange(len(self.all_keys))
        kept = self._joined(np.array([query]), keys, True, False)[0]
        found: list[int] = np.flatnonzero(kept).tolist()
        return found

    def between_content(self, weights: Array) -> Array:
        """Weights `(..., L, S)`, -1 where they do not join two different content words.

        >>> heads = Heads(["a", "."], [False, False], [0])
        >>> heads.between_content(np.full((2, 2), 0.5)).tolist()
        [[-1.0, -1.0], [-1.0, -1.0]]
        """
        every = np.arange(len(self.all_keys))
        kept = self._joined(np.arange(len(self.tokens)), every)
        return np.where(kept & ~np.isnan(weights), weights, -1.0)

    def links(self, layer: int, head: int) -> tuple[Array, Array]:
        """One head's weights between two different content words, and the keys they are on.

        Returns:
            weights and keys, both `(L, S)`, or `(L, k)` where only the k largest are kept; a
            weight of -1 where it joins no two such words.
        """
        weights = self.known(layer, head)
        if self.weights:
            keys = np.arange(len(self.all_keys))
            return self.between_content(weights), np.broadcast_to(keys, weights.shape)
        keys = self.summary[self.layers.index(layer)].indices[head]
        kept = self._joined(np.arange(len(self.tokens)), keys) & (keys >= 0) & ~np.isnan(weights)
        return np.where(kept, weights, -1.0), keys

    def best_links(
        self, layer: int, queries: Sequence[int] | None = None, keys: Sequence[int] | None = None
    ) -> tuple[Array, Array, Array]:
        """Each head's largest weight between two different content words.

        Args:
            layer: the layer.
            queries: places to look from, whatever stands there.
            keys: places to look at, whatever stands there.

        Returns:
            weights, queries and keys, each `(H,)`; a weight of -1 where there is no such pair.
        """
        place, heads = self.layers.index(layer), np.arange(self.count)
        rows = np.flatnonzero(self._content[0]) if queries is None else np.array(queries, int)
        columns = np.flatnonzero(self._key_content[0]) if keys is None else np.array(keys, int)
        free = queries is not None and keys is not None
        if self.weights:
            weights = self.weights[place][:, rows[:, None], columns]  # (H, rows, columns)
            kept = self._joined(rows, columns, queries is not None, keys is not None) | free
            at = np.broadcast_to(columns, weights.shape)
        else:
            weights, at = (part[:, rows] for part in self.summary[place][1::-1])  # (H, rows, k)
            kept = self._joined(rows, at, queries is not None, keys is not None) | free
            kept = kept & np.isin(at, columns)
        if not weights.size:
            return np.full(self.count, -1.0), heads * 0, heads * 0
        weights = np.where(kept & ~np.isnan(weights), weights, -1.0)
        best = weights.reshape(len(heads), -1).argmax(axis=1)
        row, column = np.divmod(best, weights.shape[2])
        return weights[heads, row, column], rows[row], at[heads, row, column]

    def usual(self, layer: int, head: int, query: int, key: int) -> tuple[float, float]:
        """What one weight is measured by: what its head gives to that distance and to that key.

        Returns:
            the mean weight of all pairs of words as far apart, this one included; and the mean
            weight that other words put on this key, of those that a causal mask lets see it. Keys
            that are other tokens than the queries have no distance: 0.
        """
        places = np.arange(len(self.tokens))
        column = self._weights_on(layer, head, np.full(len(places), key))
        words, _ = self.words
        others = words & (places != query)
        if self.keys is not None:
            return 0.0, _mean(column[others])
        others &= places != key
        others &= (places > key) | bool(column[:key].any())
        ahead = places + key - query
        pairs = words & (ahead >= 0) & (ahead < len(places))
        pairs[pairs] = words[ahead[pairs]]
        along = self._weights_on(layer, head, np.clip(ahead, 0, len(places) - 1))
        return _mean(along[pairs]), _mean(column[others])

    def _weights_on(self, layer: int, head: int, keys: Array) -> Array:
        """What each query puts on a key of its own, `(L,)`: 0 where the weight was not kept."""
        place = self.layers.index(layer)
        if self.weights:
            return np.asarray(np.nan_to_num(self.weights[place][head][np.arange(len(keys)), keys]))
        kept = self.summary[place]
        found = np.where(kept.indices[head] == keys[:, None], kept.weights[head], 0.0)
        return np.asarray(np.nan_to_num(found).sum(axis=-1))

    def row(self, layer: int, head: int, query: int) -> Array:
        """What one query looks at, `(S,)`: 0 where the weight was not kept."""
        place = self.layers.index(layer)
        if self.weights:
            return np.asarray(self.weights[place][head, query])
        kept, weights = self.summary[place], np.zeros(len(self.all_keys))
        there = kept.indices[head, query] >= 0
        weights[kept.indices[head, query][there]] = kept.weights[head, query][there]
        return weights

    def known(self, layer: int, head: int) -> Array:
        """The weights that are known of a head: `(L, S)`, or the largest of each query `(L, k)`."""
        place = self.layers.index(layer)
        weights = self.weights[place] if self.weights else self.summary[place].weights
        return np.asarray(weights[head])

    def excerpt(self, layer: int, head: int, most: int) -> Excerpt:
        """The rows and columns, at most this many, in which the largest links stand."""
        links, keys = self.links(layer, head)
        weights = self.known(layer, head)
        if self.weights:
            rows, columns = strongest_block(links, most, most)
            values = weights[np.ix_(rows, columns)]
            hidden = self.hidden(layer, head)
            hidden = None if hidden is None else hidden[np.ix_(rows, columns)]
            missing = "hidden by the mask"
        else:
            rows, columns = _corner(links, keys, most)
            at = keys[rows, :, None] == columns  # (rows, k, columns)
            values = np.where(at, weights[rows, :, None], 0.0).sum(axis=1)
            values = np.where(at.any(axis=1), values, np.nan)
            hidden, missing = None, "not among the weights that were kept"
        names = [self.query_names[i] for i in rows], [self.key_names[j] for j in columns]
        return Excerpt(*names, rows, values, hidden, missing)

    def hidden(self, layer: int, head: int) -> Array | None:
        """Where a mask hides a key from a query, `(L, S)`, if the scores are known.

        A word is hidden where all of its tokens are.
        """
        found = self.scores.get(layer)
        if found is None:
            return None
        hidden = np.isneginf(found[head])
        for axis, spans in enumerate((self.spans, self.key_spans)):
            if spans is not None:
                firsts = [first for first, _, _ in spans]
                hidden = np.logical_and.reduceat(hidden, firsts, axis=axis)
        return np.asarray(hidden)

    @cached_property
    def _content(self) -> tuple[Array, Array]:
        """Which queries belong to content words, and the numbers of their words."""
        return content(self.tokens, self.special)

    @cached_property
    def _key_content(self) -> tuple[Array, Array]:
        return self._content if self.keys is None else content(self.keys, self.all_key_special)

    @cached_property
    def words(self) -> tuple[Array, Array]:
        """Which queries, and which keys, are words or pieces of them."""
        own = is_word(self.tokens, self.special)
        return own, own if self.keys is None else is_word(self.keys, self.all_key_special)

    def _joined(
        self, rows: Array, at: Array, query_asked: bool = False, key_asked: bool = False
    ) -> Array:
        """Whether keys `(S,)` or `(..., rows, k)` and these queries are two content words.

        Args:
            rows: the queries.
            at: the keys.
            query_asked: whether the queries were asked for, whatever they are.
            key_asked: the same of the keys.
        """
        (flags, numbers), (key_flags, key_numbers) = self._content, self._key_content
        kept = (flags[rows] | query_asked)[:, None] & (key_flags[at] | key_asked)
        if self.keys is None:
            kept &= numbers[rows][:, None] != key_numbers[at]
        return np.asarray(kept)


def heads_of(
    trace: Trace, *, parameters: Mapping[str, Array] | None = None, name: str = ""
) -> Heads:
    """The heads that a trace of one text holds.

    Args:
        trace: of one text, with its weights, or with the summaries that `top_k` keeps.
        parameters: the model's, for the length of what each key gives.
        name: what the text is called beside others.
    """
    own = [layer for layer in range(trace.num_layers) if layer not in trace.other_layers]
    numbers = [layer for layer in own if ("pattern", layer) in trace]
    short: list[int] = []
    if not numbers:
        short = [layer for layer in own if ("top_weights", layer) in trace]
    scores = {n: trace["attn_scores", n][0] for n in numbers if ("attn_scores", n) in trace}
    scales = {layer: _scale(trace, layer) for layer in scores}
    summary = [
        Summary(*(trace[part, layer][0] for part in ("top_indices", "top_weights", "received")))
        for layer in short
    ]
    return Heads(
        list(trace.tokens),
        list(trace.special),
        numbers or short,
        [trace["pattern", layer][0] for layer in numbers],
        summary,
        scores=scores,
        scale={layer: scale for layer, scale in scales.items() if scale is not None},
        norms=_norms(trace, numbers or short, parameters or {}),
        name=name,
        text=trace.text,
        others=trace.other_layers,
    )


def _corner(links: Array, keys: Array, most: int) -> tuple[list[int], list[int]]:
    """The queries and keys of the largest links, in their order of place."""
    rows: set[int] = set()
    columns: set[int] = set()
    for place in np.argsort(-links, axis=None, kind="stable")[: 20 * most].tolist():
        row, column = divmod(place, links.shape[1])
        key = int(keys[row, column])
        if key < 0 or len(rows | {row}) > most or len(columns | {key}) > most:
            continue
        rows.add(row)
        columns.add(key)
    return sorted(rows), sorted(columns)


def _scale(trace: Trace, layer: int) -> float | None:
    """What raw scores are multiplied by, unless something else was done to them as well."""
    if not all((name, layer) in trace for name in "qkv"):
        return None
    settings = trace.attention_inputs(layer)
    if any(settings.get(name) is not None for name in ("softcap", "bias", "alibi_slopes")):
        return None
    mask = settings.get("attn_mask")
    if mask is not None and np.asarray(mask).dtype != bool:  # it is added to the scores
        return None
    given = settings.get("scale")
    return 1 / math.sqrt(trace["q", layer].shape[-1]) if given is None else float(given)


def value_norms(v: Array, out_proj: Array) -> Array:
    """The length of what each key gives, `|v_j W_O|`, for each query head `(Hq, S)`.

    A weight times this length is the length of what it carries into the output: the contribution.

    Args:
        v: the values `(S, Hkv, dv)`, their bias included.
        out_proj: `(Hq * dv, D)`, of which head h owns rows `h * dv` to `(h + 1) * dv`.

    Source:
        Kobayashi et al. 2020, "Attention is Not Only a Weight", section 2.2: their f(x).

    >>> value_norms(np.array([[[3.0, 4.0]], [[0.0, 1.0]]]), np.eye(2))
    array([[5., 1.]])
    """
    size = v.shape[2]
    parts = out_proj.astype(np.float64).reshape(-1, size, out_proj.shape[1])  # (Hq, dv, D)
    shared = len(parts) // v.shape[1]
    values = np.repeat(v.astype(np.float64), shared, axis=1)  # (S, Hq, dv)
    return np.asarray(np.linalg.norm(np.einsum("shd,hde->hse", values, parts), axis=-1))


def _norms(trace: Trace, layers: list[int], parameters: Mapping[str, Array]) -> list[Array]:
    found = []
    for layer in layers:
        weight = parameters.get(f"blocks.{layer}.attn.out_proj.weight")
        if weight is None or ("v", layer) not in trace:
            return []
        v = trace["v", layer][0]  # (T, Hkv, dv)
        heads = trace.num_heads
        if weight.shape[0] != heads * v.shape[2]:
            raise ValueError(
                f"show: the trace has {heads} heads of {v.shape[2]} in layer {layer} and the model "
                f"an output projection of {weight.shape[0]} rows: pass the model it was made with"
            )
        found.append(value_norms(v, weight))
    return found


def _mean(values: Array) -> float:
    return float(values.mean(dtype=np.float64)) if values.size else 0.0
