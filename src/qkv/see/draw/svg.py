"""Static pictures of views as SVG: for pages whose scripts are off, and for print."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.see.draw.colours import THEMES, ink, shade, signed_end
from qkv.see.draw.terminal import number_format

INK, DIM, LINE, ACCENT, BEFORE = "#1a1a1a", "#555555", "#b5b5b5", "#c8102e", "#1f5fbf"
LINES = THEMES["light"].lines
MOST_ROWS = 32
_SIZE = 11  # pixels of a letter's height
_GAP = 24


class Part(NamedTuple):
    """A piece of a picture: its elements, and how much room it takes."""

    elements: list[str]
    width: float
    height: float


def picture(
    title: str, lines: Sequence[str], rows: Iterable[Sequence[Part]], name: str = ""
) -> str:
    """One SVG text on white: a title, lines of prose, then parts in rows beside each other.

    Args:
        title: stands on top, and is what the picture is called by those who cannot see it.
        lines: stand under it.
        rows: the parts.
        name: what the picture is called, where that is not its title.
    """
    grid = [list(row) for row in rows]
    wide = [sum(part.width for part in row) + _GAP * (len(row) - 1) for row in grid]
    width = max([320.0, *wide]) + 2 * _GAP
    elements, y = [], float(_GAP)
    prose = [(line, 14, INK, "bold") for line in _wrapped(title, width - 2 * _GAP, 14)]
    prose += [
        (part, 11, DIM, "normal") for line in lines for part in _wrapped(line, width - 2 * _GAP, 11)
    ]
    for line, size, color, weight in prose:
        y += size
        elements.append(text(_GAP, y, line, size=size, fill=color, weight=weight))
        y += 6
    for row in grid:
        y += 14
        x = float(_GAP)
        for part in row:
            elements.append(f'<g transform="translate({x:g} {y:g})">')
            elements += [*part.elements, "</g>"]
            x += part.width + _GAP
        y += max((part.height for part in row), default=0)
    height = y + _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" style="max-width:100%;height:auto" role="img" '
        f'aria-label="{_escaped(name or title)}" '
        'font-family="system-ui, -apple-system, Segoe UI, sans-serif">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(elements)}</svg>'
    )


def text(
    x: float,
    y: float,
    content: str,
    *,
    size: float = _SIZE,
    fill: str = INK,
    anchor: str = "start",
    weight: str = "normal",
    turn: float = 0,
) -> str:
    """Words at a place; whatever they hold is shown and not read as markup."""
    more = "" if anchor == "start" else f' text-anchor="{anchor}"'
    more += "" if weight == "normal" else f' font-weight="{weight}"'
    more += f' transform="rotate({turn:g} {x:.1f} {y:.1f})"' if turn else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"{more}>'
        f"{_escaped(content)}</text>"
    )


def heat_map(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    top: float | None = 1.0,
    hidden: Array | None = None,
    caption: str = "",
    of: str = "weight",
    outlined: Iterable[int] = (),
    missing: str = "hidden by the mask",
) -> Part:
    """Numbers `(n, m)` as cells of colour with their labels, and a scale below.

    Args:
        values: the numbers; those that are not finite are hatched.
        rows: a label for each row.
        columns: a label for each column.
        top: the upper end of the scale, whose lower one is 0. None for numbers of any size and
            sign, whose scale is as long as they need and has 0 at its lower end or in its middle.
        hidden: which cells to hatch as well.
        caption: what is shown.
        of: what the numbers are.
        outlined: rows to put a frame round.
        missing: what a hatched cell is.
    """
    hatched = ~np.isfinite(values) if hidden is None else hidden | ~np.isfinite(values)
    finite = np.where(hatched, 0.0, values)
    low, high = signed_end(finite) if top is None else (0.0, top)
    form: Callable[[float], str] = (
        "{:.2f}".format if of == "weight" else number_format(finite[~hatched])
    )
    n, m = values.shape
    cell = 30.0 if max(n, m) <= 14 else 18.0 if max(n, m) <= 24 else 14.0
    size = 9.0 if max((len(form(x)) for x in finite.ravel().tolist()), default=0) <= 5 else 7.5
    left = max([_width(row) for row in rows], default=0) + 8
    above = max([_width(column) for column in columns], default=0) * 0.71 + 12
    top_edge = above + (20 if caption else 0)
    elements = [text(left, 12, caption, weight="bold")] if caption else []
    for j, column in enumerate(columns):
        elements.append(
            text(left + (j + 0.6) * cell, top_edge - 6, _cut(column), turn=-45, fill=INK)
        )
    marks = []
    for i, row in enumerate(rows):
        y = top_edge + i * cell
        elements.append(text(left - 6, y + cell / 2 + 4, _cut(row), anchor="end"))
        for j in range(m):
            x = left + j * cell
            if hatched[i, j]:
                marks.append(f"M{x:g} {y + cell:g}l{cell:g} {-cell:g}")
                continue
            color = shade(float(values[i, j]) / high)
            elements.append(
                f'<rect x="{x:g}" y="{y:g}" width="{cell:g}" height="{cell:g}" fill="{color}" '
                'shape-rendering="crispEdges"/>'
            )
            if cell == 30.0:
                number, place = form(float(values[i, j])), (x + cell / 2, y + cell / 2 + 3.5)
                elements.append(text(*place, number, size=size, fill=ink(color), anchor="middle"))
    if marks:
        elements.append(f'<path d="{"".join(marks)}" stroke="{LINE}" fill="none"/>')
    elements.append(_frame(left, top_edge, m * cell, n * cell, LINE, 1))
    elements += [_frame(left, top_edge + i * cell, m * cell, cell, INK, 2) for i in outlined]
    bottom = top_edge + n * cell + 14
    label = of if top in (None, 1.0) else f"{of}, stretched"
    elements += _scale(left, bottom, low, high, form, label)
    if marks:
        bottom += 24
        elements.append(text(left, bottom + 10, f"hatched: {missing}", size=10, fill=DIM))
    slant = _width(columns[-1]) * 0.71 if columns else 0
    width = left + max(m * cell + slant, 190.0)
    return Part(elements, max(width, left + _caption(caption)), bottom + 14)


def links(
    weights: Array, rows: Sequence[str], columns: Sequence[str], query: int, caption: str = ""
) -> Part:
    """Lines from tokens to the tokens they look at, as wide and as dark as the weight `(n, m)`.

    Those of one query stand out; the others are faint.
    """
    step = 20.0
    left = max([_width(row) for row in rows], default=0) + 10
    right = left + 130
    top = 24.0 if caption else 4.0
    elements = [text(0, 12, caption, weight="bold")] if caption else []
    order = [i for i in range(len(rows)) if i != query] + [query]
    for i in order:
        for j in range(len(columns)):
            weight = float(np.nan_to_num(weights[i, j]))
            strength = min(1.0, weight) * (1.0 if i == query else 0.25)
            if strength < 0.01:
                continue
            color = LINES[0] if i == query else "#888888"
            elements.append(
                f'<line x1="{left:g}" y1="{top + (i + 0.5) * step:g}" x2="{right:g}" '
                f'y2="{top + (j + 0.5) * step:g}" stroke="{color}" '
                f'stroke-width="{0.5 + 4 * strength:.2f}" opacity="{0.15 + 0.85 * strength:.2f}"/>'
            )
    for i, row in enumerate(rows):
        place = (left - 6, top + (i + 0.5) * step + 4)
        face = "bold" if i == query else "normal"
        elements.append(text(*place, _cut(row), anchor="end", weight=face))
    for j, column in enumerate(columns):
        elements.append(text(right + 6, top + (j + 0.5) * step + 4, _cut(column)))
    width = right + 6 + max([_width(column) for column in columns], default=0)
    return Part(elements, max(width, _caption(caption)), top + max(len(rows), len(columns)) * step)


def curve(values: Sequence[float], names: Sequence[str], caption: str = "") -> Part:
    """Numbers in order as bars beside each other, each with its name and value."""
    wide, height, top = 64.0, 110.0, 34.0
    known = [value for value in values if math.isfinite(value)]
    lowest, highest = min([0.0, *known]), max([1e-12, *known])
    span = highest - lowest
    zero = top + height * highest / span
    elements = [text(0, 12, caption, weight="bold")] if caption else []
    for place, (value, name) in enumerate(zip(values, names, strict=True)):
        tall = value if math.isfinite(value) else 0.0
        x, y = place * wide, top + height * (highest - max(tall, 0)) / span
        size = height * abs(tall) / span
        elements += [
            f'<rect x="{x + 12:g}" y="{y:.1f}" width="{wide - 24:g}" height="{size:.1f}" '
            f'fill="{BEFORE}"/>',
            text(x + wide / 2, y - 4, f"{value:.3f}", size=10, anchor="middle"),
            text(x + wide / 2, top + height + 14, name, size=10, fill=DIM, anchor="middle"),
        ]
    elements.append(f'<path d="M0 {zero:.1f}h{wide * len(values):g}" stroke="{LINE}"/>')
    return Part(elements, max(wide * len(values), _caption(caption)), top + height + 22)


class Line(NamedTuple):
    """A line of a chart: its places, what it is called, and how it looks.

    Attributes:
        points: `(x, y)` of each.
        name: what stands in the legend; empty for none.
        color: of the line.
        dash: its strokes and gaps, as SVG has them; empty for a whole line.
    """

    points: Sequence[tuple[float, float]]
    name: str
    color: str = BEFORE
    dash: str = ""


def chart(
    lines: Sequence[Line],
    caption: str,
    knots: Sequence[float],
    ends: tuple[float, float],
    *,
    width: float = 460,
) -> Part:
    """Lines over whole numbers, such as training steps.

    Args:
        lines: the lines.
        caption: what is shown.
        knots: what stands at even distances on the axis from left to right, in order.
        ends: those of the axis from below to above.
        width: of the whole.
    """
    left, top, height = 46.0, 26.0, 150.0
    named = [line for line in lines if line.name]
    low, high = ends
    wide = (width - left - 16) / max(1, len(knots) - 1)
    tall = height / ((high - low) or 1)

    def x(value: float) -> float:
        return left + float(np.interp(value, knots, range(len(knots)))) * wide

    def y(value: float) -> float:
        return top + (high - value) * tall

    elements = [text(0, 12, caption, weight="bold")]
    for value in (low, (low + high) / 2, high):
        elements += [
            f'<path d="M{left:g} {y(value):.1f}H{width - 16:g}" stroke="{LINE}"/>',
            text(left - 6, y(value) + 4, f"{value:.2f}", size=10, fill=DIM, anchor="end"),
        ]
    every = -(-len(knots) * 50 // int(width - left))  # so that names do not meet
    for knot in knots[::-1][::every]:
        words, low_end = f"{knot:,.0f}", top + height + 16
        elements.append(text(x(knot), low_end, words, size=10, fill=DIM, anchor="middle"))
    for line in lines:
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        drawn = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line.points)
        elements.append(
            f'<polyline points="{drawn}" fill="none" stroke="{line.color}" stroke-width="2"{dash}/>'
        )
    for place, line in enumerate(named):
        below = top + height + 38 + 18 * place
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        elements += [
            f'<path d="M{left:g} {below - 4:g}h28" stroke="{line.color}" stroke-width="2"{dash}/>',
            text(left + 36, below, line.name, fill=INK),
        ]
    return Part(elements, max(width, _caption(caption)), top + height + 24 + 18 * len(named))


def arrows(before: Array, after: Array, names: Sequence[str]) -> Part:
    """Points before (blue) and after (red), an arrow between each pair, labels that do not meet.

    An empty name is not written. A thin line leads to a name that stands far from its point;
    of points in one spot a name is written once.
    """
    side, edge = 460.0, 60.0
    both = np.concatenate([before, after])
    low, high = both.min(axis=0), both.max(axis=0)
    scale = (side - 2 * edge) / max(float((high - low).max()), 1e-12)
    middle = (low + high) / 2

    def place(points: Array) -> Array:
        return np.asarray((points - middle) * (scale, -scale) + side / 2)

    starts, ends = place(before), place(after)
    elements, marks = [], []
    for name, start, end in zip(names, starts, ends, strict=True):
        (x0, y0), (x1, y1) = start.tolist(), end.tolist()
        color = LINE if name else "#e4e4e4"
        marks.append(
            f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{color}" fill="none"/>'
        )
        for x, y, fill in ((x0, y0, BEFORE), (x1, y1, ACCENT)):
            size, opacity = (4, "1") if name else (2, "0.4")
            elements.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{fill}" opacity="{opacity}"/>'
            )
    points = np.concatenate([starts, ends])
    taken: list[tuple[float, float, float, float]] = []
    spots = set()
    for at, fill in ((ends, ACCENT), (starts, BEFORE)):
        for name, (x, y) in zip(names, at.tolist(), strict=True):
            spot = name, fill, round(x), round(y)
            if not name or spot in spots:
                continue
            spots.add(spot)
            room = (_width(name) + 4, _SIZE + 3.0)
            box = _free_box((x, y), room, taken, points, side)
            if box is not None:
                taken.append(box)
                near = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
                if math.dist((x, y), near) > 14:
                    line = f"M{x:.1f} {y:.1f}L{near[0]:.1f} {near[1]:.1f}"
                    marks.append(f'<path d="{line}" stroke="{fill}" stroke-width="0.5"/>')
                elements.append(text(box[0] + 2, box[3] - 4, _cut(name), fill=fill))
    return Part([*marks, *elements], side, side)


def table(rows: Sequence[tuple[str, float]], caption: str = "", form: str = "{:.3f}") -> Part:
    """Names with a number each, and a bar for it; the largest fills its room."""
    top = 24.0 if caption else 4.0
    left = max([_width(name) for name, _ in rows], default=0) + 8
    most = max([abs(value) for _, value in rows if math.isfinite(value)], default=0) or 1.0
    elements = [text(0, 12, caption, weight="bold")] if caption else []
    for place, (name, value) in enumerate(rows):
        y = top + place * 18
        long = 120 * abs(value) / most if math.isfinite(value) else 0.0
        elements += [
            text(left - 6, y + 12, _cut(name), anchor="end"),
            f'<rect x="{left:g}" y="{y + 3:g}" width="{long:.1f}" height="11" fill="{BEFORE}"/>',
            text(left + long + 5, y + 12, form.format(value), size=10, fill=DIM),
        ]
    return Part(elements, max(left + 180, _caption(caption)), top + 18 * len(rows))


def readable(content: str) -> str:
    r"""Text as it can stand in XML: what has no shape of its own becomes a sign for it.

    >>> readable("a\nb\x00\ud800\u202e")
    'a␊b␀��'
    """
    return "".join(_sign(mark) for mark in content)


def _sign(mark: str) -> str:
    code = ord(mark)
    if code < 0x20:
        return chr(0x2400 + code)
    unseen = unicodedata.category(mark) in ("Cc", "Cs") or code & 0xFFFE == 0xFFFE
    turns = unicodedata.bidirectional(mark) in _TURNS
    return "\ufffd" if unseen or turns else mark


# They would turn round the words that follow them.
_TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def _escaped(content: str) -> str:
    return escape(readable(content), quote=True)


def _cut(content: str, most: int = 14) -> str:
    """A label that is not too long; blanks alone are shown as such."""
    if not content.strip():
        content = content.replace(" ", "␣") or "∅"
    return content if len(content) <= most else content[: most - 1] + "…"


def _width(content: str) -> float:
    """About how wide a label is, in pixels, once it is cut."""
    shown = _cut(content)
    wide = sum(unicodedata.east_asian_width(mark) in "WF" for mark in shown)
    return (0.6 * len(shown) + 0.45 * wide) * _SIZE


def _caption(content: str) -> float:
    """About how wide a caption in bold is."""
    return 0.68 * len(content) * _SIZE


def _wrapped(line: str, width: float, size: float) -> list[str]:
    """A line cut into lines that fit, between words where that is possible."""
    import textwrap

    return textwrap.wrap(readable(line), max(20, int(width / (0.56 * size))))


def _free_box(
    point: tuple[float, float],
    size: tuple[float, float],
    taken: Sequence[tuple[float, float, float, float]],
    points: Array,
    side: float,
) -> tuple[float, float, float, float] | None:
    """The nearest box round a point that meets no other; None if there is none near it."""
    x, y = point
    wide, high = size
    for ring in range(100):
        reach = 6 + 5 * ring
        for step in (0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 5, 11, 13):
            along, up = math.cos(step * math.pi / 8), math.sin(step * math.pi / 8)
            left = x + reach * along + (along - 1) / 2 * wide
            top = y - reach * up - (up + 1) / 2 * high
            box = (left, top, left + wide, top + high)
            if left < 0 or top < 0 or box[2] > side or box[3] > side:
                continue
            if any(_meet(box, other) for other in taken):
                continue
            near = (points > (left - 3, top - 3)) & (points < (box[2] + 3, box[3] + 3))
            if ring < 8 and near.all(axis=1).any():
                continue
            return box
    return None


def _meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _frame(x: float, y: float, width: float, height: float, color: str, line: float) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="none" '
        f'stroke="{color}" stroke-width="{line:g}"/>'
    )


def _scale(
    x: float, y: float, low: float, high: float, form: Callable[[float], str], of: str
) -> list[str]:
    steps, wide = 24, 4.0
    bar = [
        f'<rect x="{x + k * wide:g}" y="{y:g}" width="{wide + 0.5:g}" height="9" '
        f'fill="{shade((low + k / (steps - 1) * (high - low)) / high)}"/>'
        for k in range(steps)
    ]
    end = x + steps * wide
    return [
        *bar,
        _frame(x, y, steps * wide + 0.5, 9, LINE, 1),
        text(x, y + 20, form(low), size=9, fill=DIM),
        text(end, y + 20, form(high), size=9, fill=DIM, anchor="end"),
        text(end + 8, y + 9, of, size=10, fill=DIM),
    ]
