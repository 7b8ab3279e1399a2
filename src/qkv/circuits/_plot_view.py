"""`PlotView`, the view of a result, and functions that draw cards and graphs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.circuits.results import node_of
from qkv.see.draw import panels
from qkv.see.draw.panels import TERMINAL, Column, Panel, Passage, Passages, Table, number_format
from qkv.see.page.payload import check_theme
from qkv.see.views.view import Heading, View
from qkv.text.tokenized import plain_tokens


@dataclass(frozen=True, eq=False, repr=False)
class PlotView(View):
    """A drawn result of `qkv.circuits`.

    Attributes:
        said: the headline, such as "Copying: strongest at layer 3, head 2, 0.91 (score)."
        facts: sentences below the headline, such as "24 of 512 neurons have a card here."
        rows: the panels of the picture, row by row.
        numbers: all entries of the result of `to_dict`, except "sentence".
    """

    said: str
    facts: list[str]
    rows: list[list[Panel]]
    numbers: dict[str, Any]

    @property
    def sentence(self) -> str:
        """The headline, which usually names the largest number and its position, such as a head."""
        return self.said

    @property
    def reasons(self) -> list[str]:
        """The sentences below the headline."""
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
_LISTED = 20  # The maximum number of edges in a terminal.
_MEASURES = {  # Attributes of a `Graph`, and their labels in the view.
    "faithfulness": "Faithfulness of these edges",
    "correlation": "Correlation with exact scores on a sample",
}
_NODE = re.compile(r"(?:(embed|logits)|attn\.(\d+)\.(\d+)|mlp\.(\d+))(?:@(.+))?")
_BEFORE, _AFTER = 12, 7  # how many words of a long text are shown around its main word
_IN_ROW = 3


def cards_of(cards: list[Passages], said: str, whole: int, unit: str, theme: str) -> PlotView:
    """Return a page of cards for some neurons, features or heads of a result.

    `whole` is the total number of neurons, features or heads in the result.
    """
    check_theme(theme)
    if not cards:
        raise ValueError(
            f"cards: there is no {unit} to show, because no value is above 0 or no {unit} was given"
        )
    facts = ["Shown: the words with the largest values, framed, and the words around them."]
    if len(cards) < whole:
        facts.append(f"{len(cards)} of {whole:,} {unit}s have a card here.")
    numbers = []
    for card in cards:
        examples = [{"value": x.label, "words": x.words, "shares": x.shares} for x in card.passages]
        numbers.append({"title": card.title, "explained": card.explained, "examples": examples})
    return PlotView(said, facts, in_rows(cards, _IN_ROW), {"cards": numbers}, theme=theme)


def in_rows(panels: Sequence[Panel], most: int) -> list[list[Panel]]:
    """Arrange panels in rows of at most `most` panels."""
    return [list(panels[first : first + most]) for first in range(0, len(panels), most)]


def passage_of(value: float, tokens: list[str], values: Array, at: int, top: float) -> Passage:
    """Return the words around position `at`. A word's colour shows its value, relative to `top`."""
    words = plain_tokens(tokens, [False] * len(tokens))
    first, end = max(0, at - _BEFORE), min(len(words), at + _AFTER + 1)
    before, after = ["…"] * (first > 0), ["…"] * (end < len(words))
    chosen, marked = [*before, *words[first:end], *after], at - first + len(before)
    inside = np.clip(values[first:end] / top, 0, 1)
    shares = np.pad(inside, (len(before), len(after))).tolist()
    return Passage(number_format(np.array([value]))(value), chosen, shares, marked)


def is_graph(result: Any) -> bool:
    """Return whether a result is a graph of model parts."""
    edges = getattr(result, "edges", None)
    named = isinstance(edges, Sequence) and all(hasattr(edge, "sender") for edge in edges)
    return named and hasattr(result, "nodes")


def graph_view(graph: Any) -> PlotView:
    """Draw a graph: nodes in layers from bottom to top, and the strongest edges."""
    nodes = [str(name) for name in graph.nodes]
    known = frozenset(nodes)
    every = [_edge(edge.sender, edge.receiver, edge.score, known) for edge in graph.edges]
    finite = (edge for edge in every if np.isfinite(edge.value))
    edges = sorted(finite, key=lambda edge: -abs(edge.value))
    if not nodes:
        raise ValueError("plot: the graph has no nodes: keep more edges")
    drawn = [edge for edge in edges[:MOST_EDGES] if edge.value]
    cells, rows = _cells(nodes)
    panel = panels.GraphPanel(
        title="Edges between the parts of the model",
        nodes=cells,
        edges=drawn,
        labels={name: name.removeprefix("attn.").replace("mlp.", "MLP ") for name in nodes},
        rows=rows,
        of="the absolute score",
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
        else f"The score is 0 for each of the {len(edges)} edges."
    )
    facts = [
        f"{meaning}: {value:.3f}."
        for name, meaning in _MEASURES.items()
        if (value := getattr(graph, name, None)) is not None
    ]
    numbers = [{"sender": e.sender, "receiver": e.end, "score": e.value} for e in edges]
    return PlotView(said, facts, [[panel, table]], {"nodes": nodes, "edges": numbers})


def _edge(sender: Any, receiver: Any, score: Any, nodes: frozenset[str]) -> panels.GraphEdge:
    """Return an edge; raise an error unless the edge connects two of `nodes`."""
    node, last = node_of(str(receiver)), str(receiver).partition("@")[0].rpartition(".")[2]
    kind = last if last in panels.INPUTS else ""
    for name in (str(sender), node):
        if name not in nodes:
            raise ValueError(
                f"plot: the edge {sender} → {receiver} has the end {name}, which is not among the "
                f"{len(nodes)} nodes of the graph; add the node"
            )
    return panels.GraphEdge(str(sender), node, kind, float(score))


def _cells(nodes: Sequence[str]) -> tuple[dict[str, tuple[float, float]], dict[float, str]]:
    """Return `(cells, rows)`: the column and row of each node, and the names of the rows."""
    known = {name: match.groups() for name in nodes if (match := _NODE.fullmatch(name))}
    odd = [name for name in nodes if name not in known]
    if odd:
        raise ValueError(
            f"plot: the graph has the node {odd[0]!r:.40}; use the names embed, "
            "attn.LAYER.HEAD, mlp.LAYER and logits, with @POSITION if the graph has positions"
        )
    layers = sorted({int(layer or mlp) for _, layer, _, mlp, _ in known.values() if layer or mlp})
    heads = sorted({int(head) for _, _, head, _, _ in known.values() if head})
    middle = (max(1, len(heads)) - 1) / 2
    places = [*dict.fromkeys(place for *_, place in known.values())]
    # labels with positions are long: "3.1@subject"
    wide = 1.0 if places == [None] else 0.15 * max(map(len, nodes))
    cells = {}
    for name, (end, layer, head, mlp, place) in known.items():
        left = places.index(place) * (len(heads) + 1.5)  # the nodes of a position are side by side
        if end:
            cells[name] = wide * (left + middle), 0.0 if end == "embed" else 2.0 * len(layers) + 1
        elif layer:
            column = heads.index(int(head))
            cells[name] = wide * (left + column), 2.0 * layers.index(int(layer)) + 1
        else:
            cells[name] = wide * (left + len(heads) + 0.1), 2.0 * layers.index(int(mlp)) + 2
    return cells, {2.0 * row + 1: f"layer {layer}" for row, layer in enumerate(layers)}
