"""What a view shows, as panels: each medium (terminal, SVG, matplotlib) draws each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.measures import strongest_block
from qkv.see.draw.colours import AFTER, LINE, signed_end

TERMINAL, PICTURE = frozenset({"terminal"}), frozenset({"picture"})
MOST_ROWS = 32  # rows and columns of a map in a picture


@dataclass(frozen=True, eq=False, kw_only=True)
class Panel:
    """A part of a view.

    Attributes:
        title: what it shows.
        explained: what that means, more briefly than a sentence.
        name: what tells it from the panel beside it.
        shown_in: the media that draw it.
    """

    title: str = ""
    explained: str = ""
    name: str = ""
    shown_in: frozenset[str] = TERMINAL | PICTURE


@dataclass(frozen=True, eq=False, kw_only=True)
class HeatMap(Panel):
    """Numbers `(n, m)` as cells of colour with their labels, and a scale.

    Attributes:
        values: the numbers; those that are not finite are hatched.
        rows: a label for each row.
        columns: a label for each column.
        top: the upper end of the scale, whose lower one is 0. None for numbers of any size and
            sign, whose scale is as long as they need and has the ground at its lower end or in its
            middle.
        ground: the number that has the colour of the ground, where `top` is None.
        scale: both ends, where it is also that of other maps and `top` is None.
        hidden: which cells a mask hides.
        score: what makes a row or a column worth showing where not all fit; else the numbers.
        of: what the numbers are.
        outlined: rows to put a frame round.
        missing: what a hatched cell is.
        whole: how many rows and columns there are, where these are a part of them.
        most_rows: how many rows a terminal shows.
        compact: whether it is one of several small ones, without labels.
        words: what stands in each cell above its number.
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
        """The cells that have no number to show, bool."""
        unknown = ~np.isfinite(self.values)
        return np.asarray(unknown if self.hidden is None else self.hidden | unknown)

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the scale."""
        if self.top is not None:
            return 0.0, self.top
        if self.scale is not None:
            return self.scale
        return signed_end(np.where(self.hatched, self.ground, self.values), self.ground)

    @property
    def signed(self) -> bool:
        """Whether its scale goes both ways."""
        return self.top is None and self.ends[0] < self.ground

    @property
    def shares(self) -> Array:
        """How far each number is from the ground, from -1 to 1 at the ends of the scale."""
        ground = self.ground if self.top is None else 0.0
        return np.asarray((self.values - ground) / (self.ends[1] - ground))

    @property
    def scale_name(self) -> str:
        """What stands beside the scale."""
        if self.top in (None, 1.0):
            ground = f" (no colour: {self.form(self.ground)})" if self.ground else ""
            return self.of + ground
        return f"{self.of}, stretched"

    @property
    def form(self) -> Callable[[float], str]:
        """How its numbers are written."""
        return "{:.2f}".format if self.of == "weight" else number_format(self.values[~self.hatched])

    @cached_property
    def part(self) -> HeatMap:
        """The rows and columns of the largest score that a picture has room for."""
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
        """Which rows and columns are shown, where these are not all."""
        if self.whole in (None, self.values.shape):
            return ""
        assert self.whole is not None
        (n, m), (all_n, all_m) = self.values.shape, self.whole
        parts = f"{n} of {all_n} rows and {m} of {all_m} columns"
        return f"Shown: {parts}, those of the largest {self.what}."

    @property
    def what(self) -> str:
        """What its numbers are called, several of them."""
        return "weights" if self.of == "weight" else "numbers"


@dataclass(frozen=True, eq=False, kw_only=True)
class Links(Panel):
    """Lines from tokens to the tokens they look at, the stronger the larger the weight.

    Attributes:
        map: the weights; the lines of the row that is outlined stand out.
        strongest: from, to and weight of the largest, for where lines cannot cross.
    """

    map: HeatMap
    strongest: Sequence[tuple[str, str, float]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Bars(Panel):
    """Names with a number and a bar each.

    Attributes:
        names: the names.
        values: their numbers.
        form: how a number is written.
        top: the number of the longest bar; the largest if left out.
        ground: the number that has no bar.
    """

    names: Sequence[str]
    values: Sequence[float]
    form: str = "{:.3f}"
    top: float | None = None
    ground: float = 0.0

    @property
    def shares(self) -> list[float]:
        """How long each bar is, from 0 to 1; a number that is not finite has none."""
        sizes = np.nan_to_num(np.abs(np.asarray(self.values) - self.ground), posinf=0.0)
        most = (sizes.max(initial=0.0) if self.top is None else self.top) or 1.0
        return [min(1.0, float(size / most)) for size in sizes]

    @property
    def signed(self) -> bool:
        """Whether its bars begin in the middle, since some go the other way."""
        return any(value < self.ground for value in self.values)


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        points: `(place, number)` of each; places as those of the chart's names.
        name: what stands in the legend; empty for none.
        color: of the line; the first of a theme if left out.
        dash: its strokes and gaps in pixels; none for a whole line.
    """

    points: Sequence[tuple[float, float]]
    name: str = ""
    color: str = ""
    dash: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Lines(Panel):
    """Lines over names that stand at even distances, such as layers or training steps.

    Attributes:
        lines: the lines.
        names: what stands at the places 0, 1 and so on.
        ends: of the axis, from below to above.
        along: what the names are.
        numbered: whether each number is written beside its point.
    """

    lines: Sequence[Line]
    names: Sequence[str]
    ends: tuple[float, float]
    along: str = ""
    numbered: bool = False

    @property
    def ticks(self) -> list[int]:
        """The places whose names there is room for, the last among them."""
        places = range(len(self.names))
        return list(places[:: -max(1, -(-len(places) // 12))])[::-1]


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrows(Panel):
    """Points in a plane before and after, of vectors of length 1, with an arrow between each pair.

    Attributes:
        before: `(n, 2)`.
        after: `(n, 2)`.
        names: of the points after.
        alone: of the points before; as those after if left out.
        named: the places of the points that have their names written.
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
        """What the two axes are."""
        return [
            f"PC {n} ({share:.0%} of the variance of unit vectors; each set centred first)"
            for n, share in enumerate(self.explained_variance, 1)
        ]

    @property
    def labels(self) -> list[tuple[Array, str, bool]]:
        """Each label to place: where its point is, its words, and whether that is after.

        The end of the arrows that lies wider comes first. Points that coincide and have one name
        are named once.
        """
        ends = [(self.before, self.alone or self.names, False), (self.after, self.names, True)]
        ends.sort(key=lambda end: -float(end[0].std()))
        wanted = []
        for points, names, after in ends:
            near = np.round(points / (np.ptp(points) or 1), 4).tolist()  # equal but for rounding
            spots = {(names[i], *near[i]): i for i in reversed(self.named)}
            wanted += [(points[i], names[i], after) for i in sorted(spots.values())]
        return wanted


@dataclass(frozen=True, eq=False, kw_only=True)
class Image(Panel):
    """Pixels, and frames round patches of them.

    Attributes:
        pixels: `(h, w, 3)` of uint8.
        grid: how many patches there are below each other, and side by side.
        frames: row, column and colour of the patches that have a frame.
        chosen: whether it is the one of several that is shown large elsewhere; None where it is
            large itself.
    """

    pixels: Array
    grid: tuple[int, int] = (1, 1)
    frames: Sequence[tuple[int, int, str]] = ()
    chosen: bool | None = None
    shown_in: frozenset[str] = PICTURE

    @property
    def edge(self) -> str:
        """The colour of the line round it; none where frames or others stand out."""
        return AFTER if self.chosen else LINE if self.chosen is None and not self.frames else ""


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table.

    Attributes:
        header: what stands above it.
        cells: the texts, the same number in each column.
        bars: shares from 0 to 1 that are drawn in place of texts.
        style: of each cell, as the terminal's library names it.
        left: whether texts begin at the left, as words do.
        spare: whether it may be left out where there is no room; the first go first.
    """

    header: str
    cells: Sequence[str] = ()
    bars: Sequence[float] | None = None
    style: Sequence[str] | str = "not bold"
    left: bool = False
    spare: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Table(Panel):
    """Rows of a name, numbers and bars, for a terminal.

    Attributes:
        names: of the rows.
        columns: what stands beside them.
        corner: what stands above the names.
        note: what stands below.
    """

    names: Sequence[str]
    columns: Sequence[Column]
    corner: str = ""
    note: str = ""
    shown_in: frozenset[str] = TERMINAL


@dataclass(frozen=True, eq=False, kw_only=True)
class Numbers(Panel):
    """Numbers `(n, m)` as they are written, for a terminal: the first rows and columns.

    Attributes:
        values: the numbers.
        rows: a label for each row.
        columns: a label for each column; their numbers if left out.
        cell: a row and a column that are shown in any case, the number in them marked.
        hidden: `(n, m)` bool, True where a mask hides the number.
        most_rows: how many rows are shown.
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
    """Shares from 0 to 1 as cells without names, for a terminal.

    Attributes:
        shares: `(n, m)`.
        marked: the row and the column of a cell that has a mark.
    """

    shares: Array
    marked: tuple[int, int] | None = None
    shown_in: frozenset[str] = TERMINAL


@dataclass(frozen=True, eq=False, kw_only=True)
class Prose(Panel):
    """Lines of words.

    Attributes:
        text: the words.
        style: how a terminal writes them.
        indent: by how many columns they stand in.
        code: whether its lines stay as they are.
    """

    text: str
    style: str = ""
    indent: int = 0
    code: bool = False


class Passage(NamedTuple):
    """Words of a text that are shaded.

    Attributes:
        label: what stands in front of them.
        words: the words.
        shares: how dark each is, from 0 to 1.
        marked: the number of the word that it is about.
    """

    label: str
    words: Sequence[str]
    shares: Sequence[float]
    marked: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Passages(Panel):
    """Passages of texts below each other, their words shaded by numbers.

    Attributes:
        passages: the passages.
    """

    passages: Sequence[Passage]

    def wrapped(self, measure: Callable[[str], float], width: float) -> list[list[list[int]]]:
        """The words of each passage by their numbers, in lines that are as wide at most.

        >>> panel = Passages(passages=[Passage("", ["a", "few", "words"], [0, 0, 1], 2)])
        >>> panel.wrapped(len, 6)
        [[[0, 1], [2]]]
        """
        found = []
        for passage in self.passages:
            lines: list[list[int]] = [[]]
            room = width
            for number, size in enumerate(map(measure, passage.words)):
                if lines[-1] and size > room:
                    lines.append([])
                    room = width
                lines[-1].append(number)
                room -= size
            found.append(lines)
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Later(Panel):
    """A panel that is made where it is drawn, since making it takes long.

    Attributes:
        make: makes it.
    """

    make: Callable[[], Panel]
    shown_in: frozenset[str] = PICTURE


Rows = Sequence[Sequence[Panel]]


def drawn_in(medium: str, rows: Rows) -> list[list[Panel]]:
    """The panels that a medium draws; rows that have none are left out."""
    kept = ([panel for panel in row if medium in panel.shown_in] for row in rows)
    return [[x.make() if isinstance(x, Later) else x for x in row] for row in kept if row]


def pictured(rows: Rows) -> tuple[list[str], list[list[Panel]]]:
    """What a picture says in words, and the panels that it draws."""
    shown = drawn_in("picture", rows)
    said = [panel.text for row in shown for panel in row if isinstance(panel, Prose)]
    drawn = ([panel for panel in row if not isinstance(panel, Prose)] for row in shown)
    return said, [row for row in drawn if row]


def number_format(values: Array) -> Callable[[float], str]:
    """One way to write all of these numbers, so that they line up.

    >>> form = number_format(np.array([0.5, -12.0]))
    >>> form(0.5), form(-12.0), number_format(np.array([2e-6]))(2e-6)
    ('0.500', '-12.000', '2.00e-06')
    """
    return number_spec(values).format


def number_spec(values: Array) -> str:
    """The same as a text to format."""
    size = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    if size and not 1e-2 <= size < 1e6:
        return "{:.2e}"
    return "{:z.3f}" if size < 100 else "{:z.2f}" if size < 1e4 else "{:z.1f}"
