"""Which parts of a model send what to which: a graph of heads, MLPs, embeddings and logits."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from qkv.arrays import shown, whole_number
from qkv.extras import need


class Edge(NamedTuple):
    """One sender's part of what one receiver reads.

    Attributes:
        sender: "embed", "attn.{layer}.{head}" or "mlp.{layer}".
        receiver: "attn.{layer}.{head}.q", with ".k" or ".v" for what keys and values are made of,
            "mlp.{layer}" or "logits".
        score: what the edge does to the metric.
    """

    sender: str
    receiver: str
    score: float


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """What `edges` and `discover` give.

    Attributes:
        nodes: the names of the parts that have an edge, in the order in which the model computes
            them: "embed", then of each layer its heads "attn.{layer}.{head}" and its MLP
            "mlp.{layer}", then "logits".
        edges: each with its sender, its receiver and its score, the largest absolute score first.
        method: "exact", "eap" or "eap-ig".
        clean: the metric of the clean run.
        corrupted: that of the corrupted one.
        correlation: of estimated scores with exact ones (Pearson's), on a sample of all edges; None
            for exact scores, NaN where either are all the same.
        faithfulness: what `discover` says of the edges that it keeps; None for the graph of all.
    """

    nodes: list[str]
    edges: list[Edge]
    method: str
    clean: float
    corrupted: float
    correlation: float | None = None
    faithfulness: float | None = None

    def __repr__(self) -> str:
        more = "".join(
            f", {name} {value:.3f}"
            for name in ("correlation", "faithfulness")
            if (value := getattr(self, name)) is not None
        )
        return f"<Graph: {len(self.nodes)} nodes, {len(self.edges)} edges, {self.method}{more}>"

    def score(self, sender: str, receiver: str) -> float:
        """The score of one edge.

        Raises:
            KeyError: there is no such edge; the message has the nearest names.
        """
        found = self._scores.get((sender, receiver))
        if found is None:
            senders = [one for one, other in self._scores if other == receiver]
            given, names = (
                (sender, senders) if senders else (receiver, [edge.receiver for edge in self.edges])
            )
            near = difflib.get_close_matches(str(given), list(dict.fromkeys(names)), cutoff=0.0)
            what = f"{receiver} reads" if senders else "the nearest receivers are"
            raise KeyError(
                f"score: there is no edge {shown(sender)} to {shown(receiver)}"
                + f"; {what} {', '.join(near)}" * bool(near)
            )
        return found

    def top(self, count: int) -> list[Edge]:
        """So many of the edges, the largest absolute score first.

        Raises:
            TypeError: `count` is not a whole number.
            ValueError: it is below 0.
        """
        return self.edges[: whole_number(count, call="top", name="count", least=0)]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each edge, in the order of `edges`.

        Returns:
            The columns are "sender", "receiver" and "score".

        Raises:
            ImportError: pandas is not installed.
        """
        return need("pandas", "tables").DataFrame(self.edges, columns=Edge._fields)

    @cached_property
    def _scores(self) -> Mapping[tuple[str, str], float]:
        return {(edge.sender, edge.receiver): edge.score for edge in self.edges}


def strongest(edges: Sequence[Edge]) -> list[Edge]:
    """Edges, the largest absolute score first; those with the same in the order given.

    >>> [edge.score for edge in strongest([Edge("embed", "logits", x) for x in (1.0, -3.0, 2.0)])]
    [-3.0, 2.0, 1.0]
    """
    return sorted(edges, key=lambda edge: -abs(edge.score))


def node_of(receiver: str) -> str:
    """The part that a receiver is an input of.

    >>> node_of("attn.3.11.q"), node_of("mlp.3"), node_of("logits")
    ('attn.3.11', 'mlp.3', 'logits')
    """
    return receiver.rpartition(".")[0] if receiver[-2:] in (".q", ".k", ".v") else receiver
