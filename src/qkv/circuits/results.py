"""Results of `qkv.circuits`: arrays with named axes, and graphs of edges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from qkv._argument_errors import invalid, public_call
from qkv._suggest import nearest, suggestion
from qkv.arrays import Array, ArrayLike, quote, whole_number
from qkv.extras import need
from qkv.text.tokenized import plain_tokens
from qkv.trace import Trace


class Result(np.ndarray[Any, Any]):
    """A NumPy array whose axes have names for `to_xarray` and `qkv.circuits.plot`.

    Slices, sums and differences of a result are plain arrays without names. To keep the names, call
    `to_xarray()` first and compute with the DataArray.

    Attributes:
        axes: the axis names ("layer", "head", "token", "query", "key" and others), as in
            `Trace.to_xarray()`; empty for arrays that are computed from a result.
        words: lists of labels, keyed by axis. For example, the axis "token" may have the tokens of
            the text as labels.
        of: the meaning of the numbers, such as "mean weight" or "logit".
        ground: the number that means "no effect", usually 0.
        title: the name of the measure.

    >>> weights = Result(np.eye(2), ("query", "key"), of="weight", words={"key": ["a", "b"]})
    >>> weights.axes, type(weights[0]).__name__, type(weights * 2).__name__
    (('query', 'key'), 'ndarray', 'ndarray')
    >>> weights.to_xarray().sel(query=1).dims
    ('key',)
    """

    axes: tuple[str, ...] = ()
    words: Mapping[str, Sequence[str]] = MappingProxyType({})
    of: str = "number"
    ground: float = 0.0
    title: str = ""

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
            ValueError: the array was computed from a result, so its axes have no names.
            ImportError: xarray is not installed.
        """
        if not self.axes:
            raise ValueError(
                f"to_xarray: this array {self.shape} was computed from a result, so its axes have "
                "no names: call to_xarray() on the result before you compute with it"
            )
        xarray = need("xarray", "tables")
        coords: dict[str, Any] = {f"{axis}_text": (axis, x) for axis, x in self.words.items()}
        coords |= {axis: range(size) for axis, size in zip(self.axes, self.shape, strict=True)}
        name, attrs = self.title or None, {"of": self.of, "ground": self.ground}
        return xarray.DataArray(
            np.asarray(self), dims=self.axes, coords=coords, name=name, attrs=attrs
        )

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Let NumPy functions return plain arrays and numbers."""
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        """Pickle the array together with its axis names."""
        return _unpickled, (np.asarray(self), vars(self))


def _unpickled(values: Array, names: dict[str, Any]) -> Result:
    """Restore a pickled result."""
    result = values.view(Result)
    vars(result).update(names)
    return result


def words_of(trace: Trace) -> list[str]:
    """Return the tokens of one text in readable form, as `plain_tokens` does."""
    return plain_tokens(trace.tokens, trace.special)


class Edge(NamedTuple):
    """An edge between two parts of a model, from the output of a sender to a receiver.

    Attributes:
        sender: "embed", "attn.{layer}.{head}" or "mlp.{layer}".
        receiver: "mlp.{layer}", "logits", or an input of a head: "attn.{layer}.{head}.q", ".k" or
            ".v".
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
        correlation: Pearson's correlation between estimated and exact scores, on a sample of edges.
            If `method` is "exact", no score is estimated, and `correlation` is None.
            `correlation` is NaN if all estimates in the sample are equal, or if all exact scores in
            the sample are equal.
        faithfulness: the metric of a run in which the graph's edges carry clean outputs, and all
            other edges carry corrupted outputs. The metric is scaled so that the corrupted run
            scores 0 and the clean run scores 1. If the graph has all edges, `faithfulness` is None.
    """

    nodes: list[str]
    edges: list[Edge]
    method: str
    clean: float
    corrupted: float
    correlation: float | None = None
    faithfulness: float | None = None

    def __repr__(self) -> str:
        measures = {"correlation": self.correlation, "faithfulness": self.faithfulness}
        more = "".join(f", {name} {x:.3f}" for name, x in measures.items() if x is not None)
        return f"<Graph: {len(self.nodes)} nodes, {len(self.edges)} edges, {self.method}{more}>"

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
            f"there is no edge {quote(sender)} to {quote(receiver)}"
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


def strongest(edges: Sequence[Edge]) -> list[Edge]:
    """Sort edges by absolute score, largest first; keep the order of equal scores.

    >>> [edge.score for edge in strongest([Edge("embed", "logits", x) for x in (1.0, -3.0, 2.0)])]
    [-3.0, 2.0, 1.0]
    """
    return sorted(edges, key=lambda edge: -abs(edge.score))


def node_of(receiver: str) -> str:
    """Return the name of the part to which a receiver belongs.

    >>> node_of("attn.3.11.q"), node_of("mlp.3"), node_of("logits")
    ('attn.3.11', 'mlp.3', 'logits')
    """
    return receiver.rpartition(".")[0] if receiver[-2:] in (".q", ".k", ".v") else receiver
