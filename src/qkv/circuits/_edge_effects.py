"""Measure or estimate the effects of edges between heads, MLPs and logits; find circuits."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, message, public_call, type_error, value_error
from qkv._suggest import nearest, suggestion
from qkv.arrays import Array, quote, real_number, whole_number
from qkv.circuits._pairs import Metric, Pairs, read_pairs
from qkv.circuits._reader import Names, check_words
from qkv.circuits._residual import (
    INPUTS,
    Residual,
    Wiring,
    check_residual,
    head_of,
    streams_of,
    ungroup,
)
from qkv.circuits.results import Edge, Graph, graph_of_pairs, mean_of_pairs, node_of
from qkv.layers.base import quiet, starts_of
from qkv.layers.block import BlockSaved
from qkv.models.model import Model
from qkv.models.tasks.gradient import check_type, rows_and_slopes
from qkv.ops.linear import linear
from qkv.trace.recorder import GradientRecorder, unpad_rows

_METHODS = {"exact": 0, "eap": 1, "eap-ig": 5}  # The number of gradients to average.
_SAMPLE = 200  # The number of edges whose estimates are compared with exact scores.
_SAMPLED = 4  # The maximum number of pairs to which these edges belong.


@public_call("edges")
def edges(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    metric: Metric,
    method: str = "exact",
    positions: Any = None,
    only: Iterable[Sequence[Any]] | None = None,
) -> Graph:
    """Measure the effect of each edge between two parts of a model on a metric.

    The parts of a model are its embeddings, heads, MLPs and logits. If norms come before attention
    and MLPs, each part reads the sum of the outputs of all earlier parts. An edge carries the
    output of one part (the sender) into the input of a later part (the receiver). A head has three
    inputs: for its queries, its keys and its values. If several query heads share a key head, each
    query head is treated as if it had its own keys and values.

    For an exact score, one edge of the clean run is changed: the receiver reads the sender's output
    from the corrupted run, and all later parts are recomputed. The score is the resulting change in
    the metric. (`patch` does the opposite: it puts activations of `clean` into `corrupted`.) Many
    edges are scored in one batch. Parts before the receiver are not recomputed. In a decoder,
    positions before the first token that differs between the texts are not recomputed either.

    Args:
        model: a model with an LM head, and with norms before attention and MLPs (GPT-2, Llama).
            The model may also have norms after attention and MLPs (Gemma). The model's blocks may
            compute attention and the MLP in parallel (GPT-NeoX).
        clean: one text, or the ids of its tokens; or a list of texts. For several texts, each score
            is the mean over the pairs of texts.
        corrupted: another text, with the same number of tokens as `clean`; or a list with as many
            texts as `clean`.
        metric: (position, token) for one logit, or (position, token, other token) for the
            difference of two logits. Negative positions count from the end. A token is an id or a
            one-token string. The metric can also be one of `metrics`, or another object with the
            methods `value` and `gradient`, which take logits (1, T, V). If the method is "exact",
            the metric can also be a function that turns logits (1, T, V) into a number. For several
            pairs, a list may give each pair its own metric.
        method: "exact", "eap" or "eap-ig". "eap" is edge attribution patching: the estimate of a
            score is `(corrupted - clean) * gradient`, the change in the sender's output times the
            metric's gradient with respect to the receiver's input in the clean run. One backward
            pass covers all edges. "eap-ig" averages 5 gradients, at evenly spaced points between
            the corrupted and the clean embeddings.
        positions: as for `patch`. With positions, the senders and receivers are parts at these
            positions, such as "mlp.3@subject": an edge carries the sender's output only at this
            position.
        only: the edges to score, as pairs `(sender, receiver)` or as edges of another graph, such
            as `estimates.top(2000)`; by default all edges.

    Returns:
        A `Graph` of all edges, or of those in `only`. For estimated scores, `.correlation` is
        Pearson's correlation of the estimated and the exact scores of 200 sampled edges.

    Raises:
        KeyError: a sender or a receiver in `only` does not exist.
        TypeError: an argument has a wrong type, or the metric does not return a number. "eap" and
            "eap-ig" also reject a metric that is a function, and a model in half precision.
        ValueError: the two texts of a pair have different numbers of tokens, or the lists have
            different lengths; the method, position or token does not exist; or the metric returns
            an array. Models are also rejected if they have no LM head, have norms only after
            attention and MLPs (BERT), or normalize the queries of all heads together (OLMo 2).

    Source:
        Exact: Wang et al. 2022, "Interpretability in the Wild", and Conmy et al. 2023, "Towards
        Automated Circuit Discovery for Mechanistic Interpretability". Estimates: Syed, Rager and
        Conmy 2023, "Attribution Patching Outperforms Automated Circuit Discovery", and Hanna,
        Pezzelle and Belinkov 2024, "Have Faith in Faithfulness", equation 6.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> graph = edges(model, *texts, metric=(-1, 7), method="eap")
    >>> graph.nodes[0], graph.nodes[-1], graph.correlation > 0.5
    ('embed', 'logits', True)
    >>> exact = edges(model, *texts, metric=(-1, 7), only=graph.top(20))
    >>> {edge[:2] for edge in exact.edges} == {edge[:2] for edge in graph.top(20)}
    True
    """
    model = _check_method(model, method)
    slopes = method != "exact"
    pairs = read_pairs(model, clean, corrupted, metric, positions, slopes=slopes)
    return _graph(pairs, method, None if only is None else list(only))


@public_call("path")
def path(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    sender: str,
    receivers: Names,
    metric: Metric,
    positions: Any = None,
) -> Any:
    """Path patching: measure the effect of a sender on a metric through chosen receivers.

    In the clean run, the chosen receivers read the sender's output from the corrupted run, and all
    later parts are recomputed. The effect is the resulting change in the metric. With one receiver,
    the effect is the exact score of the edge from the sender to the receiver. With several
    receivers, the effect includes changes that earlier receivers pass on to later receivers.

    Args:
        model: as for `edges`.
        clean: as for `edges`.
        corrupted: as for `edges`.
        sender: the name of a part ("embed", "attn.{layer}.{head}" or "mlp.{layer}").
        receivers: one or more names of receivers: "attn.{layer}.{head}.q" (also ".k" and ".v"),
            "mlp.{layer}" or "logits".
        metric: as for `edges`.
        positions: as for `patch`. The receivers read the sender's output from the corrupted run
            only at these positions.

    Returns:
        The change in the metric. For several pairs, the mean of the changes, whose attribute
        `pairs` holds the change for each pair.

    Raises:
        KeyError: the sender or a receiver does not exist; the message lists the nearest names.
        TypeError: as for `edges`.
        ValueError: as for `edges`; or the model has no edge from the sender to a receiver.

    Source:
        Wang et al. 2022, "Interpretability in the Wild", section 3.1; Goldowsky-Dill et al. 2023,
        "Localizing Model Behavior with Path Patching".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> score = path(model, *texts, sender="mlp.0", receivers="logits", metric=(-1, 7))
    >>> graph = edges(model, *texts, metric=(-1, 7))
    >>> bool(abs(score - graph.score("mlp.0", "logits")) < 1e-4)
    True
    """
    names = [receivers] if isinstance(receivers, str) else receivers
    if not isinstance(names, Iterable):
        raise type_error(f"`receivers` is {quote(receivers)}; pass names, for example ['mlp.3']")
    wiring = Wiring(_check_method(model, "exact").layers)
    number = wiring.senders.index(_check_node(sender, wiring.senders, "sender"))
    chosen = {}
    for name in names:
        count = wiring.receivers[_check_node(name, list(wiring.receivers), "receivers")].senders
        _check_edge(wiring, number, name)
        chosen[name] = count
    if not chosen:
        raise value_error("`receivers` is empty; pass at least one name, for example ['mlp.3']")
    pairs, effects = read_pairs(model, clean, corrupted, metric, positions), []
    for stream in (stream for batch in streams_of(pairs) for stream in batch):
        ends = [(number, name, place) for name in chosen for place in pairs.places or [""]]
        effects.append(stream.metric(_masks(stream, ends)) - stream.base)
    return mean_of_pairs(effects, of="change of the metric", title="Path patching")


@public_call("discover")
def discover(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    metric: Metric,
    threshold: float | None = None,
    edges: int | None = None,
    method: str = "exact",
    positions: Any = None,
    held_out: Any = None,
) -> Graph:
    """Find the circuit of a metric: the edges with the largest effects, and their faithfulness.

    To measure `.faithfulness`, the clean text runs once more, and the edges outside the circuit
    carry the outputs of the corrupted run. `.faithfulness` is the metric of this run, scaled so
    that the corrupted run scores 0 and the clean run scores 1; it can be below 0 or above 1. Only
    edges on a path from "embed" to "logits" affect this run, so a circuit has no other edges. For
    several pairs, all metrics are averaged before they are scaled.

    Args:
        model: as for the function `edges`.
        clean: as for the function `edges`.
        corrupted: as for the function `edges`.
        metric: as for the function `edges`.
        threshold: choose the edges whose absolute score is at least `threshold`.
        edges: choose the edges with the largest absolute scores, until this many of the chosen
            edges are on a path from "embed" to "logits". The circuit has fewer edges if adding the
            next edge would put too many edges on such paths. Pass either `threshold` or `edges`.
        method: as for the function `edges`.
        positions: as for the function `edges`. While `.faithfulness` is measured, the outputs of
            parts at all other positions come from the corrupted run.
        held_out: the pairs of texts on which to measure `.faithfulness`, instead of the texts of
            the search: `(clean, corrupted)`, `(clean, corrupted, metric)` or `(clean, corrupted,
            metric, positions)`.

    Returns:
        A `Graph` of the kept edges.

    Raises:
        TypeError: as for the function `edges`; `threshold` is not a number; or the argument
            `edges` is not a whole number.
        ValueError: as for the function `edges`; the arguments `threshold` and `edges` are both
            given or both missing; `threshold` is below 0; the graph has fewer than `edges` edges;
            or the metric is the same in both runs.

    Source:
        Conmy et al. 2023, "Towards Automated Circuit Discovery for Mechanistic Interpretability";
        Syed, Rager and Conmy 2023. Faithfulness: Hanna, Pezzelle and Belinkov 2024, "Have Faith in
        Faithfulness", section 3.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> circuit = discover(model, *texts, metric=(-1, 7), edges=20, method="eap-ig")
    >>> whole = discover(model, *texts, metric=(-1, 7), threshold=0)
    >>> 0 < len(circuit.edges) <= 20, whole.faithfulness > 0.999
    (True, True)
    >>> held_out = ["the queen: she", "a queen: she"], ["the king: she", "a king: she"]
    >>> several = discover(
    ...     model, ["queen: a female", "queens"], ["king: a female", "kings"], metric=(-1, 7),
    ...     edges=20, method="eap", held_out=held_out,
    ... )  # fmt: skip
    >>> len(several.pairs), several.faithfulness.pairs.shape
    (2, (2,))
    """
    if (threshold is None) == (edges is None):
        raise value_error(
            "pass either `threshold` (the smallest absolute score) or `edges` (the number of edges)"
        )
    least = 0.0 if threshold is None else real_number(threshold, name="threshold")
    if not least >= 0:
        raise value_error(f"`threshold` is {quote(threshold)}; pass a non-negative number")
    model = _check_method(model, method)
    wiring = Wiring(model.layers)
    pairs = read_pairs(model, clean, corrupted, metric, positions, slopes=method != "exact")
    most = sum(one.senders for one in wiring.receivers.values()) * max(1, len(pairs.places))
    if edges is not None and whole_number(edges, name="edges", least=0) > most:
        raise value_error(
            f"`edges` is {edges}, but {model.name} has only {most} edges; pass at most {most}"
        )
    others = pairs if held_out is None else _held_out(model, held_out, metric, positions)
    if others.places.keys() != pairs.places.keys():
        raise value_error(
            f"`positions` has the names {', '.join(pairs.places)}, but `held_out` has "
            f"{', '.join(others.places)}; pass the same names in both"
        )
    base, low = (values.mean() for values in others.baselines())
    if base == low:
        raise value_error(
            f"`metric` is {base:.6g} in both the clean and the corrupted run, so "
            "there is no difference to explain: choose another metric or other texts"
        )
    whole = _graph(pairs, method)
    strong = [edge for edge in whole.edges if abs(edge.score) >= least]
    circuit = whole.select(_strongest_paths(strong, edges, wiring, _moves(pairs)))
    numbers = {name: number for number, name in enumerate(wiring.senders)}
    parts = [(edge.sender.partition("@"), edge.receiver.partition("@")) for edge in circuit.edges]
    kept = [(numbers[one[0]], other[0], one[2]) for one, other in parts]
    runs = []
    for stream in (stream for batch in streams_of(others) for stream in batch):
        left = {name: ~mask for name, mask in _masks(stream, kept, wiring.receivers).items()}
        runs.append((stream.metric(left), stream.base, stream.low))
    found, bases, lows = np.array(runs).T
    return replace(circuit, faithfulness=_share(found, bases, lows))


def _masks(
    stream: Residual, ends: Iterable[tuple[int, str, str]], every: Iterable[str] = ()
) -> dict[str, Array]:
    """Return masks of edges in the form that `Residual.metric` accepts.

    Args:
        stream: the runs of a pair.
        ends: the edges: the index of the sender, the name of the receiver, and the position.
        every: receivers that get a mask, even if no edge ends there.
    """
    receivers, masks = stream.wiring.receivers, dict[str, Array]()
    width = stream.deltas.shape[1] if stream.pair.places else 1
    for name in every:
        masks[name] = np.zeros((receivers[name].senders, width), bool)
    for number, name, place in ends:
        if name not in masks:
            masks[name] = np.zeros((receivers[name].senders, width), bool)
        index = stream.index(place) if place else 0
        if index is not None:
            masks[name][number, index] = True
    return masks


def _share(found: Array, base: Array, low: Array) -> Any:
    """Scale the metrics (n,) of n pairs so that the corrupted texts score 0 and the clean texts 1.

    The mean is the ratio of means, because the ratio of a pair is not stable if its two texts have
    almost equal metrics.
    """
    with np.errstate(all="ignore"):
        share = mean_of_pairs((found - low) / (base - low), of="faithfulness")
    if len(found) > 1:
        share[...] = (found - low).mean() / (base - low).mean()
    return share


def _held_out(model: Model, given: Any, metric: Any, positions: Any) -> Pairs:
    """Read the pairs on which faithfulness is measured."""
    if not isinstance(given, tuple | list) or len(given) not in (2, 3, 4):
        raise type_error(
            f"`held_out` is {quote(given)}; pass (clean, corrupted), (clean, corrupted, metric) or "
            "(clean, corrupted, metric, positions)"
        )
    try:
        return read_pairs(model, *given, *(metric, positions)[len(given) - 2 :])
    except (TypeError, ValueError) as error:
        raise invalid(type(error), f"`held_out`: {message(error)}") from error


Moves = Mapping[str, Sequence[str]]  # for each position, the later positions that read a key there


def _moves(pairs: Pairs) -> Moves:
    """Return, for each position, the positions of the queries that may attend to it in a pair."""
    causal = pairs.model.generates
    return {
        name: [other for other, at in pairs.places.items() if not causal or (at >= indices).any()]
        for name, indices in pairs.places.items()
    }


def _strongest_paths(
    edges: Sequence[Edge], most: int | None, wiring: Wiring, moves: Moves
) -> list[Edge]:
    """Return the edges on paths in the longest prefix of `edges` with at most `most` such edges."""
    if most is None:
        return _on_paths(edges, wiring, moves)
    end = most + 1
    while end < len(edges) and len(_on_paths(edges[:end], wiring, moves)) <= most:
        end *= 2
    counts = range(1, min(end, len(edges)) + 1)
    last = bisect_right(counts, most, key=lambda n: len(_on_paths(edges[:n], wiring, moves)))
    return _on_paths(edges[:last], wiring, moves)


def _on_paths(edges: Sequence[Edge], wiring: Wiring, moves: Moves) -> list[Edge]:
    """Return the edges on a path from "embed" to "logits", in the same order."""
    rank = {name: number for number, name in enumerate(wiring.receivers)}

    def outputs(receiver: str) -> list[str]:
        """Return the parts, at their positions, whose outputs depend on a receiver."""
        name, at, place = receiver.partition("@")
        places = moves[place] if at and name[-2:] in (".k", ".v") else [place]
        return [node_of(name) + at + other for other in places]

    reached = {name: outputs(name) for name in {edge.receiver for edge in edges}}
    ordered = sorted(edges, key=lambda edge: rank[edge.receiver.partition("@")[0]])
    ahead = {edge.sender for edge in edges if edge.sender.startswith("embed")}
    behind = {edge.receiver for edge in edges if edge.receiver.startswith("logits")}
    for edge in ordered:
        if edge.sender in ahead:
            ahead.update(reached[edge.receiver])
    for edge in reversed(ordered):
        if behind.intersection(reached[edge.receiver]):
            behind.add(edge.sender)
    return [
        edge
        for edge in edges
        if edge.sender in ahead and behind.intersection(reached[edge.receiver])
    ]


def _check_method(model: Any, method: Any) -> Model:
    """Return the model without shared key heads; raise an error if the method or model is wrong."""
    if not isinstance(method, str) or method not in _METHODS:
        raise value_error(f"`method` is {quote(method)}: choose among {', '.join(_METHODS)}")
    return ungroup(check_residual(check_words(model)))


def _check_edge(wiring: Wiring, number: int, receiver: str) -> None:
    """Raise an error if a receiver does not read the sender with this number."""
    count = wiring.receivers[receiver].senders
    if number >= count:
        raise value_error(
            f"{receiver} does not read {wiring.senders[number]}, which the model computes later or "
            f"in parallel: the senders of {receiver} are {wiring.senders[0]} to "
            f"{wiring.senders[count - 1]}"
        )


def _chosen(wiring: Wiring, places: Sequence[str], only: list[Any] | None) -> list[dict[str, Any]]:
    """Return the indices of each receiver's senders, for each position."""
    if only is None:
        every = {name: np.arange(one.senders) for name, one in wiring.receivers.items()}
        return [every for _ in places]
    found: list[dict[str, Any]] = [{} for _ in places]
    for edge in only:
        if not isinstance(edge, Sequence) or isinstance(edge, str) or len(edge) < 2:
            raise type_error(f"`only` has {quote(edge)}; pass pairs (sender, receiver)")
        (sender, _, place), (receiver, _, other) = (str(end).partition("@") for end in edge[:2])
        number = wiring.senders.index(_check_node(sender, wiring.senders, "only"))
        _check_edge(wiring, number, _check_node(receiver, list(wiring.receivers), "only"))
        if place != other or place not in places:
            raise value_error(
                f"`only` has the edge from {edge[0]} to {edge[1]}; choose two ends at the same "
                f"position (known positions: {', '.join(places) or 'none'})"
            )
        found[places.index(place)].setdefault(receiver, set()).add(number)
    if not any(found):
        raise value_error("`only` is empty; pass at least one edge, such as ('mlp.0', 'logits')")
    return [{name: np.array(sorted(one[name])) for name in one} for one in found]


def _graph(pairs: Pairs, method: str, only: list[Any] | None = None) -> Graph:
    """Return the graph of all edges, or of some edges, scored by the mean over the pairs."""
    wiring = Wiring(pairs.model.layers)
    steps, places = _METHODS[method], list(pairs.places) or [""]
    chosen = [*zip(places, _chosen(wiring, places, only), strict=True)]
    count = sum(len(numbers) for _, one in chosen for numbers in one.values())
    scores, correlation = np.empty((len(pairs), count)), None
    baselines = list[tuple[float, float]]()
    for batch in streams_of(pairs, 6 * max(2, steps)):
        if method == "exact":
            found = [[stream.at(place).effects(one) for place, one in chosen] for stream in batch]
        else:
            found = [
                [
                    {name: whole[name][numbers] for name, numbers in one.items()}
                    for whole, (_, one) in zip(each, chosen, strict=True)
                ]
                for each in estimate_effects(batch, steps, places)
            ]
        for stream, each in zip(batch, found, strict=True):
            scores[len(baselines)] = np.concatenate([x for one in each for x in one.values()])
            baselines.append((stream.base, stream.low))
        del batch, stream, found  # frees the pair's arrays before the next batch runs
    edges = [
        (name, int(number), place)
        for place, one in chosen
        for name, numbers in one.items()
        for number in numbers
    ]
    if method != "exact":

        def streams(which: list[int]) -> Iterable[Residual]:
            return (stream for batch in streams_of(pairs, which=which) for stream in batch)

        correlation = _correlation(scores, edges, streams)
    clean, corrupted = np.array(baselines).T
    ends = {place: f"@{place}" * bool(place) for place in places}
    nodes = [node + end for node in [*wiring.senders, "logits"] for end in ends.values()]
    named = [
        (wiring.senders[number] + ends[place], name + ends[place]) for name, number, place in edges
    ]
    return graph_of_pairs(nodes, named, scores, method, clean, corrupted, correlation)


def _correlation(
    scores: Array,
    edges: Sequence[tuple[str, int, str]],
    streams: Callable[[list[int]], Iterable[Residual]],
) -> float:
    """Return Pearson's correlation between estimated and exact scores on a sample of edges.

    Half of the sample consists of the edges with the largest estimates. The other half is chosen
    at random from the remaining edges. In the correlation, the randomly chosen edges represent
    all edges from which they were chosen: if 100 edges are chosen from 1,000 edges, each of the 100
    edges counts ten times. The edges are those of at most `_SAMPLED` pairs; an edge of two pairs
    counts as two edges.

    Args:
        scores: the estimates (n, edges) of n pairs.
        edges: the receiver, the index of the sender, and the position of each edge.
        streams: a function from the indices of some pairs to their streams.
    """
    sampled = np.unique(np.linspace(0, len(scores) - 1, _SAMPLED).astype(int))
    estimates = scores[sampled].ravel()
    order, half = np.argsort(-np.abs(estimates), kind="stable"), _SAMPLE // 2
    others = np.random.default_rng(0).permutation(order[half:])[:half]
    chosen = np.sort([*order[:half], *others])
    counts = np.where(np.isin(chosen, others), len(order[half:]) / max(1, len(others)), 1)
    rows, columns = np.divmod(chosen, len(edges))
    which, exact = np.unique(rows), list[Array]()
    for row, stream in zip(which, streams(sampled[which].tolist()), strict=True):
        wanted: dict[str, dict[str, list[int]]] = {}
        for name, number, place in (edges[one] for one in columns[rows == row]):
            wanted.setdefault(place, {}).setdefault(name, []).append(number)
        for place, senders in wanted.items():
            arrays = {name: np.array(numbers) for name, numbers in senders.items()}
            exact += stream.at(place).effects(arrays).values()
    values = estimates[chosen], np.concatenate(exact)
    with np.errstate(all="ignore"):
        one, other = (each - np.average(each, weights=counts) for each in values)
        squares = (counts * one**2).sum() * (counts * other**2).sum()
        return float((counts * one * other).sum() / np.sqrt(squares))


def _check_node(name: Any, names: Sequence[str], argument: str) -> str:
    """Return the name if it is known; otherwise raise an error with the nearest names."""
    if not isinstance(name, str):
        raise type_error(
            f"{argument}: {quote(name)} is not a name; pass names, for example 'mlp.3'"
        )
    if name not in names:
        near = suggestion(nearest(name, names), names, "the nearest names are")
        raise invalid(KeyError, f"{argument}: {quote(name)} is unknown; {near}")
    return name


@quiet
def estimate_effects(
    streams: Sequence[Residual], steps: int, places: Sequence[str] = ("",)
) -> list[list[dict[str, Array]]]:
    """Estimate the effect of every edge, for each pair and each position.

    The result holds float64 arrays (senders,), keyed by receiver.

    An estimate is the sum of the elementwise products of two arrays: the sender's corrupted output
    minus its clean output, and the gradient of the metric with respect to the receiver's input.

    Args:
        streams: n pairs, each with its clean run and its corrupted run.
        steps: the number m of gradients to average for each pair. The gradients are computed at
            evenly spaced points between the corrupted and the clean embeddings; a single gradient
            is computed in the clean run.
        places: the names of the positions; "" stands for all positions together.
    """
    model, layers = streams[0].model, streams[0].layers
    network, dtype = model.network, model.network.dtype
    check_type(model.parameters.values(), model.name)
    lengths = [stream.length for stream in streams for _ in range(steps)]
    cu = starts_of(lengths)
    shares = np.arange(1, steps + 1)[:, None, None] / steps
    points = []
    for pair in (stream.pair for stream in streams):
        clean, corrupted = (run["resid_pre", 0] for run in (pair.clean, pair.corrupted))
        points.append((corrupted + shares * (clean - corrupted)).reshape(-1, model.dim))
    x, inputs = np.concatenate(points).astype(dtype, copy=False), list[Array]()  # (total, D)
    settings = network.settings(max(lengths))
    for layer, block in enumerate(layers):
        inputs.append(x)
        x, _ = block.run(x, cu=cu, **settings[layer])
    effects: list[list[dict[str, Array]]] = [[{} for _ in places] for _ in streams]

    def means(slope: Array) -> list[Array]:
        """Return the mean gradient (n, D) of each pair, given those of all pairs (total, D)."""
        parts = np.split(slope, cu[steps:-1:steps])
        return [
            part.reshape(steps, stream.length, -1).mean(0)[stream.span]
            for stream, part in zip(streams, parts, strict=True)
        ]

    def score(names: Sequence[str], slopes: Sequence[list[Array]]) -> None:
        """Score the edges to some receivers, given the mean gradients for each receiver."""
        for stream, found, *own in zip(streams, effects, *slopes, strict=True):
            mean = np.stack(own)  # (receivers, n, D)
            for place, one in zip(places, found, strict=True):
                one |= zip(names, _scores(stream, mean, names[0], place), strict=True)

    grad = _logit_slopes(streams, steps, x)
    score(["logits"], [means(grad)])
    asked = {*(f"attn.hook_{kind}" for kind in INPUTS), "mlp.hook_input"}
    for layer, block in reversed([*enumerate(layers)]):
        # running the layer again takes less memory than saving the values of all layers
        _, saved = block.run(inputs.pop(), cu=cu, save=True, **settings[layer])
        record = GradientRecorder(asked.__contains__, {}, {})
        grad = block.backward(grad, saved, record=record).x
        before: list[list[Array]] = []
        for kind in INPUTS:
            slopes = unpad_rows(record.arrays[f"attn.hook_{kind}"], cu)  # (total, H, d)
            heads = np.split(
                np.asarray(block.attn.parameters[f"{kind}_proj.weight"]).T, slopes.shape[1]
            )
            for head, weight in enumerate(heads):
                slope = linear(slopes[:, head], weight)
                before.append(means(_before(block.norm1, slope, saved, "norm1")))
        numbers = range(block.attn.num_heads)
        score([f"attn.{layer}.{head}.{kind}" for kind in INPUTS for head in numbers], before)
        if block.mlp is not None:
            slope = unpad_rows(record.arrays["mlp.hook_input"], cu)
            is_shared = block.parallel and block.norm2 is None
            norm = "norm1" if is_shared else "norm2"
            score([f"mlp.{layer}"], [means(_before(getattr(block, norm), slope, saved, norm))])
    return effects


_SILENT = GradientRecorder(lambda name: False, {}, {})


def _before(norm: Any, slope: Array, saved: BlockSaved, name: str) -> Array:
    """Return the gradient at the input of a norm, given the gradient (total, D) at its output."""
    if norm is None:
        return slope
    back: Array = norm.backward(slope, saved.parts[name], record=_SILENT).x
    return back


def _logit_slopes(streams: Sequence[Residual], steps: int, x: Array) -> Array:
    """Return the gradient of the metric with respect to the last layer's output `x` (total, D)."""
    network = streams[0].network
    readings = [stream.pair.metric for stream in streams for _ in range(steps)]
    tokens = None
    if all(one.tokens is not None for one in readings):
        tokens = sorted({token for one in readings for token in one.tokens or ()})
        readings = [
            one._replace(tokens=[tokens.index(token) for token in one.tokens or ()])
            for one in readings
        ]
    at, weights = rows_and_slopes(readings, [s.length for s in streams for _ in range(steps)])
    rows, last = network.finish(x[at])
    head = head_of(network, tokens)
    logits, saved = head.training_forward(rows, np.arange(len(at) + 1))
    slope = head.backward(weights(logits).astype(x.dtype), saved, record=_SILENT).x
    grad = np.zeros_like(x)
    grad[at] = network.back_to_layers(slope, last, None, _SILENT)
    return grad


def _scores(stream: Residual, slopes: Array, receiver: str, place: str) -> Array:
    """Estimate the effects (receivers, senders) of edges to receivers with the same senders.

    `receiver` is one of the receivers; `slopes` (receivers, n, D) holds the gradients at their
    inputs.
    """
    count, active = stream.wiring.receivers[receiver].senders, stream.part(place)
    deltas = stream.deltas[:count, active].reshape(count, -1)
    rows = slopes[:, active].reshape(len(slopes), -1).astype(deltas.dtype, copy=False)
    return linear(deltas, rows.T).T.astype(np.float64)
