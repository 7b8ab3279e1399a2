"""A panel that shows a graph: nodes in rows, and edges between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.see.draw.panels import PICTURE, Panel, number_format

# each input's offset from the node's centre, in columns; half of a node's height, in rows
INPUTS, HALF = {"q": -0.25, "k": 0.0, "v": 0.25}, 0.27


class Edge(NamedTuple):
    """An edge of a graph.

    Attributes:
        sender: the node where the edge begins.
        receiver: the node where the edge ends.
        input: the receiver's input: "q", "k" or "v"; empty if the receiver has only one input.
        value: the number that the edge shows.
    """

    sender: str
    receiver: str
    input: str
    value: float

    @property
    def end(self) -> str:
        """Name the receiver and its input."""
        return ".".join(filter(None, (self.receiver, self.input)))

    @property
    def name(self) -> str:
        """Name the sender, the receiver and its input."""
        return f"{self.sender} → {self.end}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph(Panel):
    """A graph: nodes in rows from the bottom up, and edges that are wider for larger numbers.

    Attributes:
        nodes: the column (from the left) and the row (from below) of each node.
        edges: the drawn edges, the largest number first.
        labels: the words that the picture shows for each node.
        rows: the names of rows, keyed by height.
        of: the meaning of the numbers.
        whole: the count of all edges, including edges that are not drawn.
    """

    nodes: Mapping[str, tuple[float, float]]
    edges: Sequence[Edge]
    labels: Mapping[str, str]
    rows: Mapping[float, str]
    of: str
    whole: int
    shown_in: frozenset[str] = PICTURE

    @property
    def size(self) -> tuple[float, float]:
        """Return the largest column and the largest row."""
        columns, rows = zip(*self.nodes.values(), strict=True)
        return max(columns), max(rows)

    @property
    def shares(self) -> list[float]:
        """Divide each edge's number by the largest absolute number; return shares from -1 to 1."""
        most = max((abs(edge.value) for edge in self.edges), default=0.0) or 1.0
        return [edge.value / most for edge in self.edges]

    @property
    def curves(self) -> list[Array]:
        """Return the Bézier curve of each edge, from sender to receiver: four points, (4, 2)."""
        curves = []
        for edge in self.edges:
            (x, y), (end, high) = self.nodes[edge.sender], self.nodes[edge.receiver]
            end += INPUTS.get(edge.input, 0.0)
            y, high = y + HALF, high - HALF
            rise = 0.5 * (high - y)
            # if both nodes are in one column, bend the curve around the nodes between them
            aside = 0.4 if abs(end - x) < 0.5 and rise > 0.5 else 0.0
            curves.append(
                np.array([(x, y), (x + aside, y + rise), (end + aside, high - rise), (end, high)])
            )
        return curves

    @property
    def joined(self) -> frozenset[str]:
        """Return the nodes that have at least one edge."""
        return frozenset(node for edge in self.edges for node in (edge.sender, edge.receiver))

    @property
    def form(self) -> Callable[[float], str]:
        """Choose one number format for all edges."""
        return number_format(np.array([edge.value for edge in self.edges]))

    @property
    def caption(self) -> str:
        """Explain the colours, and count the edges that are left out."""
        signs = f"Width: {self.of}. Blue: above 0. Red: below 0."
        count = len(self.edges)
        if count == self.whole:
            return signs
        return f"{signs} Shown: {count} of {self.whole} edges, those of the largest numbers."
