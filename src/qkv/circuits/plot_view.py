"""The view of a result: `PlotView`, pages of cards, and graphs of edges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.see.draw.graph import INPUTS, Edge, Graph
from qkv.see.draw.panels import (
    TERMINAL,
    Column,
    Panel,
    Passage,
    Passages,
    Table,
    number_format,
)
from qkv.see.page.payload import check_theme
from qkv.see.views.view import Heading, View
from qkv.text.tokenized import plain_tokens


@dataclass(frozen=True, eq=False, repr=False)
class PlotView(View):
    """A result of `qkv.circuits`, drawn.

    Attributes:
        said: the strongest of its numbers, in words.
        facts: what else to know of them.
        rows: its panels.
        numbers: what `to_dict` gives.
    """

    said: str
    facts: list[str]
    rows: list[list[Panel]]
    numbers: dict[str, Any]

    @property
    def sentence(self) -> str:
        """The strongest number and where it stands, in words."""
        return self.said

    @property
    def reasons(self) -> list[str]:
        """What else to know of the numbers."""
        return self.facts

    def panels(self) -> list[list[Panel]]:
        """Heat maps, bars, a graph, or cards."""
        return self.rows

    def _headings(self) -> list[Heading]:
        return []

    def _numbers(self) -> dict[str, Any]:
        return {"sentence": self.said, **self.numbers}


MOST_CARDS = 24
MOST_EDGES = 150
_LISTED = 20  # edges in a terminal
_MEASURES = {  # of a graph
    "faithfulness": "Faithfulness of these edges",
    "correlation": "Correlation with exact scores on a sample",
}
_NODE = re.compile(r"(embed|logits)|attn\.(\d+)\.(\d+)|mlp\.(\d+)")
_BEFORE, _AFTER = 12, 7  # words of a long text that are shown around the one it is about
_IN_ROW = 3


def cards_of(cards: list[Passages], said: str, whole: int, unit: str, theme: str) -> PlotView:
    """A view of some cards out of a `whole` number of units, once it is known that it can be."""
    check_theme(theme, "cards")
    if not cards:
        raise ValueError(f"cards: there is no {unit} to show: none is ever above 0, or none named")
    facts = ["Shown: the words with the largest values, framed, and the words around them."]
    if len(cards) < whole:
        facts.append(f"{len(cards)} of {whole:,} {unit}s have a card here.")
    rows: list[list[Panel]] = [
        list(cards[first : first + _IN_ROW]) for first in range(0, len(cards), _IN_ROW)
    ]
    numbers = [
        {
            "title": card.title,
            "explained": card.explained,
            "examples": [
                {"value": one.label, "words": one.words, "shares": one.shares}
                for one in card.passages
            ],
        }
        for card in cards
    ]
    return PlotView(said, facts, rows, {"cards": numbers}, theme=theme)


def passage_of(
    value: float, tokens: Sequence[str], values: Array, position: int, top: float
) -> Passage:
    """The words around a position, shaded by their values up to `top`."""
    words = plain_tokens(tokens, [False] * len(tokens))
    first, end = max(0, position - _BEFORE), min(len(words), position + _AFTER + 1)
    shares = np.clip(values[first:end] / top, 0, 1).tolist()
    chosen, marked = words[first:end], position - first
    if first:
        chosen, shares, marked = ["…", *chosen], [0.0, *shares], marked + 1
    if end < len(words):
        chosen, shares = [*chosen, "…"], [*shares, 0.0]
    return Passage(number_format(np.array([value]))(value), chosen, shares, marked)


def is_graph(result: Any) -> bool:
    """Whether it is a graph of the parts of a model."""
    edges = getattr(result, "edges", None)
    named = isinstance(edges, Sequence) and all(hasattr(edge, "sender") for edge in edges)
    return named and hasattr(result, "nodes")


def graph_view(graph: Any) -> PlotView:
    """Nodes in layers that go upwards, and the strongest edges between them."""
    nodes = [str(name) for name in graph.nodes]
    known = frozenset(nodes)
    edges = [_edge(edge.sender, edge.receiver, edge.score, known) for edge in graph.edges]
    edges = sorted(
        (edge for edge in edges if np.isfinite(edge.value)), key=lambda edge: -abs(edge.value)
    )
    if not nodes:
        raise ValueError("plot: the graph has no nodes: keep more edges")
    drawn = [edge for edge in edges[:MOST_EDGES] if edge.value]
    places, rows = _places(nodes)
    panel = Graph(
        title="Edges between the parts of the model",
        nodes=places,
        edges=drawn,
        labels={name: name.removeprefix("attn.").replace("mlp.", "MLP ") for name in nodes},
        rows=rows,
        of="the size of the score",
        whole=len(edges),
    )
    form, listed = panel.form, drawn[:_LISTED]
    table = Table(
        title="The strongest edges",
        explained="from the sender to the input of the receiver",
        names=[edge.sender for edge in listed],
        columns=[
            Column("", [f"→ {edge.end}" for edge in listed], left=True),
            Column("score", [form(edge.value) for edge in listed]),
            Column("", bars=[abs(share) for share in panel.shares[:_LISTED]]),
        ],
        note="" if len(listed) == len(edges) else f"Shown: {len(listed)} of {len(edges)} edges.",
        shown_in=TERMINAL,
    )
    said = (
        f"Strongest of {len(edges)} edges: {drawn[0].name}, {form(drawn[0].value)}."
        if drawn
        else f"None of {len(edges)} edges has a score other than 0."
    )
    facts = [
        f"{meaning}: {value:.3f}."
        for name, meaning in _MEASURES.items()
        if (value := getattr(graph, name, None)) is not None
    ]
    numbers = [
        {
            "sender": edge.sender,
            "receiver": edge.end,
            "score": edge.value,
        }
        for edge in edges
    ]
    return PlotView(said, facts, [[panel, table]], {"nodes": nodes, "edges": numbers})


def _edge(sender: Any, receiver: Any, score: Any, nodes: frozenset[str]) -> Edge:
    """An edge of a graph, between two of its nodes."""
    end, _, last = str(receiver).rpartition(".")
    node, way = (end, last) if last in INPUTS else (str(receiver), "")
    for name in (str(sender), node):
        if name not in nodes:
            raise ValueError(
                f"plot: the edge {sender} → {receiver} joins {name}, which is not among the "
                f"{len(nodes)} nodes of the graph: add it there"
            )
    return Edge(str(sender), node, way, float(score))


def _places(nodes: Sequence[str]) -> tuple[dict[str, tuple[float, float]], dict[float, str]]:
    """Column and row of each node, and the names of rows: heads beside each other, MLPs above."""
    read = {name: _NODE.fullmatch(name) for name in nodes}
    odd = [name for name, found in read.items() if found is None]
    if odd:
        raise ValueError(
            f"plot: the graph has a node {odd[0]!r:.40}: nodes are embed, attn.LAYER.HEAD, "
            "mlp.LAYER and logits"
        )
    known = {name: found.groups() for name, found in read.items() if found is not None}
    layers = sorted({int(layer or mlp) for _, layer, _, mlp in known.values() if layer or mlp})
    heads = sorted({int(head) for *_, head, _ in known.values() if head})
    middle = (max(1, len(heads)) - 1) / 2
    places = {}
    for name, (end, layer, head, mlp) in known.items():
        if end:
            places[name] = middle, 0.0 if end == "embed" else 2.0 * len(layers) + 1
        elif layer:
            places[name] = float(heads.index(int(head))), 2.0 * layers.index(int(layer)) + 1
        else:
            places[name] = len(heads) + 0.1, 2.0 * layers.index(int(mlp)) + 2
    rows = {2.0 * place + 1: f"layer {layer}" for place, layer in enumerate(layers)}
    return places, rows
