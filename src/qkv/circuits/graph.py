"""A model as a graph: its senders, its receivers, and scores of the edges between them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import shown, whole_number
from qkv.extras import need
from qkv.layers import Block, MultiHeadAttention
from qkv.models.model import Model
from qkv.ops.packing import frozen


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


INPUTS = "qkv"  # what a head reads the stream for


class Receiver(NamedTuple):
    """An input of a part.

    Attributes:
        layer: the number of layers for the logits.
        kind: "q", "k" or "v" of a head, "mlp" or "logits".
        head: its number; 0 for what is no head.
        senders: how many of all senders, in their order, it reads.
    """

    layer: int
    kind: str
    head: int
    senders: int


class Wiring:
    """The senders and the receivers of a model, each in the order in which they are computed.

    Attributes:
        senders: their names.
        receivers: by their names.
        starts: for each layer how many senders stand before it.
    """

    def __init__(self, layers: Sequence[Block]) -> None:
        self.senders = ["embed"]
        self.receivers: dict[str, Receiver] = {}
        self.starts: list[int] = []
        for number, block in enumerate(layers):
            before, heads = len(self.senders), range(block.attn.num_heads)
            self.starts.append(before)
            for head in heads:
                for kind in INPUTS:
                    name = f"attn.{number}.{head}.{kind}"
                    self.receivers[name] = Receiver(number, kind, head, before)
            self.senders += [f"attn.{number}.{head}" for head in heads]
            if block.mlp is not None:
                reads = before if block.parallel else len(self.senders)
                self.receivers[f"mlp.{number}"] = Receiver(number, "mlp", 0, reads)
                self.senders.append(f"mlp.{number}")
        self.receivers["logits"] = Receiver(len(layers), "logits", 0, len(self.senders))


def check_residual(model: Model, call: str) -> Model:
    """The model, if what each part reads is a sum of what others add."""
    for block in model.layers:
        if block.post_norm:
            raise ValueError(
                f"{call}: what a part of {model.name} reads is no sum of what others give, as its "
                "norms stand behind them: take a decoder whose norms stand before (GPT-2, Llama, "
                "GPT-NeoX), or patch(model, ...)"
            )
        norm = block.attn.q_norm
        if norm is not None and norm.dim != block.attn.d_query:
            raise ValueError(
                f"{call}: the queries of all heads of {model.name} go through one norm, so that no "
                "head has an input of its own: call patch(model, ...)"
            )
    return model


def ungrouped(model: Model) -> Model:
    """The same model with a key head for each query head, so that each has its own input."""
    found = copy(model)
    found._network = copy(model.network)
    found._network.layers = [_ungrouped(block) for block in model.layers]
    return found


def _ungrouped(block: Block) -> Block:
    attn = block.attn
    group = attn.num_heads // attn.num_kv_heads
    if group == 1:
        return block
    parameters = dict(attn.parameters)
    for name, array in parameters.items():
        if name.startswith(("k_proj.", "v_proj.")):
            heads = array.reshape(*array.shape[:-1], attn.num_kv_heads, -1)
            parameters[name] = frozen(np.repeat(heads, group, -2).reshape(*array.shape[:-1], -1))
    found = copy(block)
    found.attn = MultiHeadAttention.from_parameters(
        parameters,
        num_heads=attn.num_heads,
        rotary=attn.rotary,
        q_norm=attn.q_norm,
        k_norm=attn.k_norm,
    )
    found._parts = block._parts | {"attn": found.attn}
    return found
