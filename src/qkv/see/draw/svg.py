"""Panels drawn as SVG, for print and for pages without scripts."""

import base64
import math
import struct
import textwrap
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.see.draw import panels
from qkv.see.draw.colours import THEMES, TONES, Tone, ink, shade

_GAP = 24
_CARD = 330.0  # The width of a passage in pixels. A phone's screen is wide enough for it.
_IMAGE, _SMALL = 300.0, 150.0  # The widths in pixels of a single image and a small image.
SIZE = 11  # The height of a letter in pixels.
# Characters of these bidirectional classes could reverse the direction of the following words.
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class Drawing(NamedTuple):
    """A part of a picture: its SVG elements, its width and its height in pixels."""

    elements: list[str]
    width: float
    height: float


def text(x: float, y: float, content: str, fill: str, size: float = SIZE, **style: str) -> str:
    """Write words at a point.

    `style` holds further attributes of the element, such as `text_anchor="end"`. Markup in the
    words is escaped.
    """
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"{more}>'
        f"{to_xml(content)}</text>"
    )


def outline(x: float, y: float, width: float, height: float, color: str, line: float) -> str:
    """Draw the outline of a rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="none" '
        f'stroke="{color}" stroke-width="{line:g}"/>'
    )


def image(pixels: Array, width: float, height: float, style: str = "") -> str:
    """Show pixels (H, W, 3) of uint8 in a rectangle of any size."""
    data = base64.b64encode(png(pixels)).decode("ascii")
    styled = f'style="{style}" ' if style else ""
    return (
        f'<image width="{width:.1f}" height="{height:.1f}" preserveAspectRatio="none" {styled}'
        f'href="data:image/png;base64,{data}"/>'
    )


def png(pixels: Array) -> bytes:
    """Encode pixels (H, W, 3) of uint8 as a PNG file.

    Source:
        PNG specification, third edition, sections 5 and 11.

    >>> png(np.zeros((1, 1, 3), np.uint8))[1:4]
    b'PNG'
    """
    high, wide = pixels.shape[:2]
    # each row begins with the number of its filter; 0 means no filter
    lines = np.zeros((high, 1 + 3 * wide), np.uint8)
    lines[:, 1:] = pixels.reshape(high, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    # 8 bits for each of red, green and blue
    header = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def readable(content: str) -> str:
    r"""Replace characters that are invisible, or not allowed in XML, with visible symbols.

    >>> readable("a\nb\x00\ud800\u202e")
    'a␊b␀��'
    """
    return "".join(_sign(mark) for mark in content)


def _sign(mark: str) -> str:
    code = ord(mark)
    if code < 0x20:
        return chr(0x2400 + code)
    unseen = unicodedata.category(mark) in ("Cc", "Cs") or code & 0xFFFE == 0xFFFE
    return "\ufffd" if unseen or unicodedata.bidirectional(mark) in _DIRECTIONS else mark


def to_xml(content: str) -> str:
    """Escape a text for use in an SVG element or attribute."""
    return escape(readable(content), quote=True)


def label(content: str, most: int = 14) -> str:
    """Cut a label that is too long; if a label has only spaces, make the spaces visible."""
    if not content.strip():
        content = content.replace(" ", "␣") or "∅"
    return content if len(content) <= most else content[: most - 1] + "…"


def label_width(content: str) -> float:
    """Estimate the width in pixels of a text that `label` may have shortened."""
    chars = label(content)
    wide = sum(unicodedata.east_asian_width(mark) in "WF" for mark in chars)
    return (0.6 * len(chars) + 0.45 * wide) * SIZE


def widest(labels: Iterable[str]) -> float:
    """Estimate the width of the widest of several labels; return 0 if there are no labels."""
    return max(map(label_width, labels), default=0)


def word_width(word: str) -> float:
    """Estimate the width of a whole word in pixels as the sum of the widths of its letters."""
    sizes = (
        0.3 if mark in "iljtfrI.,;:'!|()[] " else 0.85 if mark in "mwMW@—" else 0.66
        if mark.isupper() or mark.isdigit() else 1.0
        if unicodedata.east_asian_width(mark) in "WF" else 0.56
        for mark in word
    )  # fmt: skip
    return sum(sizes) * SIZE


def wrap(line: str, width: float, size: float) -> list[str]:
    """Break a line, between words if possible, into lines that fit a width."""
    return textwrap.wrap(readable(line), max(20, int(width / (0.56 * size))))


def draw(title: str, lines: Sequence[str], rows: panels.Rows, *, dark: bool = False) -> str:
    """Draw an SVG picture: a title, rows of panels side by side, and lines of prose below."""
    tone = TONES["dark" if dark else "light"]
    prose, panel_rows = panels.split_prose(rows)
    grid = [[part(panel, tone) for panel in row] for row in panel_rows]
    wide = [sum(drawing.width for drawing in row) + _GAP * (len(row) - 1) for row in grid]
    width = max([320.0, *wide]) + 2 * _GAP
    elements, y = [], float(_GAP)
    for line in wrap(title, width - 2 * _GAP, 14):
        y += 14
        elements.append(text(_GAP, y, line, tone.ink, size=14, font_weight="bold"))
        y += 6
    for row in grid:
        y += 14
        x = float(_GAP)
        for drawing in row:
            elements.append(f'<g transform="translate({x:g} {y:g})">')
            elements += [*drawing.elements, "</g>"]
            x += drawing.width + _GAP
        y += max(drawing.height for drawing in row)
    y += 14
    for words in (*lines, *prose):
        for line in wrap(words, width - 2 * _GAP, 11):
            y += 11
            elements.append(text(_GAP, y, line, tone.dim))
            y += 6
    return _whole(Drawing(elements, width, y + _GAP), title, tone, "max-width:100%;height:auto")


def alone(panel: panels.Panel, tone: Tone) -> str:
    """Draw one panel as a complete SVG picture of fixed size."""
    return _whole(part(panel, tone), panel.title, tone, "display:block")


def _whole(drawn: Drawing, title: str, tone: Tone, style: str) -> str:
    elements, width, height = drawn
    role = "group" if any("tabindex" in element for element in elements) else "img"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" style="{style}" role="{role}" '
        f'aria-label="{to_xml(title)}" '
        'font-family="system-ui, -apple-system, Segoe UI, sans-serif">'
        f'<rect width="100%" height="100%" fill="{tone.paper}"/>{"".join(elements)}</svg>'
    )


def part(panel: panels.Panel, tone: Tone) -> Drawing:
    """Draw a panel under its title."""
    drawn = _DRAW[type(panel)](panel, tone)
    if not panel.title:
        return drawn
    weight = "normal" if isinstance(panel, panels.Image) and not panel.chosen else "bold"
    title = text(0, 12, panel.title, tone.side(panel.name), font_weight=weight)
    below = f'<g transform="translate(0 20)">{"".join(drawn.elements)}</g>'
    width = max(drawn.width, 0.68 * len(panel.title) * SIZE)
    return Drawing([title, below], width, drawn.height + 20)


def _heat_map(panel: panels.HeatMap, tone: Tone) -> Drawing:
    """Draw cells of colour with labels, and a scale below; hatch the cells without a number."""
    if panel.compact:
        return _tile(panel, tone)
    panel = panel.part
    rows, columns, hatched, form = panel.rows, panel.columns, panel.hatched, panel.form
    n, m = panel.values.shape
    high = 30.0 if max(n, m) <= 14 else 18.0 if max(n, m) <= 24 else 14.0
    wide = high
    if panel.words is not None:
        wide, high = widest(word for row in panel.words for word in row) + 8, 30.0
    if high == 30.0:
        wide = max([wide, *(5.6 * len(form(x)) + 4 for x in panel.values[~hatched].tolist())])
    left = widest(rows) + 8
    top = widest(columns) * 0.71 + 12
    elements = []
    for j, column in enumerate(columns):
        x, y = left + (j + 0.6) * wide, top - 6
        turned = f"rotate(-45 {x:.1f} {y:.1f})"
        elements.append(text(x, y, label(column), tone.ink, transform=turned))
    marks, shares = [], panel.shares
    for i, row in enumerate(rows):
        y = top + i * high
        elements.append(text(left - 6, y + high / 2 + 4, label(row), tone.ink, text_anchor="end"))
        for j in range(m):
            x = left + j * wide
            if hatched[i, j]:
                marks.append(f"M{x:g} {y + high:g}l{wide:g} {-high:g}")
                continue
            color = shade(float(shares[i, j]), tone.theme)
            number, cell = form(float(panel.values[i, j])), f'width="{wide:g}" height="{high:g}"'
            drawn = f'<rect x="{x:g}" y="{y:g}" {cell} fill="{color}" shape-rendering="crispEdges"'
            if (
                high < 30.0
            ):  # the cell is too small for a number; pointing at the cell shows the number
                content = to_xml(f"{row}, {columns[j]}: {number}")
                elements.append(f"{drawn}><title>{content}</title></rect>")
                continue
            elements.append(f"{drawn}/>")
            middle, low = x + wide / 2, y + high / 2 + 3.5
            if panel.words is not None:
                word = label(panel.words[i][j])
                elements.append(text(middle, low - 5, word, ink(color), text_anchor="middle"))
                low += 7
            elements.append(text(middle, low, number, ink(color), size=9, text_anchor="middle"))
    if marks:
        elements.append(f'<path d="{"".join(marks)}" stroke="{tone.line}" fill="none"/>')
    elements.append(outline(left, top, m * wide, n * high, tone.line, 1))
    elements += [outline(left, top + i * high, m * wide, high, tone.ink, 2) for i in panel.outlined]
    bottom = top + n * high + 14
    elements += _scale(left, bottom, panel, tone)
    for note in filter(None, (f"hatched: {panel.missing}" if marks else "", panel.left_out)):
        bottom += 18
        elements.append(text(left, bottom + 16, note, tone.dim, size=10))
    slant = label_width(columns[-1]) * 0.71 if columns else 0
    legend = 112 + 5.6 * len(panel.scale_name)
    return Drawing(elements, left + max(m * wide + slant, legend, 190.0), bottom + 22)


def _tile(panel: panels.HeatMap, tone: Tone) -> Drawing:
    """Draw a small picture with a pixel for each cell; masked cells are grey."""
    scale = [list(bytes.fromhex(shade(n / 255, tone.theme)[1:])) for n in range(-255, 256)]
    colors = np.array(scale, np.uint8)
    shares = _pool(np.clip(np.nan_to_num(panel.shares), -1, 1))
    pixels = colors[255 + np.rint(shares * 255).astype(int)]
    pixels[_pool(~panel.hatched) == 0] = list(bytes.fromhex(tone.faint[1:]))
    drawn = image(pixels, _SMALL, _SMALL, "image-rendering:pixelated")
    return Drawing([drawn, outline(0, 0, _SMALL, _SMALL, tone.line, 1)], _SMALL, _SMALL)


def _pool(cells: Array) -> Array:
    """Reduce each block of cells to one pixel: the number in the block that is furthest from 0."""
    step = -(-max(cells.shape) // int(_SMALL))
    (n, m), more = cells.shape, [(0, -size % step) for size in cells.shape]
    rows = np.pad(cells, more).reshape(-(-n // step), step, -(-m // step), step)
    blocks = rows.swapaxes(1, 2).reshape(*rows.shape[::2], -1)
    furthest = np.abs(blocks).argmax(-1)[..., None]
    return np.asarray(np.take_along_axis(blocks, furthest, -1)[..., 0])


def _links(panel: panels.Links, tone: Tone) -> Drawing:
    """Draw a line for each weight, wider for a larger weight; highlight the lines of one query."""
    heat, step = panel.map.part, 20.0
    query = next(iter(heat.outlined), 0)
    left = widest(heat.rows) + 10
    right = left + 130
    elements = []
    order = [i for i in range(len(heat.rows)) if i != query] + [query]
    for i in order:
        for j in range(len(heat.columns)):
            weight = float(np.nan_to_num(heat.values[i, j]))
            strength = min(1.0, weight) * (1.0 if i == query else 0.25)
            if strength < 0.01:
                continue
            color = THEMES[tone.theme].lines[0] if i == query else "#888888"
            elements.append(
                f'<line x1="{left:g}" y1="{(i + 0.5) * step:g}" x2="{right:g}" '
                f'y2="{(j + 0.5) * step:g}" stroke="{color}" '
                f'stroke-width="{0.5 + 4 * strength:.2f}" opacity="{0.15 + 0.85 * strength:.2f}"/>'
            )
    for i, row in enumerate(heat.rows):
        font = "bold" if i == query else "normal"
        elements.append(
            text(
                left - 6,
                (i + 0.5) * step + 4,
                label(row),
                tone.ink,
                text_anchor="end",
                font_weight=font,
            )
        )
    for j, column in enumerate(heat.columns):
        elements.append(text(right + 6, (j + 0.5) * step + 4, label(column), tone.ink))
    width = right + 6 + widest(heat.columns)
    return Drawing(elements, width, max(len(heat.rows), len(heat.columns)) * step)


def _chart(panel: panels.Lines, tone: Tone) -> Drawing:
    """Draw a line chart; if the panel is `numbered`, write the number beside each point."""
    width, left, height = 460.0, 46.0, 150.0
    low, high = panel.axis
    wide = (width - left - 16) / max(1, len(panel.names) - 1)
    tall = height / ((high - low) or 1)

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return left + point[0] * wide, 8 + (high - point[1]) * tall

    elements = []
    for value in (low, (low + high) / 2, high):
        y = at((0, value))[1]
        elements += [
            f'<path d="M{left:g} {y:.1f}H{width - 16:g}" stroke="{tone.line}"/>',
            text(left - 6, y + 4, f"{value:.4g}", tone.dim, size=10, text_anchor="end"),
        ]
    for tick in panel.ticks:
        x, name = at((tick, low))[0], panel.names[tick]
        elements.append(text(x, height + 24, name, tone.dim, size=10, text_anchor="middle"))
    named = [line for line in panel.lines if line.name]
    for line in panel.lines:
        if line.band:
            ends = [(x, high) for x, _, high in line.band]
            ends += [(x, low) for x, low, _ in reversed(line.band)]
            corners = " ".join("{:.1f},{:.1f}".format(*at(end)) for end in ends)
            fill = tone.of(line.color) or tone.before
            elements.append(f'<polygon points="{corners}" fill="{fill}" opacity="0.18"/>')
        finite = [point for point in line.points if math.isfinite(point[1])]
        points = " ".join("{:.1f},{:.1f}".format(*at(point)) for point in finite)
        elements.append(f'<polyline points="{points}" fill="none" {_stroke(line, tone)}/>')
        for point in finite if panel.numbered else ():
            x, y = at(point)
            elements.append(
                text(x, y - 7, f"{point[1]:.3f}", tone.ink, size=10, text_anchor="middle")
            )
    for number, line in enumerate(named):
        below = height + 46 + 18 * number
        elements += [
            f'<path d="M{left:g} {below - 4:g}h28" {_stroke(line, tone)}/>',
            text(left + 36, below, line.name, tone.ink),
        ]
    return Drawing(elements, width, height + 32 + 18 * len(named))


def _stroke(line: panels.ChartLine, tone: Tone) -> str:
    dash = f' stroke-dasharray="{" ".join(f"{n:g}" for n in line.dash)}"' if line.dash else ""
    return f'stroke="{tone.of(line.color) or tone.before}" stroke-width="2"{dash}'


def _arrows(panel: panels.Arrows, tone: Tone) -> Drawing:
    """Draw points before attention (blue) and after attention (red), with arrows and labels."""
    side, edge = 460.0, 60.0
    both = np.concatenate([panel.before, panel.after])
    low, high = both.min(axis=0), both.max(axis=0)
    scale = (side - 2 * edge) / max(float((high - low).max()), 1e-12)

    def xy(points: Array) -> Array:  # in SVG, y grows downwards
        return np.asarray((points - (low + high) / 2) * (scale, -scale) + side / 2)

    starts, ends = xy(panel.before), xy(panel.after)
    points, marks = [], []
    for i, pair in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        (x0, y0), (x1, y1) = pair
        named = i in panel.named
        color, size, opacity = (tone.line, 4, "1") if named else (tone.faint, 2, "0.4")
        marks.append(
            f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{color}" fill="none"/>'
        )
        points += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{fill}" opacity="{opacity}"/>'
            for (x, y), fill in zip(pair, (tone.before, tone.after), strict=True)
        ]
    lines, names = _labels(panel, xy, (0.0, 0.0, side, side), tone)
    across, up = panel.axis_names
    legend = [
        text(0, side + 14, "before: the word alone", tone.before),
        text(side / 2, side + 14, "after: in its sentence", tone.after),
        text(0, side + 30, f"across: {across}", tone.dim, size=10),
        text(0, side + 44, f"up: {up}", tone.dim, size=10),
    ]
    if len(panel.named) < len(starts):
        note = f"named: {len(panel.named)} of {len(starts)}"
        legend.append(text(0, side + 58, note, tone.dim, size=10))
    return Drawing([*marks, *lines, *points, *names, *legend], side, side + 62)


def _labels(
    panel: panels.Arrows | panels.Points, xy: Callable[[Array], Array], area: panels.Box, tone: Tone
) -> tuple[list[str], list[str]]:
    """Return the lines from points to labels, and the labels."""
    wanted = [(tuple(xy(point).tolist()), name, after) for point, name, after in panel.labels]
    sizes = [(point, (label_width(name) + 4, SIZE + 3.0)) for point, name, _ in wanted]
    spots = panels.place_labels(sizes, xy(panel.before), xy(panel.after), area)
    lines, names = [], []
    for (point, name, after), spot in zip(wanted, spots, strict=True):
        if spot is None:
            continue
        box, near = spot
        fill = tone.after if after else tone.before
        if near is not None:
            line = f"M{point[0]:.1f} {point[1]:.1f}L{near[0]:.1f} {near[1]:.1f}"
            lines.append(f'<path d="{line}" stroke="{fill}" stroke-width="0.5"/>')
        names.append(text(box[0] + 2, box[3] - 4, label(name), fill))
    return lines, names


def _points(panel: panels.Points, tone: Tone) -> Drawing:
    """Draw points with labels, lines where a number is 0, and the ends of both axes."""
    width, height, edge = 460.0, 360.0, 56.0
    low, high = panel.points.min(axis=0), panel.points.max(axis=0)
    free = np.array([width - 2 * edge, height - 2 * edge])
    scale = free / np.maximum(high - low, 1e-12)
    if panel.equal:
        scale = np.full(2, scale.min())
    middle = (low + high) / 2

    def xy(points: Array) -> Array:  # in SVG, y grows downwards
        return np.asarray((points - middle) * scale * (1, -1) + (width / 2, height / 2))

    (left, bottom), (right, top) = xy(low).tolist(), xy(high).tolist()
    zero_x, zero_y = xy(np.zeros(2)).tolist()
    marks = [outline(0, 0, width, height, tone.line, 1)]
    if 0 <= zero_x <= width:
        marks.append(f'<path d="M{zero_x:.1f} 0V{height:g}" stroke="{tone.line}"/>')
    if 0 <= zero_y <= height:
        marks.append(f'<path d="M0 {zero_y:.1f}H{width:g}" stroke="{tone.line}"/>')
    dots = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{tone.before}"/>'
        for x, y in xy(panel.points).tolist()
    ]
    lines, names = _labels(panel, xy, (0.0, 0.0, width, height), tone)
    small: dict[str, Any] = {"fill": tone.dim, "size": 10}
    ends = [
        text(x, height + 12, f"{value:.3g}", text_anchor="middle", **small)
        for x, value in ((left, low[0]), (right, high[0]))
    ]
    ends += [
        text(4, y - 3, f"{value:.3g}", **small) for y, value in ((bottom, low[1]), (top, high[1]))
    ]
    across, up = panel.axis_names
    legend = [text(0, height + 30, f"across: {across}", **small)]
    legend.append(text(0, height + 44, f"up: {up}", **small))
    return Drawing([*marks, *lines, *dots, *names, *ends, *legend], width, height + 48)


def _bars(panel: panels.Bars, tone: Tone) -> Drawing:
    """Draw a number and a bar for each name; the largest number has a bar of full width."""
    left = widest(panel.names) + 8
    wide, begin = (60, left + 60 + SIZE * 4) if panel.signed else (120, left)
    elements = []
    rows = zip(panel.names, panel.values, panel.shares, strict=True)
    for row, (name, value, share) in enumerate(rows):
        y, long, less = 18.0 * row, wide * share, value < panel.ground
        size = f'width="{long:.1f}" height="11"'
        color = tone.after if less else tone.before
        fill = f'fill="none" stroke="{color}"' if row in panel.hollow else f'fill="{color}"'
        number = begin - long - 5 if less else begin + long + 5
        elements += [
            text(left - 6, y + 12, label(name), tone.ink, text_anchor="end"),
            f'<rect x="{begin - long * less:.1f}" y="{y + 3:g}" {size} {fill}/>',
            text(number, y + 12, panel.form.format(value), tone.dim, size=10,
                 text_anchor="end" if less else "start"),
        ]  # fmt: skip
    return Drawing(elements, begin + wide + 60, 18.0 * len(panel.names))


def _graph(panel: panels.GraphPanel, tone: Tone) -> Drawing:
    """Draw nodes and edges; pointing at a node or an edge shows its numbers below the graph."""
    across, up, form = 46.0, 42.0, panel.form
    columns, high = panel.size
    left = widest(panel.rows.values()) + 22
    bottom = up * high + 24

    def at(point: Sequence[float]) -> str:
        return f"{left + across * point[0]:.1f} {bottom - 12 - up * point[1]:.1f}"

    elements = [f"<style>{_graph_rules(panel)}</style>"]
    for row, name in panel.rows.items():
        elements.append(text(0, bottom - 8 - up * row, name, tone.dim, size=10))
    numbers = {name: number for number, name in enumerate(panel.nodes)}
    drawn = zip(panel.edges, panel.shares, panel.curves, strict=True)
    edges = []
    for edge, share, curve in drawn:
        color = shade(math.copysign(max(0.25, abs(share)), share), tone.theme)
        line = f'd="M{at(curve[0])}C{" ".join(map(at, curve[1:]))}" fill="none"'
        ends = " ".join(f"qkv-of{numbers[node]}" for node in (edge.sender, edge.receiver))
        numbered = f"{edge.name}: {form(edge.value)}"
        edges.append(
            f'<g class="qkv-edge {ends}" tabindex="0" role="img"><title>{to_xml(numbered)}</title>'
            f'<path {line} stroke="{color}" stroke-width="{0.6 + 5.4 * abs(share):.2f}"/>'
            f'<path {line} stroke="transparent" stroke-width="10"/>'
            f"{_readout([numbered], bottom, tone)}</g>"
        )
    nodes = []
    for name, point in panel.nodes.items():
        x, y = map(float, at(point).split())
        joined = name in panel.joined
        color = tone.ink if joined else tone.faint
        words = panel.labels[name]
        wide = max(34.0, 5.8 * len(words) + 8)
        box = (
            f'<rect x="{x - wide / 2:.1f}" y="{y - panels.HALF * up:.1f}" width="{wide:.1f}" '
            f'height="{2 * panels.HALF * up:.1f}" rx="5" fill="{tone.paper}" stroke="{color}"/>'
            + text(x, y + 4, words, tone.ink if joined else tone.dim, size=10, text_anchor="middle")
        )
        if joined:
            sums = _sums(panel, name)
            box = (
                f'<g class="qkv-node qkv-n{numbers[name]}" tabindex="0" role="img">'
                f"<title>{to_xml('. '.join(sums))}</title>{box}"
                f"{_readout(sums, bottom, tone)}</g>"
            )
        nodes.append(box)
    hint = "Point at a node or an edge, or tap it, to read its numbers."
    width = left + across * (columns + panel.margin)
    notes = [
        text(0, bottom + 52 + 15 * number, line, tone.dim, size=10)
        for number, line in enumerate(wrap(panel.caption, width, 10))
    ]
    legend = [f'<g class="qkv-hint">{text(0, bottom + 20, hint, tone.dim, size=10)}</g>', *notes]
    graph = "".join([*elements, *edges, *nodes, *legend])
    height = bottom + 44 + 15 * len(notes)
    return Drawing([f'<g class="qkv-graph">{graph}</g>'], width, height)


def _graph_rules(panel: panels.GraphPanel) -> str:
    """Write the CSS rules for the node or edge that is pointed at or has the focus."""
    chosen, dim = ":is(:hover,:focus)", "{opacity:.1}"
    rules = [
        ".qkv-graph [tabindex]:focus{outline:none}.qkv-node:focus-visible>rect{stroke-width:3}",
        f".qkv-readout{{visibility:hidden}}{chosen}>.qkv-readout{{visibility:visible}}",
        f".qkv-graph:has([tabindex]{chosen}) .qkv-hint{{visibility:hidden}}",
        ".qkv-graph:has([tabindex]:hover) :focus:not(:hover)>.qkv-readout{visibility:hidden}",
        f".qkv-graph:has(.qkv-edge{chosen}) .qkv-edge:not(:hover,:focus){dim}",
    ]
    rules += [
        f".qkv-graph:has(.qkv-n{number}{chosen}) .qkv-edge:not(.qkv-of{number}){dim}"
        for number, name in enumerate(panel.nodes)
        if name in panel.joined
    ]
    return "".join(rules)


def _readout(lines: Sequence[str], bottom: float, tone: Tone) -> str:
    """Write a line for each node and edge, visible only while the node or edge is chosen."""
    words = (text(0, bottom + 20 + 16 * k, line, tone.ink) for k, line in enumerate(lines))
    return f'<g class="qkv-readout">{"".join(words)}</g>'


def _sums(panel: panels.GraphPanel, node: str) -> list[str]:
    """Write two lines about a node: one about its inputs, one about its outputs."""

    def describe(verb: str, ends: list[tuple[str, float]]) -> str:
        more = f" and {len(ends) - 2} more" if len(ends) > 2 else ""
        return f"{verb} {', '.join(f'{end} {panel.form(x)}' for end, x in ends[:2])}{more}"

    read = [
        (f"{edge.sender} ({edge.input})" if edge.input else edge.sender, edge.value)
        for edge in panel.edges
        if edge.receiver == node
    ]
    written = [(edge.end, edge.value) for edge in panel.edges if edge.sender == node]
    sums = [describe("reads", read)] * bool(read) + [describe("writes to", written)] * bool(written)
    return [f"{node} {line}" if not number else line for number, line in enumerate(sums)]


def _image(panel: panels.Image, tone: Tone) -> Drawing:
    """Draw an image, with frames around some of its patches."""
    width = _IMAGE if panel.chosen is None else _SMALL
    height = width * panel.pixels.shape[0] / panel.pixels.shape[1]
    high, wide = height / panel.grid[0], width / panel.grid[1]
    marks = [
        outline(column * wide, row * high, wide, high, tone.of(color), 2.5)
        for row, column, color in panel.frames
    ]
    if panel.edge:
        marks.append(outline(0, 0, width, height, tone.of(panel.edge), 2.5 if panel.chosen else 1))
    return Drawing([image(panel.pixels, width, height), *marks], width, height)


def _passages(panel: panels.Passages, tone: Tone) -> Drawing:
    """Draw words in lines, with darker backgrounds for larger shares. Frame the marked word."""
    front = max([word_width(passage.label) for passage in panel.passages], default=0) + 8
    elements = [text(0, 10, panel.explained, tone.dim, size=10)] if panel.explained else []
    y = 18.0 if panel.explained else 0.0
    lines = panel.wrap(lambda word: word_width(word) + 6, _CARD - front)
    for passage, rows in zip(panel.passages, lines, strict=True):
        elements.append(text(0, y + 12, passage.label, tone.dim, size=10))
        for row in rows:
            x = front
            for number in row:
                word, color = passage.words[number], shade(passage.shares[number], tone.theme)
                long = word_width(word)
                frame = f' stroke="{tone.ink}"' if number == passage.marked else ""
                elements += [
                    f'<rect x="{x:.1f}" y="{y + 1:g}" width="{long + 4:.1f}" height="15" rx="2" '
                    f'fill="{color}"{frame}/>',
                    text(x + 2, y + 12, word, ink(color), textLength=f"{long:.1f}",
                         lengthAdjust="spacingAndGlyphs"),
                ]  # fmt: skip
                x += long + 6
            y += 17
        y += 5
    return Drawing(elements, _CARD, y)


def _scale(x: float, y: float, panel: panels.HeatMap, tone: Tone) -> list[str]:
    steps, wide = 24, 4.0
    (low, high), form = panel.ends, panel.form
    least = -1.0 if panel.signed else 0.0
    bar = [
        f'<rect x="{x + k * wide:g}" y="{y:g}" width="{wide + 0.5:g}" height="9" '
        f'fill="{shade(least + k / (steps - 1) * (1 - least), tone.theme)}"/>'
        for k in range(steps)
    ]
    end = x + steps * wide
    return [
        *bar,
        outline(x, y, steps * wide + 0.5, 9, tone.line, 1),
        text(x, y + 20, form(low), tone.dim, size=9),
        text(end, y + 20, form(high), tone.dim, size=9, text_anchor="end"),
        text(end + 8, y + 9, panel.scale_name, tone.dim, size=10),
    ]


_DRAW: dict[type[panels.Panel], Callable[[Any, Tone], Drawing]] = {
    panels.Arrows: _arrows,
    panels.Bars: _bars,
    panels.GraphPanel: _graph,
    panels.HeatMap: _heat_map,
    panels.Image: _image,
    panels.Lines: _chart,
    panels.Links: _links,
    panels.Passages: _passages,
    panels.Points: _points,
}
