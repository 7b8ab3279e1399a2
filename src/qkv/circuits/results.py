"""Results of `qkv.circuits`: arrays with named axes, and graphs of edges."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from qkv._argument_errors import invalid, public_call
from qkv._suggest import nearest, suggestion
from qkv.arrays import Array, ArrayLike, index_per_axis, is_whole_number, quote, whole_number
from qkv.extras import need
from qkv.text.tokenized import plain_tokens
from qkv.trace import Trace


class Result(np.ndarray[Any, Any]):
    """A NumPy array whose axes have names, for `to_xarray` and `qkv.circuits.plot`.

    Indexing, arithmetic, and the methods `mean`, `sum`, `min`, `max` and `std` keep the names of
    the remaining axes; these methods also accept the name of an axis. Other functions return plain
    arrays.

    Attributes:
        axes: the axis names ("layer", "head", "token", "query", "key" and others), as in
            `Trace.to_xarray()`; empty for arrays without names.
        words: lists of labels, keyed by axis. For example, the axis "token" may have the tokens of
            the text as labels.
        places: the original indices of an axis from which an index or a slice was taken.
        of: the meaning of the numbers, such as "mean weight" or "logit".
        ground: the number that means "no effect", usually 0.
        title: the name of the measure.
        pairs: for a mean over several pairs or texts, the result of each pair or text, with one
            more axis in front; otherwise None.

    >>> weights = Result(np.eye(2), ("query", "key"), of="weight", words={"key": ["a", "b"]})
    >>> weights[1].axes, weights[:, 1:].places, (weights - 0.5).mean("query").axes
    (('key',), {'key': [1]}, ('key',))
    >>> weights.to_xarray().sel(query=1).dims
    ('key',)
    """

    axes: tuple[str, ...] = ()
    words: Mapping[str, Sequence[str]] = MappingProxyType({})
    places: Mapping[str, Sequence[int]] = MappingProxyType({})
    of: str = "number"
    ground: float = 0.0
    title: str = ""
    pairs: "Result | None" = None

    def __new__(
        cls,
        values: ArrayLike,
        axes: Sequence[str],
        *,
        of: str,
        title: str = "",
        words: Mapping[str, Sequence[str]] | None = None,
        ground: float = 0.0,
    ) -> Self:
        """Name the axes of an array; ignore a list in `words` that does not fit its axis."""
        result = np.asarray(values).view(cls)
        sizes = dict(zip(axes, result.shape, strict=True))
        result.axes, result.of, result.title, result.ground = tuple(axes), of, title, ground
        known = (words or {}).items()
        result.words = {axis: list(one) for axis, one in known if len(one) == sizes.get(axis)}
        return result

    def to_xarray(self) -> Any:
        """Return the numbers as an `xarray.DataArray`, without a copy.

        The dimension names are `axes`, and indices start at 0. Words become coordinates, such as
        `token_text` for the dimension `token`.

        Raises:
            ValueError: the axes have no names.
            ImportError: xarray is not installed.
        """
        if len(self.axes) != self.ndim:
            raise ValueError(
                f"to_xarray: this array {self.shape} was computed from a result, so its axes have "
                "no names: call to_xarray() on the result, and compute afterwards"
            )
        xarray = need("xarray", "tables")
        coords: dict[str, Any] = {f"{axis}_text": (axis, x) for axis, x in self.words.items()}
        sizes = zip(self.axes, self.shape, strict=True)
        coords |= {axis: self.places.get(axis, range(size)) for axis, size in sizes}
        name, attrs = self.title or None, {"of": self.of, "ground": self.ground}
        return xarray.DataArray(
            np.asarray(self), dims=self.axes, coords=coords, name=name, attrs=attrs
        )

    def mean(self, axis: Any = None, *args: Any, **options: Any) -> Any:
        """Return the mean, as `numpy.ndarray.mean` does; `axis` may be a name or several names."""
        return self._reduce("mean", axis, *args, **options)

    def sum(self, axis: Any = None, *args: Any, **options: Any) -> Any:
        """Return the sum, as `numpy.ndarray.sum` does; `axis` may be a name or several names."""
        return self._reduce("sum", axis, *args, **options)

    def min(self, axis: Any = None, *args: Any, **options: Any) -> Any:
        """Return the minimum, as `numpy.ndarray.min` does; `axis` may be a name."""
        return self._reduce("min", axis, *args, **options)

    def max(self, axis: Any = None, *args: Any, **options: Any) -> Any:
        """Return the maximum, as `numpy.ndarray.max` does; `axis` may be a name."""
        return self._reduce("max", axis, *args, **options)

    def std(self, axis: Any = None, *args: Any, **options: Any) -> Any:
        """Return the standard deviation, as `numpy.ndarray.std` does; `axis` may be a name."""
        return self._reduce("std", axis, *args, **options)

    def _reduce(self, method: str, axis: Any, *args: Any, **options: Any) -> Any:
        given = axis if isinstance(axis, tuple) else (axis,)
        odd = [one for one in given if isinstance(one, str) and one not in self.axes]
        if odd:
            raise ValueError(
                f"{method}: there is no axis {quote(odd[0])}; choose among {', '.join(self.axes)}"
            )
        named = [self.axes.index(one) if isinstance(one, str) else one for one in given]
        over = None if axis is None else tuple(named)
        values = getattr(np.asarray(self), method)(over, *args, **options)
        if not self.axes or np.ndim(values) == 0 or over is None or options.get("keepdims"):
            return values
        gone = {number % self.ndim for number in named}
        meaning, ground = _REDUCED[method].format(self.of), self.ground
        if self.of.startswith({"mean": "mean ", "sum": "share "}.get(method, "\n")):
            meaning = self.of
        if method in ("sum", "std"):
            ground *= (self.size // values.size) * (method == "sum")
        kept = [(name, None) for n, name in enumerate(self.axes) if n not in gone]
        pairs = None
        if self.pairs is not None and method in ("mean", "sum"):
            pairs = getattr(self.pairs, method)(tuple(n % self.ndim + 1 for n in named))
        return self._part(values, kept, of=meaning, ground=ground, pairs=pairs)

    def _part(
        self,
        values: Any,
        kept: Sequence[tuple[str, Array | None]],
        pairs: "Result | None" = None,
        **about: Any,
    ) -> "Result":
        """Return values with some of the axes; `kept` has their names and selected indices."""
        whole: dict[str, Any] = {"of": self.of, "title": self.title, "ground": self.ground}
        result = Result(values, [name for name, _ in kept], **whole | about)
        taken = {name: range(size) for name, size in zip(self.axes, self.shape, strict=True)}
        chosen = {name: taken[name] if part is None else part.tolist() for name, part in kept}
        result.words = {
            name: [self.words[name][n] for n in part]
            for name, part in chosen.items()
            if name in self.words
        }
        result.places = {
            name: [self.places.get(name, taken[name])[n] for n in part]
            for name, part in chosen.items()
            if name in self.places or list(part) != [*taken[name]]
        }
        result.pairs = pairs
        return result

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Keep the axes in arithmetic; let other NumPy functions return plain arrays."""
        if array is self:  # computed in place
            return self
        plain = np.asarray(array)
        if return_scalar or context is None or context[0].signature is not None:
            return plain[()] if return_scalar else plain
        return _name_axes(plain, context[0], context[1][: context[0].nin])

    def __getitem__(self, key: Any) -> Any:
        values = np.asarray(self)[key]
        kept = self._axes_of(key) if self.axes and np.ndim(values) else None
        if kept is None:
            return values
        keys = key if isinstance(key, tuple) else (key,)
        pairs = None if self.pairs is None else self.pairs[(slice(None), *keys)]
        return self._part(values, kept, pairs=pairs)

    def _axes_of(self, key: Any) -> list[tuple[str, Array | None]] | None:
        """Return the axes that an index keeps, each with the selected indices; None if unclear."""
        keys = index_per_axis(key, self.ndim)
        basic = [isinstance(one, slice) or is_whole_number(one) for one in keys]
        lists = [one for one, simple in zip(keys, basic, strict=True) if not simple]
        single = any(is_whole_number(one) for one in keys)
        if len(lists) > (not single) or any(np.ndim(one) != 1 for one in lists):
            return None
        return [
            (name, np.arange(size)[one])
            for name, size, one in zip(self.axes, self.shape, keys, strict=True)
            if not is_whole_number(one)
        ]

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        """Pickle the array together with its axis names."""
        return _unpickled, (np.asarray(self), vars(self))


# How each reduction changes the meaning of the numbers.
_REDUCED = {
    "mean": "mean {}",
    "sum": "sum of {}",
    "min": "smallest {}",
    "max": "largest {}",
    "std": "standard deviation of {}",
}
_LINEAR = frozenset({np.add, np.subtract, np.negative, np.positive})
_SCALES = frozenset({np.multiply, np.divide})
_TITLES = {
    np.add: "{} + {}",
    np.subtract: "{} \N{MINUS SIGN} {}",
    np.multiply: "{} \N{MULTIPLICATION SIGN} {}",
    np.divide: "{} / {}",
    np.positive: "{}",
    np.negative: "\N{MINUS SIGN}{}",
    np.absolute: "|{}|",
}


def _name_axes(plain: Array, function: Any, given: Sequence[Any]) -> Any:
    """Name the axes of `plain`, which a NumPy function computed from results and other numbers.

    The array stays plain if the axes of the results differ.
    """
    named = [one for one in given if isinstance(one, Result) and one.axes]
    axes = [one.axes for one in named if one.shape == plain.shape]
    if not axes or any(one.axes != axes[0][-one.ndim :] for one in named):
        return plain
    first = next(one for one in named if one.shape == plain.shape)
    result = first._part(plain, [(name, None) for name in first.axes])
    for other in named:
        for labels in ("words", "places"):
            theirs, mine = getattr(other, labels), getattr(result, labels)
            same = {name: x for name, x in mine.items() if theirs.get(name, x) == x}
            setattr(result, labels, same)
    linear = function in _LINEAR
    if not linear or any(one.of != first.of for one in named):
        result.of = "number"
    numbers = [one.ground if isinstance(one, Result) else one for one in given]
    scales = function in _SCALES and np.ndim(given[-1]) == 0
    plain_numbers = all(np.ndim(one) == 0 for one in numbers)
    result.ground = float(function(*numbers)) if (linear or scales) and plain_numbers else 0.0
    titles = [one.title if isinstance(one, Result) else _short(one) for one in given]
    result.title = _TITLES.get(function, f"{function.__name__}({', '.join(titles)})")
    result.title = result.title.format(*titles)
    each = [one.pairs if isinstance(one, Result) else one for one in given]
    if linear and len(named) == len(given) and all(one is not None for one in each):
        with suppress(ValueError):  # a different number of pairs
            result.pairs = function(*each)
    return result


def _short(operand: Any) -> str:
    return f"{operand:g}" if np.ndim(operand) == 0 else "an array"


def _unpickled(values: Array, names: dict[str, Any]) -> Result:
    """Restore a pickled result."""
    result = values.view(Result)
    vars(result).update(names)
    return result


def mean_of_pairs(
    values: ArrayLike,
    axes: Sequence[str] = (),
    unit: str = "pair",
    *,
    there: Array | None = None,
    **about: Any,
) -> Any:
    """Return the mean over pairs or texts, with all values in its attribute `pairs`.

    Args:
        values: the values (n, ...) of n pairs. If n is 1, the values of the pair are returned.
        axes: the names of all axes except the first. Without axes, the result for one pair is a
            float.
        unit: the name of the first axis.
        there: a mask with the first and the last axis of `values`; False in the padding.
        about: the arguments of `Result`.

    >>> mean = mean_of_pairs([1.0, 3.0], of="metric")
    >>> float(mean), mean.pairs.tolist(), mean_of_pairs([1.0], of="metric")
    (2.0, [1.0, 3.0], 1.0)
    """
    array = np.asarray(values)
    if len(array) == 1 and not axes:
        return float(array[0])
    if there is None:
        whole = array[0] if len(array) == 1 else array.mean(0)
    else:
        inner = there.reshape(len(there), *[1] * (array.ndim - 2), -1)
        whole = array.mean(0, where=np.broadcast_to(inner, array.shape))
    result = Result(whole, axes, **about)
    result.pairs = Result(array, (unit, *axes), **about)
    return result


def words_of(trace: Trace) -> list[str]:
    """Return the tokens of one text in readable form, as `plain_tokens` does."""
    return plain_tokens(trace.tokens, trace.special)


class Edge(NamedTuple):
    """An edge between two parts of a model, from the output of a sender to a receiver.

    Attributes:
        sender: "embed", "attn.{layer}.{head}" or "mlp.{layer}".
        receiver: "mlp.{layer}", "logits", or an input of a head ("attn.{layer}.{head}.q", ".k" or
            ".v"). If positions were given, the position follows each name: "mlp.3@subject".
        score: the effect of the edge on the metric.
    """

    sender: str
    receiver: str
    score: float


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """The result of `edges` and `discover`.

    Attributes:
        nodes: the names of all parts that have an edge, in order of computation. The names are
            "embed", "attn.{layer}.{head}" for heads, "mlp.{layer}" for MLPs, and "logits".
        edges: the edges, sorted by absolute score, largest first.
        method: "exact", "eap" or "eap-ig".
        clean: the metric of the clean run.
        corrupted: the metric of the corrupted run.
        correlation: Pearson's correlation between estimated and exact scores, on a sample of edges;
            NaN if all estimates or all exact scores in the sample are equal, and None if `method`
            is "exact".
        faithfulness: the metric of a run in which the graph's edges carry clean outputs, and all
            other edges carry corrupted outputs. The metric is scaled so that the corrupted run
            scores 0 and the clean run scores 1. If the graph has all edges, `faithfulness` is None.
        pairs: the graphs of the pairs, in order. Each graph has the same edges, with the scores of
            its pair. If there are several pairs, `clean`, `corrupted` and the scores of `edges` are
            means over the pairs, and `clean.pairs`, `corrupted.pairs` and `faithfulness.pairs` are
            arrays with the numbers of each pair.
    """

    nodes: list[str]
    edges: list[Edge]
    method: str
    clean: float
    corrupted: float
    correlation: float | None = None
    faithfulness: float | None = None
    pairs: Sequence["Graph"] = ()

    def __repr__(self) -> str:
        measures = {"correlation": self.correlation, "faithfulness": self.faithfulness}
        more = "".join(f", {name} {x:.3f}" for name, x in measures.items() if x is not None)
        return f"<Graph: {len(self.nodes)} nodes, {len(self.edges)} edges, {self.method}{more}>"

    def select(self, edges: Sequence[Edge]) -> "Graph":
        """Return the graph with only some of its edges, which keep their order."""
        kept = {edge[:2] for edge in edges}
        numbers = [number for number, edge in enumerate(self.edges) if edge[:2] in kept]
        used = {edge.sender for edge in edges} | {node_of(edge.receiver) for edge in edges}
        nodes = [node for node in self.nodes if node in used]
        graph = replace(self, nodes=nodes, edges=[self.edges[number] for number in numbers])
        if not isinstance(self.pairs, GraphPairs):
            return graph
        return replace(graph, pairs=GraphPairs(graph, self.pairs.scores[:, numbers]))

    @public_call("score")
    def score(self, sender: str, receiver: str) -> float:
        """Return the score of one edge.

        Raises:
            KeyError: the edge does not exist; the message lists the nearest names.
        """
        if (sender, receiver) in self._scores:
            return self._scores[sender, receiver]
        senders = [one for one, other in self._scores if other == receiver]
        names = senders or list(dict.fromkeys(edge.receiver for edge in self.edges))
        near = nearest(sender, names, cutoff=0.0) if senders else nearest(receiver, names)
        kind = f"{receiver} reads" if senders else "the nearest receivers are"
        raise invalid(
            KeyError,
            f"there is no edge from {quote(sender)} to {quote(receiver)}"
            + f"; {suggestion(near, names, kind)}" * bool(names),
        )

    @public_call("top")
    def top(self, count: int) -> list[Edge]:
        """Return the `count` edges with the largest absolute scores, largest first.

        Raises:
            TypeError: `count` is not an integer.
            ValueError: `count` is below 0.
        """
        return self.edges[: whole_number(count, name="count", least=0)]

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each edge, ordered as in `edges`.

        Returns:
            A table with the columns "sender", "receiver" and "score".

        Raises:
            ImportError: pandas is not installed.
        """
        return need("pandas", "tables").DataFrame(self.edges, columns=Edge._fields)

    @cached_property
    def _scores(self) -> Mapping[tuple[str, str], float]:
        return {(edge.sender, edge.receiver): edge.score for edge in self.edges}


class GraphPairs(Sequence[Graph]):
    """The graphs of several pairs, in order; `pairs[0]` is the graph of the first pair.

    Args:
        graph: the graph of the mean over the pairs.
        scores: (n, edges), the scores of the edges of `graph` for each of the n pairs.
    """

    def __init__(self, graph: Graph, scores: Array) -> None:
        self.graph, self.scores = graph, scores

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        scores = self.scores[number]
        edges = [
            edge._replace(score=float(x)) for edge, x in zip(self.graph.edges, scores, strict=True)
        ]
        clean, corrupted = (
            float(getattr(value, "pairs", [value])[number])
            for value in (self.graph.clean, self.graph.corrupted)
        )
        return Graph(self.graph.nodes, strongest(edges), self.graph.method, clean, corrupted)


def graph_of_pairs(
    nodes: list[str],
    ends: Sequence[tuple[str, str]],
    scores: Array,
    method: str,
    clean: Array,
    corrupted: Array,
    correlation: float | None,
) -> Graph:
    """Return the graph of the mean over n pairs.

    Args:
        nodes: the names of all parts.
        ends: the sender and the receiver of each edge.
        scores: (n, edges), the score of each edge for each pair.
        method: as in `Graph`.
        clean: (n,), the metric of each clean text.
        corrupted: (n,), the metric of each corrupted text.
        correlation: as in `Graph`.
    """
    means = scores.mean(0) if len(scores) > 1 else scores[0]
    order = np.argsort(-np.abs(means), kind="stable")
    edges = [Edge(*ends[int(number)], float(means[number])) for number in order]
    one, other = (mean_of_pairs(values, of="metric") for values in (clean, corrupted))
    graph = Graph(nodes, edges, method, one, other, correlation)
    return replace(graph, pairs=GraphPairs(graph, scores[:, order]))


def strongest(edges: Sequence[Edge]) -> list[Edge]:
    """Sort edges by absolute score, largest first; edges with equal scores keep their order.

    >>> [edge.score for edge in strongest([Edge("embed", "logits", x) for x in (1.0, -3.0, 2.0)])]
    [-3.0, 2.0, 1.0]
    """
    return sorted(edges, key=lambda edge: -abs(edge.score))


def node_of(receiver: str) -> str:
    """Return the name of the part to which a receiver belongs.

    >>> node_of("attn.3.11.q"), node_of("mlp.3"), node_of("attn.3.11.k@subject")
    ('attn.3.11', 'mlp.3', 'attn.3.11@subject')
    """
    name, at, position = receiver.partition("@")
    return (name[:-2] if name[-2:] in (".q", ".k", ".v") else name) + at + position
