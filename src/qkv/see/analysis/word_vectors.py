"""Word vectors before, between and after the layers: their cosines, and their common plane."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array, as_array
from qkv.see.analysis._words import Span, is_punctuation, quote_words, spans_of
from qkv.see.analysis.head_weights import Heads
from qkv.text.tokenized import is_piece
from qkv.trace import Trace


@dataclass(frozen=True, eq=False)
class Movement:
    """The change of each token from its static to its contextual vector.

    Each attribute is a float64 array `(T,)` with one number for each token.

    Attributes:
        cosine: the cosine between the two vectors, which is 1 for the same direction, and 0 if a
            vector is all zeros.
        static_length: the length of the static vector, the token's row in the token table.
        contextual_length: the length of the contextual vector, after the last layer.
    """

    cosine: Array
    static_length: Array
    contextual_length: Array


@np.errstate(over="ignore", invalid="ignore")
def movement(trace: Trace, spans: Sequence[Span] | None = None) -> Movement | None:
    """Measure how far the layers moved each token; return None if the trace lacks a vector.

    If `spans` are given, a word's vector is the mean of the vectors of its tokens.
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
    """Return the mean vector of each word's tokens; if `spans` is None, return `vectors`."""
    if spans is None:
        return vectors
    sums = np.add.reduceat(vectors, [first for first, _, _ in spans])
    return np.asarray(sums / np.array([[end - first] for first, end, _ in spans]))


def static_and_last(trace: Trace) -> tuple[Array, Array] | None:
    """Return `(static, contextual)` vectors, `(1, T, D)`; None if the trace lacks one of them."""
    last = last_state(trace)
    if "embed" not in trace or last is None or trace["embed"].shape != last.shape:
        return None
    return trace["embed"], last


def last_state(trace: Trace) -> Array | None:
    """Return the vectors after the last layer, `(1, T, D)`; None if they were not traced."""
    return state_after(trace, trace.num_layers - 1)


def state_after(trace: Trace, layer: int) -> Array | None:
    """Return the vectors after a layer and its last norm, `(1, T, D)`; None if not traced."""
    names = ((name, layer) for name in ("normalized_resid_post", "resid_post"))
    return next((trace[name] for name in names if name in trace), None)


@np.errstate(invalid="ignore", over="ignore")
def cosine(a: Array, b: Array) -> Array:
    """Compute the cosine of vectors along the last axis, in float64.

    A zero vector has a cosine of 0 with every vector.

    >>> cosine(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[1.0, 1.0], [1.0, 1.0]])).round(3)
    array([0.707, 0.   ])
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    dots = (a * b).sum(axis=-1)
    return np.asarray(np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths != 0))


def similarity_by_layer(a: Trace, at_a: Sequence[int], b: Trace, at_b: Sequence[int]) -> Array:
    """Compute the cosine between a word's vectors in two texts at each layer, `(num_layers + 1,)`.

    The first number is the cosine at the embeddings; the others are the cosines after each layer. A
    word's vector is the mean of the vectors of its subwords. The result is empty if a trace lacks
    these vectors.
    """

    def alike(x: Array, y: Array) -> Array:
        parts = (x, at_a), (y, at_b)
        return cosine(*(state[list(at)].astype(np.float64).mean(axis=0) for state, at in parts))

    return measure_by_layer(a, b, alike)


def measure_by_layer(a: Trace, b: Trace, measure: Callable[[Array, Array], Any]) -> Array:
    """Compute a measure of two traces' vectors `(T, D)` at the embeddings and after each layer.

    The result is `(num_layers + 1,)`, or empty if a trace lacks these vectors.

    Raises:
        ValueError: the models have different numbers of layers or vectors of different sizes.
    """
    need_alike("layers", a, a.num_layers, b, b.num_layers)
    try:
        states = list(zip(a.hidden_states, b.hidden_states, strict=True))
    except KeyError:
        return np.zeros(0)
    need_alike("numbers in a vector", a, states[0][0].shape[-1], b, states[0][1].shape[-1])
    return np.array([float(measure(x[0], y[0])) for x, y in states])


def need_alike(what: str, a: Trace, first: int, b: Trace, second: int) -> None:
    """Raise an error if two traces differ in a size, such as the number of layers."""
    if first != second:
        named = [f"({trace.model}) " if trace.model else "" for trace in (a, b)]
        raise value_error(
            f"the first trace {named[0]}has {first} {what}, but the second "
            f"{named[1]}has {second}: trace both with models of the same size"
        )


def words_before_and_after(
    trace: Trace, heads: Heads | None = None
) -> tuple[Array, Array, list[str]] | None:
    """Return `(static, contextual, names)` of a text: vectors `(n, D)`, without special tokens.

    If words are shown instead of tokens, a word's vector is the mean over its tokens. Return None
    if the vectors are missing or have no plane (see `has_plane`).
    """
    ends = static_and_last(trace)
    if ends is None:
        return None
    axis, spans = (trace, None) if heads is None else (heads.queries, heads.queries.spans)
    rows = [i for i, special in enumerate(axis.special) if not special] or range(len(axis.tokens))
    before, after = (mean_vectors(state[0], spans)[rows] for state in ends)
    if not (has_plane(before) and has_plane(after)):
        return None
    return before, after, [axis.tokens[i] for i in rows]


MOST_LABELS = 20  # the maximum number of names beside points


class Plane(NamedTuple):
    """The positions of two sets of vectors in a plane.

    Attributes:
        original: `(n, 2)`, the positions of the first set.
        contextual: `(n, 2)`, the positions of the second set.
        explained: `(2,)`, the share of the variance along each axis.
        axes: `(2, D)`, the two directions, each of length 1.
    """

    original: Array
    contextual: Array
    explained: Array
    axes: Array


def fit_plane(original: Any, contextual: Any, *, unit: bool = False) -> Plane:
    """Find the two directions of largest variance in the union of two sets of vectors.

    Each set is first centred on its own mean, so that the plane shows how vectors differ within the
    sets, not how far apart the sets are. The largest component of each direction is positive, so
    the same vectors always give the same picture. The computation uses NumPy's singular value
    decomposition in float64.

    Args:
        original: `(n, D)`, the vectors of n words before attention, all finite.
        contextual: `(n, D)`, the vectors of the same words after attention.
        unit: whether each vector is scaled to length 1 first, so that only directions count, as in
            a cosine.

    >>> plane = fit_plane([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0]], [[0.0, 5.0, 0.0], [4.0, 5.0, 0.0]])
    >>> plane.contextual.tolist(), plane.explained.tolist()
    ([[-2.0, 0.0], [2.0, 0.0]], [1.0, 0.0])
    """
    before, after = (
        _vectors(part, name, unit)
        for part, name in ((original, "original"), (contextual, "contextual"))
    )
    if before.shape != after.shape:
        raise value_error(
            f"original has shape {before.shape} and contextual has shape {after.shape}: "
            "both must hold the same number of vectors of the same size"
        )
    if unit:
        before, after = unit_vectors(before), unit_vectors(after)
    n, size = before.shape
    scale = max(np.abs(before).max(), np.abs(after).max())
    before, after = before - before.mean(axis=0), after - after.mean(axis=0)
    together = np.concatenate([before, after])  # (2n, D)
    _, lengths, directions = np.linalg.svd(together, full_matrices=False)
    axes, variance = np.zeros((2, size)), np.zeros(2)
    count = min(2, len(directions))
    shares = (lengths / (lengths[0] or 1)) ** 2
    axes[:count], variance[:count] = directions[:count], shares[:count] / (shares.sum() or 1)
    largest = np.abs(axes).argmax(axis=1)
    axes *= np.where(axes[[0, 1], largest] < 0, -1.0, 1.0)[:, None]
    # if all vectors are equal, centring leaves only rounding errors, which have no direction
    if lengths[0] <= _ROUNDING * scale * np.sqrt(together.size):
        return Plane(np.zeros((n, 2)), np.zeros((n, 2)), np.zeros(2), np.zeros((2, size)))
    return Plane(before @ axes.T, after @ axes.T, variance, axes)


_ROUNDING = 1e-14


def unit_vectors(vectors: Array) -> Array:
    """Scale vectors `(n, D)` to length 1, in float64; a vector of zeros stays as it is.

    >>> unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    vectors = vectors.astype(np.float64)
    for norm in (np.inf, 2):  # first divide by the largest number, so that squares do not overflow
        sizes = np.linalg.norm(vectors, norm, axis=1, keepdims=True)
        vectors = np.divide(vectors, sizes, out=np.zeros_like(vectors), where=sizes != 0)
    return vectors


def _vectors(x: Any, name: str, unit: bool) -> Array:
    array = as_array(x, name=name)
    if array.ndim != 2 or 0 in array.shape:
        raise value_error(f"{name} has shape {array.shape}; pass one or more vectors, (n, D)")
    array = array.astype(np.float64)
    if not (np.isfinite(array).all() if unit else has_plane(array)):
        raise value_error(f"{name} {NO_PLANE}")
    return array


NO_PLANE = "has NaN, infinity or a number beyond 1e150; pass smaller finite numbers"


def has_plane(vectors: Array) -> bool:
    """Return whether all numbers are finite and small enough that their squares can be summed."""
    return float(np.abs(vectors).max(initial=0.0)) <= 1e150  # False if a number is NaN


def named_points(before: Array, after: Array, tokens: Sequence[str]) -> list[int]:
    """Choose at most 20 points to label: the points that moved furthest, at most one per word."""
    order = np.argsort(-np.linalg.norm(after - before, axis=1), kind="stable").tolist()
    if len(order) > MOST_LABELS:
        first: dict[str, int] = {}
        for i in order:
            first.setdefault(tokens[i], i)
        order = list(first.values())[:MOST_LABELS]
    return sorted(order)


_MOST_PAIRS = 20


@dataclass(frozen=True, eq=False)
class Stage:
    """The word vectors at one stage of the forward pass.

    Attributes:
        name: the stage, for example "after layer 3".
        points: `(n, 2)`, the positions in the plane.
        held: the share of the vectors' variance that the plane shows.
        cosine: `(n,)`, the cosine between each word's static vector and its vector at this stage.
    """

    name: str
    points: Array
    held: float
    cosine: Array


@dataclass(frozen=True, eq=False)
class SharedWord:
    """A word that two sentences share, and the similarity of its vectors.

    Attributes:
        word: the word.
        a: the word's first occurrence in one sentence, as an index into `Shift.tokens`.
        b: the word's first occurrence in the other sentence, as an index into `Shift.tokens`.
        cosine: `(stages + 1,)`, the cosine of the static vectors, then the cosine at each stage.
    """

    word: str
    a: int
    b: int
    cosine: Array


@dataclass(frozen=True, eq=False)
class Shift:
    """The positions of words in a plane: before attention, and at each stage of the forward pass.

    All vectors are scaled to length 1, as in a cosine. The plane is fitted to the static vectors
    and to the vectors of the last stage; each set is centred on its own mean over all sentences
    (see `fit_plane`). All stages are centred in the same way and drawn in the same plane, so
    only the vectors move from stage to stage. `Stage.held` is the share of a stage's variance that
    the plane shows.

    Attributes:
        sentences: the sentences.
        tokens: the n tokens of all sentences, without special tokens.
        of: `(n,)`, the index of each token's sentence.
        before: `(n, 2)`, the positions of the static vectors in the plane.
        explained: `(2,)`, the share of the variance along each axis.
        stages: the stages, from the embeddings to the last layer.
        labelled: the positions of the labelled tokens (the 20 or fewer tokens that moved furthest).
        pairs: the words that two sentences share.
    """

    sentences: list[str]
    tokens: list[str]
    of: list[int]
    before: Array
    explained: Array
    stages: list[Stage]
    labelled: list[int]
    pairs: list[SharedWord]

    def distances(self, stage: Stage) -> Array:
        """Compute how far each word at `stage` is from its static vector in the plane, `(n,)`."""
        return np.asarray(np.linalg.norm(stage.points - self.before, axis=1))


def shift_of_traces(traces: Sequence[Trace], *, pieces: bool = False) -> Shift:
    """Compute the shift of the words in one or more texts, each traced with the same model.

    A word's vector is the mean of the vectors of its subwords, unless `pieces` is true.

    Raises:
        ValueError: a trace lacks the static vectors or the vectors after the last layer; or the
            traces come from different models.
    """
    tokens, numbers, parts = [], [], []
    for number, trace in enumerate(traces):
        units = [(i, i + 1, token) for i, token in enumerate(trace.tokens)]
        spans = units if pieces else spans_of(trace.tokens, trace.special)
        words = [span for span in spans if not trace.special[span[0]]] or spans
        tokens += [name for _, _, name in words]
        numbers += [number] * len(words)
        with np.errstate(over="ignore"):
            states = {
                name: np.stack([state[0][first:end].mean(0) for first, end, _ in words])
                for name, state in _states(trace).items()
            }
        parts.append(states)
    if len({(*part, part["before"].shape[1]) for part in parts}) > 1:
        raise value_error("the traces come from different models: trace all texts with one model")
    states = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name, state in states.items():
        if not has_plane(state):
            raise value_error(f"a vector {name} {NO_PLANE}")
    sentences = [quote_words(t.text, t.tokens, t.special) for t in traces]
    return _shift(states, tokens, numbers, sentences)


def shift_of_vectors(original: Any, contextual: Any, tokens: list[str]) -> Shift:
    """Compute the shift from vectors `(n, D)` before attention to the vectors after it.

    Raises:
        ValueError: the shapes do not match, or a number is not finite.
    """
    states = {
        name: unit_vectors(_vectors(part, argument, unit=True))
        for name, argument, part in (
            ("before", "original", original),
            ("in context", "contextual", contextual),
        )
    }
    if len(tokens) != len(states["before"]):
        raise value_error(
            f"there are {len(states['before'])} vectors, but {len(tokens)} tokens; "
            "pass one token for each vector"
        )
    sentence = quote_words("", tokens, [False] * len(tokens))
    return _shift(states, tokens, [0] * len(tokens), [sentence])


def _shift(
    states: dict[str, Array], tokens: list[str], numbers: list[int], sentences: list[str]
) -> Shift:
    """Put the vectors of all stages into the plane of the first and the last stage."""
    before, *later = states.values()
    plane = fit_plane(before, later[-1], unit=True)
    stages = []
    for name, state in list(states.items())[1:]:
        centred = unit_vectors(state)
        centred -= centred.mean(axis=0)
        points = centred @ plane.axes.T
        held = float((points**2).sum() / ((centred**2).sum() or 1))
        stages.append(Stage(name, points, min(held, 1.0), cosine(before, state)))
    return Shift(
        sentences=sentences,
        tokens=tokens,
        of=numbers,
        before=plane.original,
        explained=plane.explained,
        stages=stages,
        labelled=named_points(plane.original, plane.contextual, tokens),
        pairs=_pairs(tokens, numbers, [before, *later]),
    )


def _pairs(tokens: list[str], numbers: list[int], states: list[Array]) -> list[SharedWord]:
    """Find the words that two sentences share; use each word's first occurrence in a sentence."""
    positions: dict[str, dict[int, int]] = {}  # keyed by word and sentence
    for position, (token, sentence) in enumerate(zip(tokens, numbers, strict=True)):
        if not is_piece(token) and not is_punctuation(token):
            positions.setdefault(token, {}).setdefault(sentence, position)
    shared = [
        (word, *two) for word, at in positions.items() for two in combinations(at.values(), 2)
    ]
    return [
        SharedWord(word, a, b, np.array([float(cosine(state[a], state[b])) for state in states]))
        for word, a, b in shared[:_MOST_PAIRS]
    ]


def _states(trace: Trace) -> dict[str, Array]:
    """Return the static vectors, then the vectors after each traced layer, `(1, T, D)`."""
    if static_and_last(trace) is None:
        raise value_error(
            "the trace lacks hook_embed or the vectors after the last layer; "
            "pass model.trace(text), or show this trace's weights with qkv.show(trace)"
        )
    states = {"before": trace["embed"]}
    if ("resid_pre", 0) in trace:
        states["embeddings"] = trace["resid_pre", 0]
    later = {f"after layer {n}": state_after(trace, n) for n in range(trace.num_layers)}
    return states | {name: state for name, state in later.items() if state is not None}
