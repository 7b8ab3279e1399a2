"""Panels as SVG: for pages whose scripts are off, and for print."""

from __future__ import annotations

import base64
import math
import struct
import textwrap
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.see.draw.colours import AFTER, BEFORE, DIM, FAINT, INK, LINE, THEMES, ink, shade
from qkv.see.draw.labels import on_arrows, placed
from qkv.see.draw.panels import Arrows, Bars, HeatMap, Image, Lines, Links, Panel, Rows, pictured

_SIZE = 11  # pixels of a letter's height
_GAP = 24
_IMAGE, _SMALL = 300.0, 150.0  # pixels of the side of an image, and of one of several


class Part(NamedTuple):
    """A piece of a picture: its elements, and how much room it takes."""

    elements: list[str]
    width: float
    height: float


def draw(title: str, lines: Sequence[str], rows: Rows) -> str:
    """One SVG text on white: a title, panels in rows beside each other, then lines of prose."""
    said, shown = pictured(rows)
    grid = [[part(panel) for panel in row] for row in shown]
    wide = [sum(each.width for each in row) + _GAP * (len(row) - 1) for row in grid]
    width = max([320.0, *wide]) + 2 * _GAP
    elements, y = [], float(_GAP)
    for line in _wrapped(title, width - 2 * _GAP, 14):
        y += 14
        elements.append(text(_GAP, y, line, size=14, weight="bold"))
        y += 6
    for row in grid:
        y += 14
        x = float(_GAP)
        for each in row:
            elements.append(f'<g transform="translate({x:g} {y:g})">')
            elements += [*each.elements, "</g>"]
            x += each.width + _GAP
        y += max(each.height for each in row)
    y += 14
    for words in (*lines, *said):
        for line in _wrapped(words, width - 2 * _GAP, 11):
            y += 11
            elements.append(text(_GAP, y, line, size=11, fill=DIM))
            y += 6
    height = y + _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" style="max-width:100%;height:auto" role="img" '
        f'aria-label="{_escaped(title)}" '
        'font-family="system-ui, -apple-system, Segoe UI, sans-serif">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(elements)}</svg>'
    )


def part(panel: Panel) -> Part:
    """A panel under its title."""
    drawn = _DRAW[type(panel)](panel)
    if not panel.title:
        return drawn
    weight = "normal" if isinstance(panel, Image) and not panel.chosen else "bold"
    below = f'<g transform="translate(0 20)">{"".join(drawn.elements)}</g>'
    width = max(drawn.width, 0.68 * len(panel.title) * _SIZE)
    return Part([text(0, 12, panel.title, weight=weight), below], width, drawn.height + 20)


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


def _heat_map(panel: HeatMap) -> Part:
    """Cells of colour with their labels, and a scale below; what has no number is hatched."""
    if panel.compact:
        return _tile(panel)
    panel = panel.part
    rows, columns, hatched, form = panel.rows, panel.columns, panel.hatched, panel.form
    low, high = panel.ends
    n, m = panel.values.shape
    cell = 30.0 if max(n, m) <= 14 else 18.0 if max(n, m) <= 24 else 14.0
    written = [form(x) for x in panel.values[~hatched].tolist()]
    size = 9.0 if max(map(len, written), default=0) <= 5 else 7.5
    left = max([_width(row) for row in rows], default=0) + 8
    top = max([_width(column) for column in columns], default=0) * 0.71 + 12
    elements = [
        text(left + (j + 0.6) * cell, top - 6, _cut(column), turn=-45)
        for j, column in enumerate(columns)
    ]
    marks = []
    for i, row in enumerate(rows):
        y = top + i * cell
        elements.append(text(left - 6, y + cell / 2 + 4, _cut(row), anchor="end"))
        for j in range(m):
            x = left + j * cell
            if hatched[i, j]:
                marks.append(f"M{x:g} {y + cell:g}l{cell:g} {-cell:g}")
                continue
            color = shade(float(panel.values[i, j]) / high)
            elements.append(
                f'<rect x="{x:g}" y="{y:g}" width="{cell:g}" height="{cell:g}" fill="{color}" '
                'shape-rendering="crispEdges"/>'
            )
            if cell == 30.0:
                number, place = form(float(panel.values[i, j])), (x + cell / 2, y + cell / 2 + 3.5)
                elements.append(text(*place, number, size=size, fill=ink(color), anchor="middle"))
    if marks:
        elements.append(f'<path d="{"".join(marks)}" stroke="{LINE}" fill="none"/>')
    elements.append(_frame(left, top, m * cell, n * cell, LINE, 1))
    elements += [_frame(left, top + i * cell, m * cell, cell, INK, 2) for i in panel.outlined]
    bottom = top + n * cell + 14
    elements += _scale(left, bottom, low, high, form, panel.scale_name)
    for note in filter(None, (f"hatched: {panel.missing}" if marks else "", panel.left_out)):
        bottom += 18
        elements.append(text(left, bottom + 16, note, size=10, fill=DIM))
    slant = _width(columns[-1]) * 0.71 if columns else 0
    return Part(elements, left + max(m * cell + slant, 190.0), bottom + 22)


def _tile(panel: HeatMap) -> Part:
    """A small picture, a pixel a cell, what a mask hides in grey."""
    colors = np.array([list(bytes.fromhex(shade(n / 255)[1:])) for n in range(256)], np.uint8)
    shares = np.clip(np.nan_to_num(panel.values) / panel.ends[1], 0, 1)
    pixels = colors[np.rint(shares * 255).astype(int)]
    pixels[panel.hatched] = list(bytes.fromhex(FAINT[1:]))
    image = _pixels(pixels, _SMALL, _SMALL, "image-rendering:pixelated")
    return Part([image, _frame(0, 0, _SMALL, _SMALL, LINE, 1)], _SMALL, _SMALL)


def _links(panel: Links) -> Part:
    """Lines as wide and as dark as the weight; those of one query stand out."""
    shown, step = panel.map.part, 20.0
    query = next(iter(shown.outlined), 0)
    left = max([_width(row) for row in shown.rows], default=0) + 10
    right = left + 130
    elements = []
    order = [i for i in range(len(shown.rows)) if i != query] + [query]
    for i in order:
        for j in range(len(shown.columns)):
            weight = float(np.nan_to_num(shown.values[i, j]))
            strength = min(1.0, weight) * (1.0 if i == query else 0.25)
            if strength < 0.01:
                continue
            color = THEMES["light"].lines[0] if i == query else "#888888"
            elements.append(
                f'<line x1="{left:g}" y1="{(i + 0.5) * step:g}" x2="{right:g}" '
                f'y2="{(j + 0.5) * step:g}" stroke="{color}" '
                f'stroke-width="{0.5 + 4 * strength:.2f}" opacity="{0.15 + 0.85 * strength:.2f}"/>'
            )
    for i, row in enumerate(shown.rows):
        face = "bold" if i == query else "normal"
        elements.append(text(left - 6, (i + 0.5) * step + 4, _cut(row), anchor="end", weight=face))
    for j, column in enumerate(shown.columns):
        elements.append(text(right + 6, (j + 0.5) * step + 4, _cut(column)))
    width = right + 6 + max([_width(column) for column in shown.columns], default=0)
    return Part(elements, width, max(len(shown.rows), len(shown.columns)) * step)


def _chart(panel: Lines) -> Part:
    """Lines over names; of a line of few points the numbers too."""
    width, left, height = 460.0, 46.0, 150.0
    low, high = panel.ends
    wide = (width - left - 16) / max(1, len(panel.names) - 1)
    tall = height / ((high - low) or 1)

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return left + point[0] * wide, 8 + (high - point[1]) * tall

    elements = []
    for value in (low, (low + high) / 2, high):
        y = at((0, value))[1]
        elements += [
            f'<path d="M{left:g} {y:.1f}H{width - 16:g}" stroke="{LINE}"/>',
            text(left - 6, y + 4, f"{value:.2f}", size=10, fill=DIM, anchor="end"),
        ]
    for place in panel.ticks:
        x, name = at((place, low))[0], panel.names[place]
        elements.append(text(x, height + 24, name, size=10, fill=DIM, anchor="middle"))
    named = [line for line in panel.lines if line.name]
    for line in panel.lines:
        finite = [point for point in line.points if math.isfinite(point[1])]
        points = " ".join("{:.1f},{:.1f}".format(*at(point)) for point in finite)
        elements.append(f'<polyline points="{points}" fill="none" {_stroke(line)}/>')
        for point in finite if panel.numbered else ():
            x, y = at(point)
            elements.append(text(x, y - 7, f"{point[1]:.3f}", size=10, anchor="middle"))
    for number, line in enumerate(named):
        below = height + 46 + 18 * number
        elements += [
            f'<path d="M{left:g} {below - 4:g}h28" {_stroke(line)}/>',
            text(left + 36, below, line.name),
        ]
    return Part(elements, width, height + 32 + 18 * len(named))


def _stroke(line: Any) -> str:
    dash = f' stroke-dasharray="{" ".join(f"{n:g}" for n in line.dash)}"' if line.dash else ""
    return f'stroke="{line.color or BEFORE}" stroke-width="2"{dash}'


def _arrows(panel: Arrows) -> Part:
    """Points before (blue) and after (red), an arrow between each pair, labels that do not meet."""
    side, edge = 460.0, 60.0
    both = np.concatenate([panel.before, panel.after])
    low, high = both.min(axis=0), both.max(axis=0)
    scale = (side - 2 * edge) / max(float((high - low).max()), 1e-12)

    def place(points: Array) -> Array:  # y as SVG has it, downwards
        return np.asarray((points - (low + high) / 2) * (scale, -scale) + side / 2)

    starts, ends = place(panel.before), place(panel.after)
    points, marks = [], []
    for i, pair in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        (x0, y0), (x1, y1) = pair
        named = i in panel.named
        color, size, opacity = (LINE, 4, "1") if named else (FAINT, 2, "0.4")
        marks.append(
            f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{color}" fill="none"/>'
        )
        points += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{fill}" opacity="{opacity}"/>'
            for (x, y), fill in zip(pair, (BEFORE, AFTER), strict=True)
        ]
    wanted = [(tuple(place(point).tolist()), name, after) for point, name, after in panel.labels]
    sizes = [(point, (_width(name) + 4, _SIZE + 3.0)) for point, name, _ in wanted]
    area = 0.0, 0.0, side, side
    found = placed(sizes, on_arrows(starts, ends), area)
    for (point, name, after), spot in zip(wanted, found, strict=True):
        if spot is None:
            continue
        box, near = spot
        fill = AFTER if after else BEFORE
        if near is not None:
            line = f"M{point[0]:.1f} {point[1]:.1f}L{near[0]:.1f} {near[1]:.1f}"
            marks.append(f'<path d="{line}" stroke="{fill}" stroke-width="0.5"/>')
        points.append(text(box[0] + 2, box[3] - 4, _cut(name), fill=fill))
    across, up = panel.axis_names
    legend = [
        text(0, side + 14, "before: the word alone", fill=BEFORE),
        text(side / 2, side + 14, "after: in its sentence", fill=AFTER),
        text(0, side + 30, f"across: {across}", size=10, fill=DIM),
        text(0, side + 44, f"up: {up}", size=10, fill=DIM),
    ]
    if len(panel.named) < len(starts):
        note = f"named: {len(panel.named)} of {len(starts)}"
        legend.append(text(0, side + 58, note, size=10, fill=DIM))
    return Part([*marks, *points, *legend], side, side + 62)


def _bars(panel: Bars) -> Part:
    """Names with a number each, and a bar for it; the largest fills its room."""
    left = max([_width(name) for name in panel.names], default=0) + 8
    elements = []
    rows = zip(panel.names, panel.values, panel.shares, strict=True)
    for place, (name, value, share) in enumerate(rows):
        y, long = 18.0 * place, 120 * share
        elements += [
            text(left - 6, y + 12, _cut(name), anchor="end"),
            f'<rect x="{left:g}" y="{y + 3:g}" width="{long:.1f}" height="11" fill="{BEFORE}"/>',
            text(left + long + 5, y + 12, panel.form.format(value), size=10, fill=DIM),
        ]
    return Part(elements, left + 180, 18.0 * len(panel.names))


def _image(panel: Image) -> Part:
    """Pixels, with frames round some of their patches."""
    width = _IMAGE if panel.chosen is None else _SMALL
    height = width * panel.pixels.shape[0] / panel.pixels.shape[1]
    high, wide = height / panel.grid[0], width / panel.grid[1]
    marks = [
        _frame(column * wide, row * high, wide, high, color, 2.5)
        for row, column, color in panel.frames
    ]
    if panel.edge:
        marks.append(_frame(0, 0, width, height, panel.edge, 2.5 if panel.chosen else 1))
    return Part([_pixels(panel.pixels, width, height), *marks], width, height)


def _pixels(pixels: Array, width: float, height: float, style: str = "") -> str:
    data = base64.b64encode(png(pixels)).decode("ascii")
    styled = f'style="{style}" ' if style else ""
    return (
        f'<image width="{width:.1f}" height="{height:.1f}" preserveAspectRatio="none" {styled}'
        f'href="data:image/png;base64,{data}"/>'
    )


def png(pixels: Array) -> bytes:
    """Pixels (H, W, 3) of uint8 as a PNG file.

    Source:
        PNG specification, third edition, sections 5 and 11.

    >>> png(np.zeros((1, 1, 3), np.uint8))[1:4]
    b'PNG'
    """
    high, wide = pixels.shape[:2]
    lines = np.zeros((high, 1 + 3 * wide), np.uint8)  # each begins with its filter, 0 for none
    lines[:, 1:] = pixels.reshape(high, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)  # 8 bits, red, green and blue
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


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


def _wrapped(line: str, width: float, size: float) -> list[str]:
    """A line cut into lines that fit, between words where that is possible."""
    return textwrap.wrap(readable(line), max(20, int(width / (0.56 * size))))


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


_DRAW: dict[type[Panel], Callable[[Any], Part]] = {
    Arrows: _arrows,
    Bars: _bars,
    HeatMap: _heat_map,
    Image: _image,
    Lines: _chart,
    Links: _links,
}
