"""Measure or estimate the effects of edges between heads, MLPs and logits; find circuits."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, public_call, type_error, value_error
from qkv._suggest import nearest, suggestion
from qkv.arrays import Array, Arrays, quote, real_number, whole_number
from qkv.circuits._patching import Metric, pair_of
from qkv.circuits._reader import Names, check_words
from qkv.circuits._residual import INPUTS, Residual, Wiring, check_residual, mlp_parts
from qkv.circuits.results import Edge, Graph, node_of, strongest
from qkv.layers.base import quiet
from qkv.layers.norm import NormSaved
from qkv.models.model import Model
from qkv.ops.threads import matmul_alone
from qkv.trace.recorder import GradientRecorder

_METHODS = {"exact": None, "eap": None, "eap-ig": 5}  # The number of gradients to average.
_SAMPLE = 200  # The number of edges whose estimates are compared with exact scores.


@public_call("edges")
def edges(
    model: Model, clean: Any, corrupted: Any, *, metric: Metric, method: str = "exact"
) -> Graph:
    """Measure the effect of each edge between two parts of a model on a metric.

    The parts of a model are its embeddings, heads, MLPs and logits. If norms come before attention
    and MLPs, each part reads the sum of the outputs of all earlier parts. An edge carries the
    output of one part (the sender) into the input of a later part (the receiver). A head has three
    inputs: for its queries, its keys and its values. If several query heads share a key head, each
    query head is treated as if it had its own keys and values.

    For an exact score, one edge of the clean run is changed: the receiver reads the sender's output
    from the corrupted run, and all later parts are recomputed. The score is the resulting change of
    the metric. (`patch` does the opposite: it puts activations of `clean` into `corrupted`.) Many
    edges run in one batch. Parts before the receiver are not recomputed. In a decoder, positions
    before the first token that differs between the texts are not recomputed either.

    Args:
        model: a model with an LM head, and with norms before attention and MLPs (GPT-2, Llama).
            The model may also have norms after attention and MLPs (Gemma). The model's blocks may
            compute attention and the MLP in parallel (GPT-NeoX).
        clean: one text, or the ids of its tokens.
        corrupted: another text, with the same number of tokens as `clean`.
        metric: (position, token) for one logit, or (position, token, other token) for the
            difference of two logits. Negative positions count from the end. A token is an id or a
            one-token string. If the method is "exact", the metric can also be a function that turns
            logits (1, T, V) into a number.
        method: "exact", "eap" or "eap-ig". "eap" is edge attribution patching. The "eap" estimate
            of a score is `(corrupted - clean) * gradient`. `corrupted` and `clean` are the sender's
            outputs in both runs. `gradient` is the gradient of the metric with respect to the
            receiver's input in the clean run. One backward pass covers all edges. "eap-ig" averages
            5 gradients, at evenly spaced points between the corrupted and the clean embeddings.

    Returns:
        A `Graph` of all edges. For estimated scores, `.correlation` is Pearson's correlation of the
        estimated and the exact scores of 200 sampled edges.

    Raises:
        TypeError: an argument has a wrong type, or the metric does not return a number. "eap" and
            "eap-ig" also reject a metric that is a function, and a model in half precision.
        ValueError: the texts have different numbers of tokens, or an argument has several texts;
            the method, position or token does not exist; or the metric returns an array. Models
            are also rejected if they have no LM head, have norms only after attention and MLPs
            (BERT), or normalize the queries of all heads together (OLMo 2).

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
    >>> len(graph.edges) == sum(edge.receiver == "logits" for edge in graph.edges)
    False
    """
    model = _check_method(model, metric, method)
    stream = Residual(pair_of(model, (clean, corrupted), "resid_pre", metric))
    return _graph(stream, metric, method)


@public_call("path")
def path(
    model: Model, clean: Any, corrupted: Any, *, sender: str, receivers: Names, metric: Metric
) -> float:
    """Path patching: measure the effect of a sender on a metric through chosen receivers.

    In the clean run, the chosen receivers read the sender's output from the corrupted run, and all
    later parts are recomputed. The effect is the change of the metric. With one receiver, the
    effect is the exact score of the edge from the sender to the receiver. With several receivers,
    the effect includes changes that earlier receivers pass on to later receivers.

    Args:
        model: as for `edges`.
        clean: as for `edges`.
        corrupted: as for `edges`.
        sender: the name of a part: "embed", "attn.{layer}.{head}" or "mlp.{layer}".
        receivers: one or more names of receivers: "attn.{layer}.{head}.q" (also ".k" and ".v"),
            "mlp.{layer}" or "logits".
        metric: as for `edges`.

    Returns:
        The change of the metric.

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
        raise type_error(f"`receivers` is {quote(receivers)}: give names, for example ['mlp.3']")
    wiring = Wiring(_check_method(model, metric, "exact").layers)
    number = wiring.senders.index(_check_node(sender, wiring.senders, "sender"))
    chosen = {}
    for name in names:
        count = wiring.receivers[_check_node(name, list(wiring.receivers), "receivers")].senders
        if number >= count:
            raise value_error(
                f"{name} does not read {sender}, which the model computes later or in "
                f"parallel: the senders of {name} are {wiring.senders[0]} to "
                f"{wiring.senders[count - 1]}"
            )
        chosen[name] = np.arange(count) == number
    if not chosen:
        raise value_error("`receivers` is empty: give at least one name, for example ['mlp.3']")
    stream = Residual(pair_of(model, (clean, corrupted), "resid_pre", metric))
    return stream.metric(chosen) - stream.base


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
) -> Graph:
    """Find the circuit of a metric: the edges with the largest effects, and their faithfulness.

    To measure `.faithfulness`, the clean text runs once more. In this run, the edges outside the
    circuit carry the outputs of the corrupted run. `.faithfulness` is the metric of this run,
    scaled so that the corrupted run scores 0 and the clean run scores 1; it can be below 0 or above
    1. Only edges on a path from "embed" to "logits" affect `.faithfulness`.

    Args:
        model: as for the function `edges`.
        clean: as for the function `edges`.
        corrupted: as for the function `edges`.
        metric: as for the function `edges`.
        threshold: keep the edges with at least this absolute score.
        edges: keep this many edges, chosen by the largest absolute scores. Give either `threshold`
            or `edges`.
        method: as for the function `edges`.

    Returns:
        A `Graph` of the kept edges.

    Raises:
        TypeError: as for the function `edges`. Also, if `threshold` is not a number, or if the
            argument `edges` is not a whole number.
        ValueError: as for the function `edges`; the arguments `threshold` and `edges` are both
            given or both missing; `threshold` is below 0; the graph has fewer than `edges` edges;
            or the metric is equal in both runs.

    Source:
        Conmy et al. 2023, "Towards Automated Circuit Discovery for Mechanistic Interpretability";
        Syed, Rager and Conmy 2023. Faithfulness: Hanna, Pezzelle and Belinkov 2024, "Have Faith in
        Faithfulness", section 3.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> circuit = discover(model, *texts, metric=(-1, 7), edges=20, method="eap-ig")
    >>> whole = discover(model, *texts, metric=(-1, 7), threshold=0)
    >>> len(circuit.edges), whole.faithfulness > 0.999
    (20, True)
    """
    if (threshold is None) == (edges is None):
        raise value_error(
            "give either `threshold` (the smallest absolute score) or `edges` (the number of edges)"
        )
    least = 0.0 if threshold is None else real_number(threshold, name="threshold")
    if not least >= 0:
        raise value_error(f"`threshold` is {quote(threshold)}: give a non-negative number")
    wiring = Wiring(_check_method(model, metric, method).layers)
    most = sum(one.senders for one in wiring.receivers.values())
    if edges is not None and whole_number(edges, name="edges", least=0) > most:
        raise value_error(
            f"`edges` is {edges}, but {model.name} has only {most} edges: give at most {most}"
        )
    stream = Residual(pair_of(model, (clean, corrupted), "resid_pre", metric))
    if stream.base == stream.low:
        raise value_error(
            f"`metric` is {stream.base:.6g} in the clean and in the corrupted run, so "
            "there is no difference to explain: choose another metric or other texts"
        )
    whole = _graph(stream, metric, method)
    circuit = [edge for edge in whole.edges[:edges] if abs(edge.score) >= least]
    left = {name: np.ones(one.senders, bool) for name, one in wiring.receivers.items()}
    numbers = {name: number for number, name in enumerate(wiring.senders)}
    for edge in circuit:
        left[edge.receiver][numbers[edge.sender]] = False
    faithfulness = (stream.metric(left) - stream.low) / (stream.base - stream.low)
    used = {edge.sender for edge in circuit} | {node_of(edge.receiver) for edge in circuit}
    nodes = [node for node in whole.nodes if node in used]
    return replace(whole, nodes=nodes, edges=circuit, faithfulness=float(faithfulness))


def _check_method(model: Any, metric: Any, method: Any) -> Model:
    """Return the model, or raise an error if the method cannot use this metric or this model."""
    if not isinstance(method, str) or method not in _METHODS:
        raise value_error(f"`method` is {quote(method)}: choose among {', '.join(_METHODS)}")
    if method != "exact" and callable(metric):
        raise type_error(
            "`metric` is a function, which has no gradient here: give (position, token) "
            'or (position, token, other token), or use method="exact"'
        )
    return check_residual(check_words(model))


def _graph(stream: Residual, metric: Any, method: str) -> Graph:
    """Return the graph of all edges."""
    wiring = stream.wiring
    every = {name: np.arange(one.senders) for name, one in wiring.receivers.items()}
    correlation = None
    if method == "exact":
        scores = stream.effects(every)
    else:
        scores = estimate_effects(stream, metric, _METHODS[method])
        correlation = _correlation(stream, scores)
    scored = [
        Edge(wiring.senders[number], name, float(score))
        for name, values in scores.items()
        for number, score in enumerate(values)
    ]
    nodes = [*wiring.senders, "logits"]
    return Graph(nodes, strongest(scored), method, stream.base, stream.low, correlation)


def _correlation(stream: Residual, scores: Arrays) -> float:
    """Return Pearson's correlation between estimated and exact scores on a sample of edges.

    Half of the sample consists of the edges with the largest estimates. The other half is chosen
    at random from the remaining edges. In the correlation, the randomly chosen edges represent
    all edges from which they were chosen: if 100 edges are chosen from 1,000 edges, each of the 100
    edges counts ten times.
    """
    edges = [(name, number) for name, values in scores.items() for number in range(len(values))]
    estimates = np.concatenate(list(scores.values()))
    order, half = np.argsort(-np.abs(estimates), kind="stable"), _SAMPLE // 2
    others = np.random.default_rng(0).permutation(order[half:])[:half]
    chosen = np.sort([*order[:half], *others])
    counts = np.where(np.isin(chosen, others), len(order[half:]) / max(1, len(others)), 1)
    wanted: dict[str, list[int]] = {}
    for name, number in (edges[one] for one in chosen):
        wanted.setdefault(name, []).append(number)
    exact = stream.effects({name: np.array(numbers) for name, numbers in wanted.items()})
    pair = estimates[chosen], np.concatenate(list(exact.values()))
    with np.errstate(all="ignore"):
        one, other = (values - np.average(values, weights=counts) for values in pair)
        squares = (counts * one**2).sum() * (counts * other**2).sum()
        return float((counts * one * other).sum() / np.sqrt(squares))


def _check_node(name: Any, names: Sequence[str], argument: str) -> str:
    """Return the name if it is known; otherwise raise an error with the nearest names."""
    if not isinstance(name, str):
        raise type_error(
            f"{argument}: {quote(name)} is not a name: give names, for example 'mlp.3'"
        )
    if name not in names:
        near = suggestion(nearest(name, names), names, "the nearest names are")
        raise invalid(KeyError, f"{argument}: {quote(name)} is unknown; {near}")
    return name


@quiet
def estimate_effects(stream: Residual, metric: Any, steps: int | None) -> dict[str, Array]:
    """Estimate the effect of every edge; return float64 arrays (senders,), keyed by receiver.

    An estimate is the sum of the elementwise products of two arrays: the sender's corrupted output
    minus its clean output, and the gradient of the metric with respect to the receiver's input.

    Args:
        stream: the clean run and the corrupted run.
        metric: the metric: one logit, or the difference of two logits.
        steps: the number of gradients to average. The gradients are computed at evenly spaced
            points between the corrupted and the clean embeddings. If `steps` is None, a single
            gradient is computed, in the clean run.
    """
    model, layers, last = stream.model, stream.layers, len(stream.layers) - 1
    clean, corrupted = (run["resid_pre", 0] for run in (stream.pair.clean, stream.pair.corrupted))
    shares = np.arange(1, (steps or 1) + 1) / (steps or 1)
    edit = {"full_embed": corrupted + shares[:, None, None] * (clean - corrupted)}
    ids = [stream.pair.clean.ids] * len(shares)
    names = [(kind, layer) for layer in range(last + 1) for kind in INPUTS]
    names += [("mlp_out", layer) for layer in range(last + 1) if layers[layer].mlp is not None]
    names.append(("resid_post", last))
    slopes = model.gradient(ids, of=metric, at=names, edit=edit)
    run = model.trace(ids, names=["resid_pre", "attn_out"], edit=edit)
    effects = {"logits": _scores(stream, slopes["resid_post", last][:, None])[0]}
    for layer, block in enumerate(layers):
        pre, count = run["resid_pre", layer], stream.wiring.starts[layer]  # (m, T, D)
        for kind in INPUTS:
            slope = np.swapaxes(slopes[kind, layer], 1, 2)  # (m, H, T, d)
            weight = block.attn.parameters[f"{kind}_proj.weight"]
            per_head = weight.reshape(len(weight), slope.shape[1], -1).transpose(1, 2, 0)
            slope = matmul_alone(slope, per_head)  # (m, H, T, D)
            if block.norm1 is not None:
                saved = block.norm1.run(pre)[1]
                alike = [
                    np.broadcast_to(x[:, None], (*slope.shape[:-1], x.shape[-1])) for x in saved
                ]
                slope = block.norm1.backward(slope, NormSaved(*alike), record=_SILENT).x
            for head, scores in enumerate(_scores(stream, slope, count)):
                effects[f"attn.{layer}.{head}.{kind}"] = scores
        if block.mlp is not None:
            read = pre if block.parallel else pre + run["attn_out", layer]
            steps_back = []
            for part in mlp_parts(block):
                read, part_saved = part.run(read, save=True)
                steps_back.append((part, part_saved))
            slope = slopes["mlp_out", layer]
            for part, part_saved in reversed(steps_back):
                slope = part.backward(slope, part_saved, record=_SILENT).x
            count = stream.wiring.receivers[f"mlp.{layer}"].senders
            effects[f"mlp.{layer}"] = _scores(stream, slope[:, None], count)[0]
    return {name: effects[name] for name in stream.wiring.receivers}


_SILENT = GradientRecorder(lambda name: False, {}, {})


def _scores(stream: Residual, slopes: Array, count: int | None = None) -> Array:
    """Estimate the effects (n, count) of the first `count` senders on n receivers.

    `slopes` (m, n, T, D) holds the gradients at the inputs of n receivers, from m runs.
    """
    slope = slopes.mean(0, dtype=np.float64)[:, stream.span]
    deltas = stream.deltas[:count].astype(np.float64)
    return matmul_alone(slope.reshape(len(slope), -1), deltas.reshape(len(deltas), -1).T)
