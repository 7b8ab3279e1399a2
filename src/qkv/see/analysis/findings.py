"""The numbers behind a view: its text, its links, what a word looks at, how far words moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.heads import Heads
from qkv.see.analysis.plane import has_plane
from qkv.see.analysis.words import Span
from qkv.text.tokenized import plain_tokens
from qkv.trace import Seq2SeqTrace, Trace

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


@dataclass(frozen=True, eq=False)
class Movement:
    """How far each token went from its static vector to its contextual one, all `(T,)` float64.

    Attributes:
        cosine: between the two; 1 is the same direction. 0 where one of them has no length.
        static_length: of the token's row in the token table.
        contextual_length: of its vector after the last layer.
    """

    cosine: Array
    static_length: Array
    contextual_length: Array


def one_text(trace: Any, call: str) -> Trace:
    """The trace of the one text that this one holds."""
    if isinstance(trace, Seq2SeqTrace):
        raise TypeError(
            f"{call}: this trace is of an encoder and a decoder: give trace.encoder or "
            "trace.decoder, or call head_view(trace)"
        )
    if not isinstance(trace, Trace):
        raise TypeError(
            f"{call}: there is a {type(trace).__name__} where a trace should be: give "
            "model.trace(...)"
        )
    if len(trace) > 1:
        raise ValueError(f"{call}: this trace holds {len(trace)} texts: take one, trace[0]")
    if not len(trace) or not len(trace[0].tokens):
        raise ValueError(f"{call}: {_no_tokens(trace)}")
    return readable(trace[0])


def _no_tokens(trace: Trace) -> str:
    """Why there are none, and what can be done."""
    if not trace.names():
        return (
            "this trace is empty: a recording is filled when its block ends without an error; a "
            "model of qkv gives one with model.trace(text)"
        )
    weights = 'trace["pattern"]' if "pattern" in trace else "trace.attentions"
    return (
        "this trace has no tokens: make one with model.trace(text), or give weights with their "
        f"tokens, qkv.show({weights}, tokens=[...])"
    )


def readable(trace: Trace) -> Trace:
    """The trace of one text with its tokens as a reader knows them."""
    tokens, special = trace[0].tokens, trace[0].special
    names = plain_tokens(tokens, special)
    return trace if names == tokens else trace.with_tokens([names])


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


@np.errstate(over="ignore")
@np.errstate(over="ignore", invalid="ignore")
def movement(trace: Trace, spans: Sequence[Span] | None = None) -> Movement | None:
    """How far each token moved; None if the trace lacks the static or the contextual vectors.

    Of words of several tokens, `spans`, it is the mean of their vectors.
    """
    ends = static_and_last(trace)
    if ends is None:
        return None
    static, contextual = (mean_vectors(part[0].astype(np.float64), spans) for part in ends)
    return Movement(
        cosine=cosine(static, contextual),
        static_length=np.linalg.norm(static, axis=-1),
        contextual_length=np.linalg.norm(contextual, axis=-1),
    )


@np.errstate(over="ignore", invalid="ignore")
def mean_vectors(vectors: Array, spans: Sequence[Span] | None) -> Array:
    """The mean vector of each word; the vectors themselves, `(T, D)`, where there are no words."""
    if spans is None:
        return vectors
    sums = np.add.reduceat(vectors, [first for first, _, _ in spans])
    return np.asarray(sums / np.array([[end - first] for first, end, _ in spans]))


def static_and_last(trace: Trace) -> tuple[Array, Array] | None:
    """Static and contextual vectors, `(1, T, D)`; None where the trace lacks either."""
    last = last_state(trace)
    if "embed" not in trace or last is None or trace["embed"].shape != last.shape:
        return None
    return trace["embed"], last


def last_state(trace: Trace) -> Array | None:
    """The vectors after the last layer, `(1, T, D)`, or None if they were not traced."""
    return state_after(trace, trace.num_layers - 1)


def state_after(trace: Trace, layer: int) -> Array | None:
    """The vectors after a layer, `(1, T, D)`, normed where the model norms them; None likewise."""
    names = ((name, layer) for name in ("normalized_resid_post", "resid_post"))
    return next((trace[name] for name in names if name in trace), None)


@np.errstate(invalid="ignore", over="ignore")
def cosine(a: Array, b: Array) -> Array:
    """The cosine between vectors along the last axis, in float64; 0 where one has no length.

    >>> cosine(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[1.0, 1.0], [1.0, 1.0]])).round(3)
    array([0.707, 0.   ])
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    dots = (a * b).sum(axis=-1)
    return np.asarray(np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths != 0))


def similarity_by_layer(
    a: Trace, positions_a: Sequence[int], b: Trace, positions_b: Sequence[int]
) -> Array:
    """The cosine between one word in two texts, `(num_layers + 1,)`.

    The first number is at the embeddings, the others after each layer. A word of several pieces is
    the mean of their vectors. Empty where a trace lacks these vectors.
    """

    def alike(x: Array, y: Array) -> Array:
        parts = (x, positions_a), (y, positions_b)
        return cosine(*(state[list(at)].astype(np.float64).mean(axis=0) for state, at in parts))

    return by_layer(a, b, alike)


def by_layer(a: Trace, b: Trace, measure: Callable[[Array, Array], Any]) -> Array:
    """A number of two traces' vectors `(T, D)` at the embeddings and after each layer.

    `(num_layers + 1,)`, or empty where a trace lacks these vectors.

    Raises:
        ValueError: the texts ran through different numbers of layers, or vectors have two sizes.
    """
    need_alike("layers", a, a.num_layers, b, b.num_layers)
    try:
        states = list(zip(a.hidden_states, b.hidden_states, strict=True))
    except KeyError:
        return np.zeros(0)
    need_alike("numbers in a vector", a, states[0][0].shape[-1], b, states[0][1].shape[-1])
    return np.array([float(measure(x[0], y[0])) for x, y in states])


def need_alike(what: str, a: Trace, first: int, b: Trace, second: int) -> None:
    """An error unless two traces have as many of something, which names their models."""
    if first != second:
        named = [f"({trace.model}) " if trace.model else "" for trace in (a, b)]
        raise ValueError(
            f"compare: the first trace {named[0]}has {first} {what} and the second "
            f"{named[1]}{second}: trace both with models of one size"
        )


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


def words_before_and_after(
    trace: Trace, shown: Heads | None = None
) -> tuple[Array, Array, list[str]] | None:
    """Static and contextual vectors `(n, D)` and tokens of a text, special ones left out.

    Where words are shown in place of tokens, the means of their vectors. None where there are no
    such vectors, or where a plane cannot show them.
    """
    ends = static_and_last(trace)
    if ends is None:
        return None
    of, spans = (trace, None) if shown is None else (shown.queries, shown.queries.spans)
    kept = [i for i, special in enumerate(of.special) if not special] or range(len(of.tokens))
    before, after = (mean_vectors(state[0], spans)[kept] for state in ends)
    if not (has_plane(before) and has_plane(after)):
        return None
    return before, after, [of.tokens[i] for i in kept]
