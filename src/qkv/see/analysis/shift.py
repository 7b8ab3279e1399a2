"""How words move from static vectors to contextual ones, layer by layer in one plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis import findings
from qkv.see.analysis.plane import NO_PLANE, fit_plane, has_plane, named_points, unit_vectors
from qkv.see.analysis.words import is_punctuation, quoted, spans_of
from qkv.text.tokenized import is_piece
from qkv.trace import Trace

_MOST_PAIRS = 20


@dataclass(frozen=True, eq=False)
class Stage:
    """Where the words stand at one place in the model.

    Attributes:
        name: which place: "after layer 3".
        points: `(n, 2)` in the plane.
        held: the share of the variance of these vectors that lies in the plane.
        cosine: `(n,)`, between each word's static vector and its vector here.
    """

    name: str
    points: Array
    held: float
    cosine: Array


@dataclass(frozen=True, eq=False)
class Pair:
    """A word that two sentences share, and how alike its vectors are in both.

    Attributes:
        word: the word.
        a: its place among the tokens, the first time it occurs in one sentence.
        b: the same in the other sentence.
        cosine: `(stages + 1,)`: of the static vectors, then at each stage.
    """

    word: str
    a: int
    b: int
    cosine: Array


@dataclass(frozen=True, eq=False)
class Shift:
    """The words of one or more sentences before attention and at each stage, in one plane.

    All vectors are drawn at length 1, as a cosine compares them. The plane is that of the static
    vectors and the last stage, each centred on its own mean over all sentences (see `fit_plane`).
    The stages between are centred likewise and seen in the same plane, so that nothing moves but
    the vectors; `Stage.held` says how much of them it shows.

    Attributes:
        sentences: the sentences.
        tokens: n tokens, special ones left out.
        of: `(n,)`, which sentence each belongs to.
        before: `(n, 2)`, the static vectors.
        explained: `(2,)`, the share of the variance along each axis.
        stages: from the embeddings to the last layer.
        labelled: the places of the tokens to name: all up to 20, else those that moved furthest.
        pairs: the words that sentences share.
    """

    sentences: list[str]
    tokens: list[str]
    of: list[int]
    before: Array
    explained: Array
    stages: list[Stage]
    labelled: list[int]
    pairs: list[Pair]

    def moved(self, stage: Stage) -> Array:
        """How long each word's arrow to a stage is, `(n,)`."""
        return np.asarray(np.linalg.norm(stage.points - self.before, axis=1))


def shift_of_traces(traces: Sequence[Trace], *, pieces: bool = False) -> Shift:
    """The shift of the words of traces by one model, at least one, each of one text.

    The vector of a word that was cut into pieces is the mean of theirs, unless `pieces` are asked
    for as they are.

    Raises:
        ValueError: a trace lacks the static vectors or those after the last layer, or the traces
            are not of one model.
    """
    tokens: list[str] = []
    of: list[int] = []
    parts: list[dict[str, Array]] = []
    for number, trace in enumerate(traces):
        each = [(i, i + 1, token) for i, token in enumerate(trace.tokens)]
        spans = each if pieces else spans_of(trace.tokens, trace.special)
        kept = [span for span in spans if not trace.special[span[0]]] or spans
        tokens += [name for _, _, name in kept]
        of += [number] * len(kept)
        with np.errstate(over="ignore"):
            parts.append(
                {
                    name: np.stack([state[0][first:end].mean(0) for first, end, _ in kept])
                    for name, state in _states(trace).items()
                }
            )
    if len({(*part, part["before"].shape[1]) for part in parts}) > 1:
        raise ValueError("plot_shift: the traces are not of one model: trace all with the same")
    states = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _shift([quoted(t.text, t.tokens, t.special) for t in traces], tokens, of, states)


def _shift(
    sentences: list[str], tokens: list[str], of: list[int], states: dict[str, Array]
) -> Shift:
    """The shift of vectors `(n, D)` from the state "before" to each of the others."""
    for name, state in states.items():
        if not has_plane(state):
            raise ValueError(f"plot_shift: of the vectors {name} one {NO_PLANE}")
    before, *later = states.values()
    plane = fit_plane(before, later[-1], unit=True)
    stages = []
    for name, state in list(states.items())[1:]:
        centred = unit_vectors(state)
        centred = centred - centred.mean(axis=0)
        points = centred @ plane.axes.T
        whole = float((centred**2).sum())
        held = float((points**2).sum()) / whole if whole else 0.0
        stages.append(Stage(name, points, min(held, 1.0), findings.cosine(before, state)))
    return Shift(
        sentences=sentences,
        tokens=tokens,
        of=of,
        before=plane.original,
        explained=plane.explained,
        stages=stages,
        labelled=named_points(plane.original, plane.contextual, tokens),
        pairs=_pairs(tokens, of, [before, *later]),
    )


def _pairs(tokens: list[str], of: list[int], states: list[Array]) -> list[Pair]:
    """Each word that two sentences share, the first time it occurs in both."""
    places: dict[str, dict[int, int]] = {}  # word to sentence to place
    for place, (token, sentence) in enumerate(zip(tokens, of, strict=True)):
        if not is_piece(token) and not is_punctuation(token):
            places.setdefault(token, {}).setdefault(sentence, place)
    found = [(word, *two) for word, at in places.items() for two in combinations(at.values(), 2)]
    return [
        Pair(word, a, b, np.array([float(findings.cosine(state[a], state[b])) for state in states]))
        for word, a, b in found[:_MOST_PAIRS]
    ]


def _states(trace: Trace) -> dict[str, Array]:
    """The static vectors, then those at each place that was traced, `(1, T, D)`."""
    if findings.static_and_last(trace) is None:
        raise ValueError(
            "plot_shift: the trace lacks hook_embed or the vectors after the last layer: "
            "model.trace(text) has them, and qkv.show(trace) shows the weights that it holds"
        )
    found = {"before": trace["embed"]}
    if ("resid_pre", 0) in trace:
        found["embeddings"] = trace["resid_pre", 0]
    for layer in range(trace.num_layers):
        state = findings.state_after(trace, layer)
        if state is not None:
            found[f"after layer {layer}"] = state
    return found
