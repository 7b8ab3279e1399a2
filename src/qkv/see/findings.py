"""The numbers behind a view: which head to show, its links, how far words moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkv.arrays import Array
from qkv.models.pairs import Seq2SeqTrace
from qkv.see import words as of_words
from qkv.see.heads import Heads, heads_of
from qkv.see.words import is_punctuation
from qkv.text.tokenized import find_pieces, is_piece, plain_tokens
from qkv.trace import Trace


@dataclass(frozen=True)
class Link:
    """One weight: what the token at `query` puts on the token at `key`."""

    layer: int
    head: int
    query: int
    key: int
    weight: float


@dataclass(frozen=True)
class Head:
    """The head to show, its strongest link if it has one, and why it is this one, in words."""

    layer: int
    head: int
    link: Link | None
    reason: str


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


def one_text(trace: Trace | Seq2SeqTrace, call: str) -> Trace:
    """The trace of the one text that this one holds."""
    if isinstance(trace, Seq2SeqTrace):
        raise TypeError(
            f"{call}: this trace is of an encoder and a decoder: give trace.encoder or "
            "trace.decoder, or call head_view(trace)"
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


def content(trace: Trace) -> Array:
    """Which tokens carry content, `(T,)` bool: neither special nor punctuation.

    A piece of a word ("##ing") counts, and so does an unknown word.
    """
    return of_words.content(trace.tokens, trace.special)


def strongest_links(
    trace: Trace | Heads, layer: int, head: int, count: int | None = None
) -> list[Link]:
    """The largest weights of one head between two different content tokens, largest first.

    Ties go to the earlier query, then the earlier key. Weights of 0 are no links.
    """
    weights, keys = _seen(trace).links(layer, head)  # (L, S), or (L, k) where only those are kept
    order = np.argsort(-weights, axis=None, kind="stable")[:count]
    places = zip(*np.unravel_index(order, weights.shape), strict=True)
    return [
        Link(layer, head, int(i), int(keys[i, j]), float(weights[i, j]))
        for i, j in places
        if weights[i, j] > 0
    ]


def other_heads(trace: Trace | Heads, shown: Head, count: int) -> list[Link]:
    """The strongest link of other heads, largest first; each pair of tokens once."""
    seen_heads = _seen(trace)
    links = [
        Link(layer, head, int(query), int(key), float(weight))
        for layer in seen_heads.layers
        for head, (weight, query, key) in enumerate(zip(*seen_heads.best_links(layer), strict=True))
    ]
    seen = {(shown.link.query, shown.link.key)} if shown.link else set()
    kept = []
    for link in sorted(links, key=lambda link: -link.weight):
        pair, place = (link.query, link.key), (link.layer, link.head)
        if link.weight > 0 and pair not in seen and place != (shown.layer, shown.head):
            seen.add(pair)
            kept.append(link)
    return kept[:count]


def choose_head(
    trace: Trace | Heads,
    layer: int | None = None,
    head: int | None = None,
    *,
    call: str = "show",
) -> Head:
    """The head with the largest weight between two different content tokens.

    Special tokens, punctuation and a token's weight on itself are left out; ties go to the lowest
    layer, then head. `layer` and `head` narrow the choice.

    Raises:
        IndexError: `layer` or `head` is not there; the message names the range.
    """
    seen = _seen(trace)
    _check_place(seen, layer, head, call)
    best: Link | None = None
    for candidate in seen.layers if layer is None else [layer]:
        weights, queries, keys = seen.best_links(candidate)  # (H,)
        at = int(weights.argmax()) if head is None else head
        if weights[at] > (best.weight if best else 0.0):
            best = Link(candidate, at, int(queries[at]), int(keys[at]), float(weights[at]))
    if layer is not None and head is not None:
        return Head(layer, head, best, "it was asked for")
    if best is None:
        first = min(seen.layers) if layer is None else layer
        return Head(
            first,
            head or 0,
            None,
            f"it is the first of {searched(seen, layer, head)}: in none does a content token look "
            "at another one",
        )
    reason = (
        "it has the largest weight between two different content tokens, of "
        f"{searched(seen, layer, head)} (special tokens, punctuation and self left out)"
    )
    return Head(best.layer, best.head, best, reason)


def searched(seen: Heads, layer: int | None, head: int | None) -> str:
    """Among which heads one was chosen, in words."""
    if layer is not None:
        return f"all heads of layer {layer}"
    every = list(seen.layers) == list(range(max(seen.layers) + 1)) and not seen.others
    layers = "all layers" if every else f"the layers traced ({', '.join(map(str, seen.layers))})"
    return f"{layers} and heads" if head is None else f"head {head} of {layers}"


def hidden_cells(trace: Trace, layer: int, head: int) -> Array | None:
    """Where a mask hides a key from a query, `(T, T)`, if the scores were traced."""
    if ("attn_scores", layer) not in trace:
        return None
    return np.asarray(np.isneginf(trace["attn_scores", layer][0, head]))


def movement(trace: Trace) -> Movement | None:
    """How far each token moved; None if the trace lacks the static or the contextual vectors."""
    last = last_state(trace)
    if "embed" not in trace or last is None or trace["embed"].shape != last.shape:
        return None
    static, contextual = (part[0].astype(np.float64) for part in (trace["embed"], last))
    return Movement(
        cosine=cosine(static, contextual),
        static_length=np.linalg.norm(static, axis=-1),
        contextual_length=np.linalg.norm(contextual, axis=-1),
    )


def last_state(trace: Trace) -> Array | None:
    """The vectors after the last layer, `(1, T, D)`, or None if they were not traced."""
    layer = trace.num_layers - 1
    for name in ("normalized_resid_post", "resid_post"):
        if (name, layer) in trace:
            found: Array = trace[name, layer]
            return found
    return None


def cosine(a: Array, b: Array) -> Array:
    """The cosine between vectors along the last axis, in float64; 0 where one has no length.

    >>> cosine(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[1.0, 1.0], [1.0, 1.0]])).round(3)
    array([0.707, 0.   ])
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    dots = (a * b).sum(axis=-1)
    return np.asarray(np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths != 0))


def words_of(trace: Trace) -> list[str]:
    """The words of a text as its tokens spell them, pieces joined, punctuation left out."""
    words: list[str] = []
    pairs = zip(trace.tokens, trace.special, strict=True)
    for token, special in pairs:
        if is_piece(token) and words:
            words[-1] += token[2:]
        elif not special:
            words.append(token)
    return [word for word in words if not is_punctuation(word)]


def find_word(trace: Trace, pieces: Sequence[str]) -> list[list[int]]:
    """Where a word stands in a text: for each time it occurs, the positions of its pieces.

    `pieces` are the word's tokens. What merely begins with them is another word.

    >>> trace = Trace({}, tokens=[["the", "bank", "##er", "at", "the", "bank"]])
    >>> find_word(trace, ["bank"]), find_word(trace, ["bank", "##er"])
    ([[5]], [[1, 2]])
    """
    return find_pieces(trace.tokens, pieces)


def similarity_by_layer(
    a: Trace, positions_a: Sequence[int], b: Trace, positions_b: Sequence[int]
) -> Array:
    """The cosine between one word in two texts, `(num_layers + 1,)`.

    The first number is at the embeddings, the others after each layer. A word of several pieces is
    the mean of their vectors. Empty where a trace lacks these vectors.

    Raises:
        ValueError: the texts ran through different numbers of layers.
    """
    if a.num_layers != b.num_layers:
        raise ValueError(
            f"compare: the first trace has {a.num_layers} layers and the second {b.num_layers}: "
            "trace both with one model"
        )
    try:
        states = list(zip(a.hidden_states, b.hidden_states, strict=True))
    except KeyError:
        return np.zeros(0)
    return np.array(
        [
            float(cosine(_mean(state_a, positions_a), _mean(state_b, positions_b)))
            for state_a, state_b in states
        ]
    )


def attended(trace: Trace | Heads, layer: int, head: int, positions: Sequence[int]) -> Array:
    """What a word attends to in one head, `(T,)` and summing to 1: the mean over its pieces."""
    seen = _seen(trace)
    return np.asarray(np.mean([seen.row(layer, head, place) for place in positions], axis=0))


def contrasting_head(
    a: Trace,
    positions_a: Sequence[int],
    b: Trace,
    positions_b: Sequence[int],
    layer: int | None = None,
    head: int | None = None,
) -> Head:
    """The head in which what a word attends to differs most between two texts.

    The difference is half the sum, over all tokens of both texts, of what separates the weights
    that each receives: 0 is the same, 1 nothing in common. Ties go to the lowest layer, then head.

    Raises:
        IndexError: `layer` or `head` is not there; the message names the range.
    """
    seen, other = heads_of(a), heads_of(b)
    _check_place(seen, layer, head, "compare")
    _check_place(other, layer, head, "compare")
    if layer is not None and head is not None:
        return Head(layer, head, None, "it was asked for")
    best, place = -1.0, (0, 0)
    for at_layer in seen.layers if layer is None else [layer]:
        heads = range(seen.count) if head is None else [head]
        for at_head in heads:
            apart = _apart(
                *(a.tokens, attended(seen, at_layer, at_head, positions_a)),
                *(b.tokens, attended(other, at_layer, at_head, positions_b)),
            )
            if apart > best:
                best, place = apart, (at_layer, at_head)
    reason = (
        "it is the one where what the word looks at differs most between the two "
        f"({best:.2f} of its weight is elsewhere), of {searched(seen, layer, head)}"
    )
    return Head(*place, None, reason)


def changed_head(a: Trace, b: Trace, layer: int | None = None, head: int | None = None) -> Head:
    """The head whose weights differ most between two runs of one text.

    The difference is half the sum of what separates the weights of each query, and its mean over
    the queries. Heads that either run went without are left out. Ties go to the lowest layer, then
    head.

    Raises:
        IndexError: `layer` or `head` is not there; the message names the range.
    """
    first, second = heads_of(a), heads_of(b)
    _check_place(first, layer, head, "compare")
    _check_place(second, layer, head, "compare")
    if layer is not None and head is not None:
        return Head(layer, head, None, "it was asked for")
    without = {tuple(pair) for run in (a, b) for pair in run.changed.get("ablate", ())}
    best, place = -1.0, (min(first.layers) if layer is None else layer, head or 0)
    for at_layer in first.layers if layer is None else [layer]:
        changes = _changes(first, second, at_layer)  # (H,)
        for at_head in range(first.count) if head is None else [head]:
            if changes[at_head] > best and (at_layer, at_head) not in without:
                best, place = float(changes[at_head]), (at_layer, at_head)
    reason = (
        f"it is the one whose weights differ most between the two runs ({max(best, 0.0):.2f} of "
        f"its weight is elsewhere), of {searched(first, layer, head)}"
    )
    return Head(*place, None, reason)


def rising_head(
    seen: Heads,
    rises: Array,
    names: Sequence[str],
    layer: int | None = None,
    head: int | None = None,
) -> tuple[Head, int]:
    """The head of which a score rose most through training, and which score that is.

    Ties go to the lowest layer, then head, then the first score.

    Args:
        seen: the heads, at any step.
        rises: by how much each score rose, `(layers, heads, scores)`.
        names: what the scores are called.
        layer: narrows the choice.
        head: narrows the choice.

    Raises:
        IndexError: `layer` or `head` is not there; the message names the range.
    """
    _check_place(seen, layer, head, "replay")
    there = np.full(rises.shape, -np.inf)
    rows = slice(None) if layer is None else [seen.layers.index(layer)]
    columns = slice(None) if head is None else [head]
    there[rows, columns] = rises[rows, columns]
    row, column, score = (int(i) for i in np.unravel_index(int(there.argmax()), rises.shape))
    reason = "it was asked for"
    if layer is None or head is None:
        among = f"of all scores of {searched(seen, layer, head)}"
        rose = "rose most" if there.max() > 0 else "fell least"
        reason = f"its {names[score]} {rose}, {among}"
    return Head(seen.layers[row], column, None, reason), score


def _changes(a: Heads, b: Heads, layer: int) -> Array:
    """How much of each head's weight is elsewhere in the other run, `(H,)`: the mean of queries."""
    queries = range(len(a.tokens))
    rows = [
        [np.stack([seen.row(layer, head, query) for query in queries]) for head in range(a.count)]
        if not seen.weights
        else seen.weights[seen.layers.index(layer)]
        for seen in (a, b)
    ]
    pairs = zip(*rows, strict=True)  # of (L, S)
    return np.array([np.abs(x - y.astype(np.float64)).sum(axis=1).mean() / 2 for x, y in pairs])


def strongest_by_token(trace: Trace, positions: Sequence[int], count: int) -> list[Link]:
    """The content tokens that a word looks at most, each in the head where it does so most.

    The word itself is left out. Ties go to the lowest layer, then head.
    """
    words = content(trace)
    words[list(positions)] = False
    best: dict[int, Link] = {}
    seen = heads_of(trace)
    for layer in seen.layers:
        for head in range(seen.count):
            weights = attended(seen, layer, head, positions)
            for key in np.flatnonzero(words & (weights > 0)).tolist():
                if key not in best or weights[key] > best[key].weight:
                    best[key] = Link(layer, head, positions[0], key, float(weights[key]))
    return sorted(best.values(), key=lambda link: -link.weight)[:count]


def _apart(
    tokens_a: Sequence[str], weights_a: Array, tokens_b: Sequence[str], weights_b: Array
) -> float:
    """The total variation distance of two attentions, by what the tokens are.

    >>> _apart(["a", "b"], np.array([0.5, 0.5]), ["b", "c"], np.array([0.5, 0.5]))
    0.5
    """
    difference: dict[str, float] = {}
    for tokens, weights, sign in ((tokens_a, weights_a, 1), (tokens_b, weights_b, -1)):
        for token, weight in zip(tokens, weights.tolist(), strict=True):
            difference[token] = difference.get(token, 0.0) + sign * weight
    return sum(map(abs, difference.values())) / 2


def _mean(state: Array, positions: Sequence[int]) -> Array:
    return np.asarray(state[0, list(positions)].astype(np.float64).mean(axis=0))


def between_content(trace: Trace, weights: Array) -> Array:
    """Weights `(..., T, T)` with -1 wherever they do not join two different content tokens."""
    return Heads(trace.tokens, trace.special, []).between_content(weights)


def _seen(trace: Trace | Heads) -> Heads:
    return heads_of(trace) if isinstance(trace, Trace) else trace


def _check_place(heads: Heads, layer: int | None, head: int | None, call: str) -> None:
    if heads.others and (not heads.layers or layer in heads.others):
        asked = min(heads.others) if layer is None else layer
        rest = _span(heads.layers) if heads.layers else "none"
        raise ValueError(
            f"{call}: layer {asked} is {heads.others[asked]}, whose queries or keys are other "
            f"tokens than this trace's (layers of these: {rest}): its numbers are "
            f'trace["top_weights", {asked}], and qkv.head_view shows the weights that the model '
            "gives with output_attentions=True"
        )
    if not heads.layers:
        raise ValueError(f"{call}: this trace holds no weights: trace hook_pattern too")
    if layer is not None and layer not in heads.layers:
        raise IndexError(f"{call}: there is no layer {layer}: the layers are {_span(heads.layers)}")
    known = range(heads.count)
    if head is not None and head not in known:
        raise IndexError(f"{call}: there is no head {head}: the heads are {_span(known)}")


def _span(numbers: Sequence[int]) -> str:
    """Whole numbers in words: `0 to 5`, or `2, 4`.

    >>> _span([0, 1, 2]), _span([2, 4]), _span([0])
    ('0 to 2', '2, 4', '0 only')
    """
    if len(numbers) == 1:
        return f"{numbers[0]} only"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
