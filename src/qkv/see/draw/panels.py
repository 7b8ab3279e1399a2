"""Panels: the contents of a view, drawn in a terminal or as SVG."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.measures import strongest_block
from qkv.see.draw.colours import AFTER, LINE, signed_end

TERMINAL, PICTURE = frozenset({"terminal"}), frozenset({"picture"})
# INPUTS: the distance of a node's inputs from its centre, in columns.
# HALF: half the height of a node, in rows.
INPUTS, HALF = {"q": -0.25, "k": 0.0, "v": 0.25}, 0.27
MOST_ROWS = 32  # a map in a picture has at most this many rows and at most this many columns


@dataclass(frozen=True, eq=False, kw_only=True)
class Panel:
    """A part of a view.

    Attributes:
        title: the title.
        explained: a phrase that explains the panel.
        name: a name that distinguishes the panel from the panel beside it; "A" and "B" are
            coloured.
        shown_in: the media in which the panel is drawn: "terminal", "picture" or both.
    """

    title: str = ""
    explained: str = ""
    name: str = ""
    shown_in: frozenset[str] = TERMINAL | PICTURE


@dataclass(frozen=True, eq=False, kw_only=True)
class HeatMap(Panel):
    """A map of numbers `(n, m)` as coloured cells, with labels and a scale.

    Attributes:
        values: the numbers; cells without a finite number are hatched.
        rows: a label for each row.
        columns: a label for each column.
        top: the upper end of a scale that begins at 0. If `top` is None, the scale fits the
            numbers: it begins at `ground` if no number is smaller than `ground`. Otherwise it
            extends equally far below and above `ground`.
        ground: the number that is drawn in the background's colour. Used only if `top` is None.
        scale: both ends of the scale, if several maps share a scale. Used only if `top` is None.
        hidden: `(n, m)` bool, the masked cells.
        score: `(n, m)`: if not all rows and columns fit, those with the largest scores are shown.
            The default is `values`.
        of: the meaning of the numbers, such as "weight".
        outlined: the indices of the framed rows.
        missing: the meaning of a hatched cell.
        whole: the total numbers of rows and columns, if the map has only some of them.
        most_rows: the maximum number of rows in a terminal.
        compact: whether the map is one of several small maps without labels.
        words: for each cell, a word above its number.
    """

    values: Array
    rows: Sequence[str]
    columns: Sequence[str]
    top: float | None = 1.0
    ground: float = 0.0
    scale: tuple[float, float] | None = None
    hidden: Array | None = None
    score: Array | None = None
    of: str = "weight"
    outlined: Sequence[int] = ()
    missing: str = "hidden by the mask"
    whole: tuple[int, int] | None = None
    most_rows: int = 24
    compact: bool = False
    words: Sequence[Sequence[str]] | None = None

    @property
    def hatched(self) -> Array:
        """Return a bool array that is True for the cells without a number."""
        unknown = ~np.isfinite(self.values)
        return np.asarray(unknown if self.hidden is None else self.hidden | unknown)

    @property
    def ends(self) -> tuple[float, float]:
        """Return `(low, high)`, the ends of the scale."""
        if self.top is not None:
            return 0.0, self.top
        if self.scale is not None:
            return self.scale
        return signed_end(np.where(self.hatched, self.ground, self.values), self.ground)

    @property
    def signed(self) -> bool:
        """Return whether the scale has numbers on both sides of `ground`."""
        return self.top is None and self.ends[0] < self.ground

    @property
    def shares(self) -> Array:
        """Scale the numbers so that `ground` becomes 0 and the upper end becomes 1."""
        ground = self.ground if self.top is None else 0.0
        return np.asarray((self.values - ground) / (self.ends[1] - ground))

    @property
    def scale_name(self) -> str:
        """Name the scale."""
        if self.top in (None, 1.0):
            ground = f" (no colour: {self.form(self.ground)})" if self.ground else ""
            return self.of + ground
        return f"{self.of}, stretched"

    @property
    def form(self) -> Callable[[float], str]:
        """Choose one number format for all cells."""
        return "{:.2f}".format if self.of == "weight" else number_format(self.values[~self.hatched])

    @cached_property
    def part(self) -> "HeatMap":
        """Reduce the map for a picture: keep the rows and columns with the largest scores."""
        score = np.abs(self.shares) if self.score is None else self.score
        rows, columns = strongest_block(score, MOST_ROWS, MOST_ROWS)
        if (len(rows), len(columns)) == self.values.shape:
            return self
        cells = np.ix_(rows, columns)
        return replace(
            self,
            values=self.values[cells],
            rows=[self.rows[i] for i in rows],
            columns=[self.columns[j] for j in columns],
            hidden=None if self.hidden is None else self.hidden[cells],
            words=self.words and [[self.words[i][j] for j in columns] for i in rows],
            score=None,
            outlined=[rows.index(i) for i in self.outlined if i in rows],
            whole=self.whole or (len(self.rows), len(self.columns)),
        )

    @property
    def left_out(self) -> str:
        """Say how many of the rows and columns are shown; return "" if all are shown."""
        if self.whole in (None, self.values.shape):
            return ""
        assert self.whole is not None
        (n, m), (all_n, all_m) = self.values.shape, self.whole
        parts = f"{n} of {all_n} rows and {m} of {all_m} columns"
        return f"Shown: {parts}, those with the largest {self.what}."

    @property
    def what(self) -> str:
        """Return "weights" if the numbers are weights, otherwise "numbers"."""
        return "weights" if self.of == "weight" else "numbers"


@dataclass(frozen=True, eq=False, kw_only=True)
class Links(Panel):
    """Lines from queries to the keys that they attend to; larger weights have wider lines.

    Attributes:
        map: the weights. The lines from the query of the outlined row are highlighted.
        strongest: the largest links as `(from, to, weight)`, for media that cannot draw crossing
            lines.
    """

    map: HeatMap
    strongest: Sequence[tuple[str, str, float]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Bars(Panel):
    """A list of names, each with a number and a bar.

    Attributes:
        names: the names.
        values: a number for each name.
        form: the format of the numbers.
        top: the number whose bar has full length; by default the number furthest from `ground`.
        ground: the number at which bars begin.
        hollow: the indices of bars that a picture draws without a fill.
    """

    names: Sequence[str]
    values: Sequence[float]
    form: str = "{:.3f}"
    top: float | None = None
    ground: float = 0.0
    hollow: Sequence[int] = ()

    @property
    def shares(self) -> list[float]:
        """Return the length of each bar, from 0 to 1; a number that is not finite has length 0."""
        sizes = np.nan_to_num(np.abs(np.asarray(self.values) - self.ground), posinf=0.0)
        most = (sizes.max(initial=0.0) if self.top is None else self.top) or 1.0
        return [min(1.0, float(size / most)) for size in sizes]

    @property
    def signed(self) -> bool:
        """Return whether any number is below `ground`; if so, all bars begin in the middle."""
        return any(value < self.ground for value in self.values)


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart.

    Attributes:
        points: `(position, number)` of each point; positions are indices into the chart's names.
        name: the line's name in the legend; empty to leave the line out of the legend.
        color: the line's colour; by default the first line colour of the theme.
        dash: the lengths of strokes and gaps in pixels; empty for a solid line.
        spread: half the height of the shaded band around each point; empty for no band.
    """

    points: Sequence[tuple[float, float]]
    name: str = ""
    color: str = ""
    dash: tuple[float, ...] = ()
    spread: Sequence[float] = ()

    @property
    def band(self) -> list[tuple[float, float, float]]:
        """List `(position, lower end, upper end)` for each finite point of the band."""
        ends = [(x, y - by, y + by) for (x, y), by in zip(self.points, self.spread, strict=False)]
        return [one for one in ends if all(map(math.isfinite, one))]


@dataclass(frozen=True, eq=False, kw_only=True)
class Lines(Panel):
    """A line chart with evenly spaced names, such as layers or steps, on the horizontal axis.

    Attributes:
        lines: the lines.
        names: the names at positions 0, 1 and so on.
        ends: the lower and the upper end of the numbers on the vertical axis.
        numbered: whether each number is written beside its point.
    """

    lines: Sequence[ChartLine]
    names: Sequence[str]
    ends: tuple[float, float]
    numbered: bool = False

    @property
    def axis(self) -> tuple[float, float]:
        """Extend `ends` to multiples of a round step; the axis has at most five steps.

        >>> Lines(lines=[], names=[], ends=(0.934, 1.0)).axis
        (0.92, 1.0)
        """
        low, high = self.ends
        unit = 10.0 ** math.floor(math.log10(high - low or abs(high) or 1.0))
        steps = [part * unit for part in (0.1, 0.2, 0.5, 1, 2, 5)]
        axes = [(math.floor(low / s + 1e-9), math.ceil(high / s - 1e-9), s) for s in steps]
        first, last, step = next(axis for axis in axes if axis[1] - axis[0] <= 5)
        return float(f"{first * step:.9g}"), float(f"{last * step:.9g}")

    @property
    def ticks(self) -> list[int]:
        """Choose the positions to label so that the names fit; always label the last position."""
        indices = range(len(self.names))
        return list(indices[:: -max(1, -(-len(indices) // 12))])[::-1]


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrows(Panel):
    """Arrows in a plane, each from a word's vector before attention to its vector after attention.

    Attributes:
        before: `(n, 2)`, the points before attention.
        after: `(n, 2)`, the points after attention.
        names: the names of the points in `after`.
        alone: the names of the points in `before`, if they differ from `names`.
        named: the indices of the points with labels.
        explained_variance: the share of the variance along each axis.
    """

    before: Array
    after: Array
    names: Sequence[str]
    alone: Sequence[str] | None = None
    named: Sequence[int]
    explained_variance: Sequence[float]
    shown_in: frozenset[str] = PICTURE

    @property
    def axis_names(self) -> list[str]:
        """Name the two axes."""
        return [
            f"PC {n} ({share:.0%} of the variance of unit vectors; each set centred first)"
            for n, share in enumerate(self.explained_variance, 1)
        ]

    @property
    def labels(self) -> list[tuple[Array, str, bool]]:
        """List the labels as `(point, words, flag)`; the flag is true for points in `after`.

        The set with the larger spread, `before` or `after`, comes first. Points with the same
        position and name share one label.
        """
        ends = [(self.before, self.alone or self.names, False), (self.after, self.names, True)]
        ends.sort(key=lambda end: -float(end[0].std()))
        wanted = []
        for points, names, after in ends:
            near = np.round(points / (np.ptp(points) or 1), 4).tolist()  # ignores rounding
            spots = {(names[i], *near[i]): i for i in reversed(self.named)}
            wanted += [(points[i], names[i], after) for i in sorted(spots.values())]
        return wanted


@dataclass(frozen=True, eq=False, kw_only=True)
class Points(Panel):
    """Named points in a plane.

    Attributes:
        points: `(n, 2)`.
        names: the name of each point.
        named: the indices of the points with labels.
        axis_names: the names of the horizontal and the vertical axis.
        equal: whether both axes have the same scale.
    """

    points: Array
    names: Sequence[str]
    named: Sequence[int]
    axis_names: tuple[str, str]
    equal: bool = False
    shown_in: frozenset[str] = PICTURE

    @property
    def labels(self) -> list[tuple[Array, str, bool]]:
        """List the labels as `(point, name, False)`, as `Arrows.labels` does."""
        return [(self.points[i], self.names[i], False) for i in self.named]

    @property
    def before(self) -> Array:
        """Return the points, which labels should not cover."""
        return self.points

    after = before


@dataclass(frozen=True, eq=False, kw_only=True)
class Image(Panel):
    """An image with frames around some of its patches.

    Attributes:
        pixels: `(h, w, 3)` of uint8.
        grid: the numbers of rows and columns of patches.
        frames: the framed patches, each as `(row, column, colour)`.
        chosen: True for the small image that another panel enlarges, False for the other small
            images, and None for a large image.
    """

    pixels: Array
    grid: tuple[int, int] = (1, 1)
    frames: Sequence[tuple[int, int, str]] = ()
    chosen: bool | None = None
    shown_in: frozenset[str] = PICTURE

    @property
    def edge(self) -> str:
        """Return the colour of the image's outline; empty for an image without an outline."""
        return AFTER if self.chosen else LINE if self.chosen is None and not self.frames else ""


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table.

    Attributes:
        header: the words above the column.
        cells: the text of each row.
        bars: shares from 0 to 1, drawn as bars instead of text.
        style: a Rich style for all cells, or a list with a style for each cell.
        left: whether texts are aligned to the left.
        spare: whether a narrow terminal may omit the column. Spare columns are omitted from left to
            right until the table fits or only two spare columns are left.
    """

    header: str
    cells: Sequence[str] = ()
    bars: Sequence[float] | None = None
    style: Sequence[str] | str = "not bold"
    left: bool = False
    spare: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Table(Panel):
    """A table for a terminal; each row has a name, numbers and bars.

    Attributes:
        names: the names of the rows.
        columns: the columns beside the names.
        corner: the header of the column of names.
        note: the words below the table.
    """

    names: Sequence[str]
    columns: Sequence[Column]
    corner: str = ""
    note: str = ""
    shown_in: frozenset[str] = TERMINAL


@dataclass(frozen=True, eq=False, kw_only=True)
class Numbers(Panel):
    """The numbers in an array's first rows and columns, for a terminal.

    Attributes:
        values: the numbers.
        rows: a label for each row.
        columns: a label for each column; by default the column's index.
        cell: the row and column of the marked cell, which is always shown.
        hidden: `(n, m)` bool, the masked cells.
        most_rows: the maximum number of rows.
    """

    values: Array
    rows: Sequence[str]
    columns: Sequence[str] | None = None
    cell: tuple[int, int] | None = None
    hidden: Array | None = None
    most_rows: int = 8
    shown_in: frozenset[str] = TERMINAL


@dataclass(frozen=True, eq=False, kw_only=True)
class Cells(Panel):
    """Shares from 0 to 1 as shaded cells without labels, for a terminal.

    Attributes:
        shares: `(n, m)`, the shade of each cell.
        marked: the row and column of the marked cell.
    """

    shares: Array
    marked: tuple[int, int] | None = None
    shown_in: frozenset[str] = TERMINAL


@dataclass(frozen=True, eq=False, kw_only=True)
class Prose(Panel):
    """Lines of words.

    Attributes:
        text: the words.
        style: the style of the words in a terminal.
        indent: the number of spaces before each line.
        code: whether the lines are code; lines of code are never wrapped.
    """

    text: str
    style: str = ""
    indent: int = 0
    code: bool = False


class Passage(NamedTuple):
    """Shaded words of a text.

    Attributes:
        label: the label to the left of the passage.
        words: the words of the passage.
        shares: the shade of each word, from 0 to 1.
        marked: the index of the marked word.
    """

    label: str
    words: Sequence[str]
    shares: Sequence[float]
    marked: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Passages(Panel):
    """Passages of text, one below the other; the background of a word shows its share.

    Attributes:
        passages: the passages.
    """

    passages: Sequence[Passage]

    def wrap(self, measure: Callable[[str], float], width: float) -> list[list[list[int]]]:
        """Break each passage into lines; for each line, return the indices of its words.

        >>> panel = Passages(passages=[Passage("", ["a", "few", "words"], [0, 0, 1], 2)])
        >>> panel.wrap(len, 6)
        [[[0, 1], [2]]]
        """
        passages = []
        for passage in self.passages:
            lines: list[list[int]] = [[]]
            free = width
            for number, size in enumerate(map(measure, passage.words)):
                if lines[-1] and size > free:
                    lines.append([])
                    free = width
                lines[-1].append(number)
                free -= size
            passages.append(lines)
        return passages


@dataclass(frozen=True, eq=False, kw_only=True)
class Later(Panel):
    """A panel that is computed only when it is drawn, because it is expensive.

    Attributes:
        make: the function that computes the panel.
    """

    make: Callable[[], Panel]
    shown_in: frozenset[str] = PICTURE


class GraphEdge(NamedTuple):
    """An edge of a graph.

    Attributes:
        sender: the node where the edge begins.
        receiver: the node where the edge ends.
        input: "q", "k" or "v", the input of the receiver where the edge ends. It is empty if the
            receiver has only one input.
        value: the number that the edge shows.
    """

    sender: str
    receiver: str
    input: str
    value: float

    @property
    def end(self) -> str:
        """The name of the receiver with its input, such as "attn.2.0.q"."""
        return ".".join(filter(None, (self.receiver, self.input)))

    @property
    def name(self) -> str:
        """Name both ends of the edge, as "mlp.0 → attn.2.0.q"."""
        return f"{self.sender} → {self.end}"


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphPanel(Panel):
    """A graph: nodes in rows from the bottom up, and edges that are wider for larger numbers.

    Attributes:
        nodes: the column (from the left) and the row (from the bottom) of each node.
        edges: the drawn edges, the largest number first.
        labels: the words that the picture shows for each node.
        rows: the names of rows, keyed by the row's number, counted from the bottom.
        of: the meaning of the numbers.
        whole: the count of all edges, including edges that are not drawn.
    """

    nodes: Mapping[str, tuple[float, float]]
    edges: Sequence[GraphEdge]
    labels: Mapping[str, str]
    rows: Mapping[float, str]
    of: str
    whole: int
    shown_in: frozenset[str] = PICTURE

    @property
    def size(self) -> tuple[float, float]:
        """Return the largest column number and the largest row number."""
        columns, rows = zip(*self.nodes.values(), strict=True)
        return max(columns), max(rows)

    @property
    def margin(self) -> float:
        """The number of columns right of the last node's centre, which half of its label needs."""
        return max(0.6, 0.08 * max(map(len, self.labels.values())))

    @property
    def shares(self) -> list[float]:
        """Divide each edge's number by the largest absolute number; return shares from -1 to 1."""
        most = max((abs(edge.value) for edge in self.edges), default=0.0) or 1.0
        return [edge.value / most for edge in self.edges]

    @property
    def curves(self) -> list[Array]:
        """Return each edge's path, joined Bézier curves (3 n + 1, 2) that avoid all nodes."""
        cells, curves = self.nodes.values(), []
        columns = np.arange(-0.6, self.size[0] + 0.65, 0.05)
        for edge in self.edges:
            (x, y), (end, high) = self.nodes[edge.sender], self.nodes[edge.receiver]
            end += INPUTS.get(edge.input, 0.0)
            stops = [(x, y + HALF)]
            for row in sorted({row for _, row in cells if y < row < high}):
                nodes = np.array([column for column, at in cells if at == row])
                free = columns[np.abs(columns[:, None] - nodes).min(1) > 0.499]
                gap = float(free[np.abs(free - np.interp(row, (y, high), (x, end))).argmin()])
                stops += [(gap, row - HALF), (gap, row + HALF)]
            path = stops[:1]
            for (x, y), (to, top) in itertools.pairwise([*stops, (end, high - HALF)]):
                path += [(x, (y + top) / 2), (to, (y + top) / 2), (to, top)]
            curves.append(np.array(path))
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
        return f"{signs} Shown: {count} of {self.whole} edges, those with the largest numbers."


Rows = Sequence[Sequence[Panel]]


def drawn_in(medium: str, rows: Rows) -> list[list[Panel]]:
    """Return the rows of panels that a medium draws; leave out empty rows."""
    panels = ([panel for panel in row if medium in panel.shown_in] for row in rows)
    return [[x.make() if isinstance(x, Later) else x for x in row] for row in panels if row]


def split_prose(rows: Rows) -> tuple[list[str], list[list[Panel]]]:
    """Return the texts of a picture's prose panels, and the rows of its other panels."""
    grid = drawn_in("picture", rows)
    prose = [panel.text for row in grid for panel in row if isinstance(panel, Prose)]
    drawn = ([panel for panel in row if not isinstance(panel, Prose)] for row in grid)
    return prose, [row for row in drawn if row]


def number_format(values: Array) -> Callable[[float], str]:
    """Return one formatting function for all numbers, so that their digits align.

    >>> form = number_format(np.array([0.5, -12.0]))
    >>> form(0.5), form(-12.0), number_format(np.array([2e-6]))(2e-6)
    ('0.500', '-12.000', '2.00e-06')
    """
    return number_spec(values).format


def number_spec(values: Array) -> str:
    """Return the format string that `number_format` uses."""
    size = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    if size and not 1e-2 <= size < 1e6:
        return "{:.2e}"
    return "{:z.3f}" if size < 100 else "{:z.2f}" if size < 1e4 else "{:z.1f}"


Point = tuple[float, float]
Box = tuple[float, float, float, float]  # The left, lower, right and upper edges of a rectangle.
Label = tuple[Point, Point]  # The point to label, and the (width, height) of the label.
Spot = tuple[Box, Point | None] | None
# The directions from a point to its label, as multiples of 22.5 degrees, in the order in which they
# are tried: right, left, above, below, then the directions between them.
_DIRECTIONS = (0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 5, 11, 13)
_FAR = 14.0  # at larger distances, a line joins the label to its point


def place_labels(labels: Sequence[Label], before: Array, after: Array, area: Box) -> Iterator[Spot]:
    """Place labels near their points; yield `(box, line end)`, or None if a label does not fit.

    The method is greedy: each label takes the nearest position that overlaps no earlier label.
    A label close to its own point covers no arrow. If there is no such position, the label is
    placed farther from its point, where it may cover arrows. If a label is far from its point, a
    line joins the label to the point, and meets the box at `line end`. Without a line, `line end`
    is None, and no other start or end of an arrow is closer to the label than the label's own
    point.

    Args:
        labels: the point, the width and the height of each label.
        before: `(n, 2)`, the starts of the arrows, which labels should not cover.
        after: `(n, 2)`, the ends of the arrows.
        area: the left, lower, right and upper edges of the area for labels.
    """
    taken: list[Box] = []
    points, dots = on_arrows(before, after), np.concatenate([before, after])
    for label in labels:
        box, point = _free_box(label, points, dots, area, taken), label[0]
        if box is None:
            yield None
            continue
        taken.append(box)
        nearest = min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3])
        yield box, nearest if math.dist(point, nearest) > _FAR else None


def _free_box(
    label: Label, points: Array, dots: Array, area: Box, taken: Sequence[Box]
) -> Box | None:
    """Find a free box in the area for a label, as near to the label's point as possible."""
    (x, y), (width, height) = label
    for ring in range(100):
        radius = 5 + 4 * ring
        for direction in _DIRECTIONS:
            along, up = math.cos(direction * math.pi / 8), math.sin(direction * math.pi / 8)
            left = x + radius * along + (along - 1) / 2 * width
            low = y + radius * up + (up - 1) / 2 * height
            box = left, low, right, high = left, low, left + width, low + height
            if left < area[0] or low < area[1] or right > area[2] or high > area[3]:
                continue
            if any(left < b[2] and b[0] < right and low < b[3] and b[1] < high for b in taken):
                continue
            inside = (points > (left - 2, low - 2)) & (points < (right + 2, high + 2))
            away = np.stack([(x, y), *dots])
            away = np.hypot(*(away - np.clip(away, (left, low), (right, high))).T)
            if ring < 12 and inside.all(axis=1).any():
                continue
            if away.min() < away[0] - 0.1 and away[0] <= _FAR:
                continue  # without a line, the label would seem to name another point
            return box
    return None


def on_arrows(before: Array, after: Array, count: int = 24) -> Array:
    """Return `count` points on each arrow, including both ends, `(count * n, 2)`."""
    along = np.linspace(0, 1, count)[:, None, None]
    return np.asarray((before + along * (after - before)).reshape(-1, 2))
