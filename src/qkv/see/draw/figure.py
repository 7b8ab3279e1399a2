"""Panels drawn as a matplotlib figure."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.extras import need
from qkv.files import StrPath, replacing
from qkv.see.draw import panels
from qkv.see.draw.colours import THEMES, TONES, Tone, ink, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_DPI = 150
_LEAST = 8.0  # The size of the smallest text, in points.
_NUMBERED = 13  # A map with at most this many rows and columns has a number in each cell.
_SIZES = {
    panels.Links: (4.2, 6.2),
    panels.Arrows: (6.4, 6.0),
    panels.Points: (6.4, 5.0),
    panels.Lines: (6.6, 3.4),
}  # In inches.
# In points: the width of a passage, the height of a line, and the space after a word.
_CARD, _LINE, _SPACE = 320.0, 16.0, 6.0


def draw(title: str, lines: Sequence[str], rows: panels.Rows, *, dark: bool = False) -> Figure:
    """Draw a figure: a title, rows of panels side by side, and lines of prose below."""
    need("matplotlib", "plot")
    from matplotlib import rc_context

    tone = TONES["dark" if dark else "light"]
    inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    style: dict[Any, str] = dict.fromkeys(inked, tone.ink)
    style |= {"axes.edgecolor": tone.dim, "axes.facecolor": tone.paper, "hatch.color": tone.line}
    with rc_context(style):
        return _draw_figure(title, lines, rows, tone)


def _draw_figure(title: str, lines: Sequence[str], rows: panels.Rows, tone: Tone) -> Figure:
    notes, grid = panels.split_prose(rows)
    sizes = [[_size(panel) for panel in row] for row in grid]
    width = max([6.0, *(sum(w for w, _ in row) for row in sizes)])
    letters = int(width * 12)  # the letters in a line
    prose = "\n".join(textwrap.fill(drawable([line])[0], letters) for line in (*lines, *notes))
    below = [0.1 + 0.17 * len(prose.splitlines())] if prose else []
    heights = [*(max(h for _, h in row) for row in sizes), *below]
    figure = _figure_class()(figsize=(width, sum(heights) + 0.5), dpi=_DPI, layout="constrained")
    header = textwrap.fill(drawable([title])[0], int(width * 8.5))
    edge = 0.12 / width  # the left margin
    _plain(figure.suptitle(header, color=tone.ink, x=edge, ha="left"), 13)
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part in (figure, *parts):
        part.set_facecolor(tone.paper)
    if prose:
        _plain(parts[-1].text(edge, 1, prose, color=tone.dim, ha="left", va="top"), 9)
    arrows = []
    for part, row, wide in zip(parts, grid, sizes, strict=False):
        ratios = [w for w, _ in wide]
        rest = width - sum(ratios)
        all_axes = part.subplots(
            1, len(row) + (rest > 0.1), width_ratios=[*ratios, rest][: len(row) + (rest > 0.1)],
            squeeze=False,
        )[0]  # fmt: skip
        for axes in all_axes[len(row) :]:
            axes.set_axis_off()
        for axes, panel in zip(all_axes, row, strict=False):
            _DRAW[type(panel)](axes, panel, tone)
            pad = 8.0
            if isinstance(panel, panels.Arrows | panels.Points):
                arrows.append((axes, panel))
                pad = 28.0  # the space above the legend
            color = tone.side(panel.name)
            _plain(axes.set_title(drawable([panel.title])[0], color=color, pad=pad), 11)
    if arrows and (layout := figure.get_layout_engine()):
        for _ in range(2):  # the layout is final after two rounds
            layout.execute(figure)
        figure.set_layout_engine("none")
        for axes, panel in arrows:
            _label(figure, axes, panel, tone)
    return figure


def _size(panel: panels.Panel) -> tuple[float, float]:
    """Return the width and the height of a panel in inches."""
    if isinstance(panel, panels.Image):
        width = 5.0 if panel.chosen is None else 1.7
        return width, 0.5 + width * panel.pixels.shape[0] / panel.pixels.shape[1]
    if isinstance(panel, panels.HeatMap) and panel.compact:
        return 2.2, 2.5
    if isinstance(panel, panels.GraphPanel):
        columns, high = panel.size
        return max(4.0, 1.4 + 0.56 * columns), 1.4 + 0.44 * high
    if isinstance(panel, panels.HeatMap):
        rows, columns = panel.part.values.shape
        wide, high = _cell(panel.part)
        least = 2.0 if panel.words else 6.2
        return max(6.8, 2.2 + wide * columns), max(least, 2.0 + high * rows)
    if isinstance(panel, panels.Passages):
        lines = sum(map(len, _wrap(panel)[1])) + bool(panel.explained)
        return _CARD / 72 + 0.3, 0.5 + lines * _LINE / 72
    if isinstance(panel, panels.Bars):
        return 5.4, 1.0 + 0.26 * len(panel.names)
    return _SIZES[type(panel)]


def _cell(panel: panels.HeatMap) -> tuple[float, float]:
    """Return the smallest width and height, in inches, of a cell whose texts do not overlap."""
    if max(panel.values.shape) > _NUMBERED:
        return 0.19, 0.19  # the names of the columns are turned by 45 degrees
    texts = [word for row in panel.words or () for word in row]
    texts += [panel.form(value) for value in panel.values[~panel.hatched].tolist()]
    wide = max(0.62 if panel.words else 0.19, (max(map(_width_of, texts), default=0) + _SPACE) / 72)
    return wide, 0.4 if panel.words else wide


def _heat_map(axes: Axes, panel: panels.HeatMap, tone: Tone) -> None:
    """Draw a grid of colours with a scale, and hatch the cells without a number."""
    panel = panel if panel.compact else panel.part
    low, high = panel.ends
    hatched = panel.hatched
    values = np.where(hatched, panel.ground, panel.values)
    image = axes.imshow(values, cmap=_cmap(panel.signed, tone.theme), vmin=low, vmax=high)
    axes.set_aspect("auto" if panel.words else "equal")
    for spine in axes.spines.values():  # empty cells look like the figure's background
        spine.set_color(tone.line)
        spine.set_linewidth(0.6)
    n, shares, form = max(values.shape), panel.shares, panel.form
    if panel.compact:
        axes.set(xticks=[], yticks=[])
    else:
        rows, columns = drawable(panel.rows), drawable(panel.columns)
        # Switch to the upper column labels before writing the names: matplotlib has separate
        # label objects for the upper and the lower edge of a map.
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axes.set_xticks(
            range(len(columns)), columns, rotation=45, ha="left", rotation_mode="anchor"
        )
        axes.set_yticks(range(len(rows)), rows)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            _plain(label, max(_LEAST, min(10.0, 130 / n)))
        bar = axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
        bar.set_label(panel.scale_name, fontsize=9)
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_edgecolor(tone.line)
        axes.set_ylabel(panel.explained, fontsize=9)
        note = f"hatched: {panel.missing}" if hatched.any() else ""
        axes.set_xlabel("\n".join(filter(None, (note, panel.left_out))), fontsize=8)
    for i, j in np.ndindex(*values.shape):
        if hatched[i, j]:
            hatch = None if panel.compact else "////" if n <= 16 else "//"
            fill = tone.faint if panel.compact else tone.paper
            cell = (j - 0.5, i - 0.5, 1, 1)
            _frame(axes, cell, tone.line, 0, fill=True, facecolor=fill, hatch=hatch, clip_on=True)
        elif n <= _NUMBERED and not panel.compact:
            color, size = ink(shade(float(shares[i, j]), tone.theme)), max(_LEAST, min(9.0, 88 / n))
            number = form(float(values[i, j]))
            words, below = (panel.words[i][j], f"\n{number}") if panel.words else (number, "")
            _write(axes, (j, i), words, size, below, ha="center", va="center", color=color)
    for i in panel.outlined:
        _frame(axes, (-0.5, i - 0.5, values.shape[1], 1), tone.ink, 1.6)


def _frame(axes: Axes, box: panels.Box, color: str, line: float, **style: Any) -> None:
    """Draw a frame around the box `(left, top, width, height)`."""
    from matplotlib.patches import Rectangle

    x, y, wide, high = box
    style = {"fill": False, "clip_on": False} | style
    axes.add_patch(Rectangle((x, y), wide, high, edgecolor=color, linewidth=line, **style))


def _links(axes: Axes, panel: panels.Links, tone: Tone) -> None:
    """Draw a line for each weight, wider for a larger weight; highlight the lines of one query."""
    heat = panel.map.part
    query = next(iter(heat.outlined), 0)
    for (i, j), weight in np.ndenumerate(np.clip(np.nan_to_num(heat.values), 0, 1)):
        chosen = i == query
        strength = float(weight) * (1.0 if chosen else 0.25)
        if strength >= 0.01:
            axes.plot(
                (0, 1), (i, j), color=THEMES[tone.theme].lines[0] if chosen else tone.dim,
                linewidth=0.5 + 3 * strength, alpha=0.15 + 0.85 * strength, zorder=1 + chosen,
            )  # fmt: skip
    sides = ((-0.04, heat.rows, "right"), (1.04, heat.columns, "left"))
    for x, names, side in sides:
        size = max(_LEAST, min(10.0, 200 / len(names)))
        for row, name in enumerate(names):
            weight = "bold" if x < 0 and row == query else "normal"
            _write(axes, (x, row), name, size, ha=side, va="center", weight=weight)
    axes.set(xlim=(-0.7, 1.7), ylim=(max(len(heat.rows), len(heat.columns)) - 0.5, -0.5))
    axes.set_axis_off()


def _bars(axes: Axes, panel: panels.Bars, tone: Tone) -> None:
    """Draw a number and a bar for each name."""
    rows = range(len(panel.names))
    for row, value, share in zip(rows, panel.values, panel.shares, strict=True):
        less = value < panel.ground
        way, side = (-1, "right") if less else (1, "left")
        axes.barh(row, way * share, color=tone.after if less else tone.before)
        number = panel.form.format(value)
        axes.text(way * (share + 0.02), row, number, va="center", fontsize=8, ha=side)
    axes.set_yticks(rows, drawable(panel.names))
    for label in axes.get_yticklabels():
        _plain(label, 9)
    axes.set(xlim=(-1.25 if panel.signed else 0, 1.25), xticks=[])
    axes.invert_yaxis()
    axes.set_xlabel(panel.explained, fontsize=9)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _graph(axes: Axes, panel: panels.GraphPanel, tone: Tone) -> None:
    """Draw nodes in rows, and edges; draw larger numbers as wider edges, nearer to the front."""
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path

    code = [Path.MOVETO, *[Path.CURVE4] * max(map(len, panel.curves), default=0)]
    drawn = list(zip(panel.shares, panel.curves, strict=True))
    for share, curve in reversed(drawn):
        color = shade(float(np.copysign(max(0.25, abs(share)), share)), tone.theme)
        axes.add_patch(
            PathPatch(
                Path(curve, code[: len(curve)]), fill=False, edgecolor=color, capstyle="butt",
                linewidth=0.5 + 4 * abs(share),
            )
        )  # fmt: skip
    for name, (x, y) in panel.nodes.items():
        joined, label = name in panel.joined, panel.labels[name]
        wide = max(0.75, 0.15 * len(label))
        axes.add_patch(
            FancyBboxPatch(
                (x - wide / 2, y - panels.HALF), wide, 2 * panels.HALF,
                boxstyle="round,pad=0,rounding_size=0.1", facecolor=tone.paper,
                edgecolor=tone.ink if joined else tone.faint, zorder=2, linewidth=0.8,
            )
        )  # fmt: skip
        color = tone.ink if joined else tone.dim
        _write(axes, (x, y), label, _LEAST, ha="center", va="center", zorder=3, color=color)
    for row, name in panel.rows.items():
        axes.text(-1, row, name, ha="right", va="center", fontsize=8, color=tone.dim)
    columns, high = panel.size
    axes.set(xlim=(-1, columns + panel.margin), ylim=(-0.6, high + 0.6), xticks=[], yticks=[])
    axes.set_xlabel(textwrap.fill(panel.caption, 80), fontsize=8)
    axes.spines[:].set_visible(False)


def _chart(axes: Axes, panel: panels.Lines, tone: Tone) -> None:
    """Draw a line chart; if the panel is `numbered`, write the number beside each point."""
    for line in panel.lines:
        xs, values = zip(*line.points, strict=True)
        style: Any = (0, [n / 2 for n in line.dash]) if line.dash else "-"
        axes.plot(
            xs, values, label=line.name or None, color=tone.of(line.color) or tone.before,
            linewidth=2, linestyle=style, markersize=3,
            marker="o" if len(xs) <= len(panel.names) else None,
        )  # fmt: skip
        if line.band:
            color = tone.of(line.color) or tone.before
            x, low, high = np.array(line.band).T
            axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        numbered = line.points if panel.numbered else ()
        for x, value in filter(lambda point: np.isfinite(point[1]), numbered):
            axes.annotate(
                f"{value:.3f}", (x, value), xytext=(0, 8), textcoords="offset points",
                ha="center", fontsize=9,
            )  # fmt: skip
    low, high = panel.axis
    tall = high - low or 1.0
    above = high + (0.12 if panel.numbered else 0.02) * tall
    axes.set(xlim=(-0.4, len(panel.names) - 0.6), ylim=(low - 0.02 * tall, above))
    axes.set_xticks(panel.ticks, [panel.names[tick] for tick in panel.ticks])
    axes.set_xlabel(panel.along, fontsize=9)
    axes.set_ylabel(panel.explained, fontsize=9)
    if any(line.name for line in panel.lines):
        axes.legend(fontsize=8, frameon=False, loc="best")
    _open(axes, tone)


def _arrows(axes: Axes, panel: panels.Arrows, tone: Tone) -> None:
    """Draw arrows from the points before attention to the points after it; `_label` adds names."""
    faint = np.ones(len(panel.before), dtype=bool)
    faint[list(panel.named)] = False
    clear = {"arrowstyle": "-|>", "color": tone.line, "lw": 1.0, "shrinkA": 3, "shrinkB": 4}
    pale = clear | {"arrowstyle": "-", "color": tone.faint, "lw": 0.5}
    for start, end, aside in zip(panel.before, panel.after, faint.tolist(), strict=True):
        arrow = pale if aside else clear
        axes.annotate("", xy=end, xytext=start, arrowprops=arrow, zorder=0 if aside else 1)
    for points, color, meaning in (
        (panel.before, tone.before, "before: the word alone"),
        (panel.after, tone.after, "after: in its sentence"),
    ):
        x, y = points.T
        axes.scatter(x[~faint], y[~faint], s=26, color=color, zorder=3, label=meaning)
        if faint.any():
            axes.scatter(x[faint], y[faint], s=6, color=color, alpha=0.4, zorder=2)
    across, up = panel.axis_names
    note = f"\nnamed: {len(panel.named)} of {len(panel.before)}" if faint.any() else ""
    axes.set_xlabel(across + note, fontsize=9)
    axes.set_ylabel(up, fontsize=9)
    axes.margins(0.14)
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9, frameon=False)
    _open(axes, tone)


def _points(axes: Axes, panel: panels.Points, tone: Tone) -> None:
    """Draw points; `_label` adds their names."""
    axes.scatter(panel.points[:, 0], panel.points[:, 1], s=20, color=tone.before, zorder=3)
    axes.axhline(0, color=tone.line, linewidth=0.8, zorder=1)
    axes.axvline(0, color=tone.line, linewidth=0.8, zorder=1)
    axes.set_xlabel(panel.axis_names[0], fontsize=9)
    axes.set_ylabel(panel.axis_names[1], fontsize=9)
    axes.margins(0.1)
    if panel.equal:
        axes.set_aspect("equal", adjustable="datalim")
    _open(axes, tone)


def _label(figure: Figure, axes: Axes, panel: panels.Arrows | panels.Points, tone: Tone) -> None:
    """Write the names of points, once the layout is fixed."""
    from matplotlib.patheffects import withStroke

    # from here on, nothing may change the layout, since a new layout would move the points
    axes.autoscale(False)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # Agg's, see _figure_class
    to_pixels, to_data = axes.transData, axes.transData.inverted()
    before, after_ = (to_pixels.transform(points) for points in (panel.before, panel.after))
    area, pixel = axes.get_window_extent(renderer), figure.dpi / 72
    texts, wanted = [], []
    for (x, y), name, after in panel.labels:
        text = _write(axes, (x, y), name, 9, color=tone.after if after else tone.before, zorder=4)
        text.set_path_effects([withStroke(linewidth=2, foreground=tone.paper)])
        extent = text.get_window_extent(renderer)
        texts.append(text)
        point = tuple(to_pixels.transform((x, y)))
        wanted.append((point, (extent.width + 2 * pixel, extent.height + pixel)))
    spots = panels.place_labels(wanted, before, after_, area.extents, pixel)
    for text, (point, _), spot in zip(texts, wanted, spots, strict=True):
        if spot is None:
            text.remove()
            continue
        box, near = spot
        if near is not None:
            line = to_data.transform([point, near])
            axes.plot(*line.T, color=text.get_color(), linewidth=0.5, alpha=0.6, zorder=2)
        text.set(
            position=tuple(to_data.transform((box[0] + pixel, box[1]))), va="bottom", ha="left"
        )


def _image(axes: Axes, panel: panels.Image, tone: Tone) -> None:
    """Draw an image, with frames around some of its patches."""
    rows, columns = panel.grid
    shape = panel.pixels.shape[0] / panel.pixels.shape[1]
    # a patch is one unit of the axes, so that frames have integer coordinates
    axes.imshow(panel.pixels, extent=(0, columns, rows, 0), aspect=shape * columns / rows)
    frames = [(row, column, 1, 1, color) for row, column, color in panel.frames]
    if panel.edge:
        frames.append((0, 0, columns, rows, panel.edge))
    for row, column, wide, high, color in frames:
        drawn = tone.of(color)
        _frame(axes, (column, row, wide, high), drawn, 1 if drawn == tone.line else 2.2)
    axes.set_axis_off()


def _passages(axes: Axes, panel: panels.Passages, tone: Tone) -> None:
    """Draw words in lines, with darker backgrounds for larger shares. Frame the marked word."""
    label, lines = _wrap(panel)
    y = 0.0  # in points, like all positions in this function
    if panel.explained:
        _write(axes, (0, y), panel.explained, 8, color=tone.dim, va="top")
        y += _LINE
    for passage, rows in zip(panel.passages, lines, strict=True):
        _write(axes, (0, y), passage.label, 8, color=tone.dim, va="top")
        for row in rows:
            x = label
            for number in row:
                word, color = passage.words[number], shade(passage.shares[number], tone.theme)
                edge = tone.ink if number == passage.marked else color
                box = {"boxstyle": "round,pad=0.1", "fc": color, "ec": edge, "lw": 0.8}
                _write(axes, (x, y), word, 8, color=ink(color), va="top", bbox=box)
                x += _width_of(word) + _SPACE
            y += _LINE
    axes.set(xlim=(0, _CARD), ylim=(y, 0))
    axes.set_aspect("equal", anchor="NW")
    axes.set_axis_off()


def _wrap(panel: panels.Passages) -> tuple[float, list[list[list[int]]]]:
    """Return the width of the labels, and each passage's lines as lists of word indices."""
    label = _SPACE + max([_width_of(passage.label) for passage in panel.passages], default=0)
    return label, panel.wrap(lambda word: _width_of(word) + _SPACE, _CARD - label)


def _open(axes: Axes, tone: Tone) -> None:
    """Hide a chart's upper and right edges; draw small tick labels and a faint grid."""
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color=tone.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def drawable(texts: Sequence[str]) -> list[str]:
    r"""If no installed font can draw a character, replace the character with a box.

    >>> drawable(["river", "a\nb"])
    ['river', 'a□b']
    """
    known = [_glyphs(path) for _, path in _fonts("".join(texts))]
    return [
        "".join(
            mark if mark.isprintable() and any(ord(mark) in font for font in known) else "□"
            for mark in text
        )
        for text in texts
    ]


def _plain(text: Text, size: float) -> None:
    """Set the size of a text, choose fonts that have its letters, and draw `$` as plain text."""
    text.set_parse_math(False)
    text.set_fontsize(size)
    text.set_fontfamily([name for name, _ in _fonts(text.get_text())])


def _write(
    axes: Axes, at: panels.Point, words: str, size: float, below: str = "", **style: Any
) -> Text:
    """Write `words`, then `below`, at a point; replace characters of `words` that no font has."""
    text = axes.text(*at, drawable([words])[0] + below, **style)
    _plain(text, size)
    return text


@lru_cache(maxsize=4096)
def _width_of(word: str) -> float:
    """Measure the width of a word in points, in the standard font at size 8."""
    from matplotlib.textpath import TextPath

    if not word.strip():
        return 3.0  # a blank word has no outline to measure
    return float(TextPath((0, 0), drawable([word])[0], size=8).get_extents().width)


@lru_cache(maxsize=1024)
def _fonts(text: str) -> tuple[tuple[str, str], ...]:
    """List the standard font, then fonts for characters of `text` that the standard font lacks."""
    from matplotlib import font_manager

    standard = str(font_manager.findfont("DejaVu Sans"))
    fonts = [("DejaVu Sans", standard)]
    missing = {ord(mark) for mark in text} - _glyphs(standard)
    # a "last resort" font draws a box for every character, so it comes last
    installed = font_manager.fontManager.ttflist if missing else []
    for font in sorted(installed, key=lambda font: ("last resort" in font.name.lower(), font.name)):
        added = missing & _glyphs(font.fname)
        if added and font.style == "normal":
            fonts.append((font.name, str(font.fname)))
            missing -= added
        if not missing:
            break
    return tuple(fonts)


@lru_cache(maxsize=256)
def _glyphs(path: str) -> frozenset[int]:
    """List the characters that a font file draws."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # FreeType cannot read some colour fonts and font collections
        return frozenset()


def write_png(figure: Figure, path: StrPath) -> None:
    """Write a figure to a PNG file; a failed write does not change the file."""
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=_DPI)


@lru_cache(maxsize=1)
def _figure_class() -> type[Figure]:
    """Return a figure class with the Agg backend; notebooks show its figures without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            FigureCanvasAgg(self)

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return Picture


@lru_cache(maxsize=4)
def _cmap(signed: bool, name: str) -> Colormap:
    """Make a theme's colour map, for numbers of one sign or of both signs."""
    from matplotlib.colors import LinearSegmentedColormap

    theme = THEMES[name]
    stops = [*(theme.less[:0:-1] if signed else ()), *theme.more]
    return LinearSegmentedColormap.from_list("qkv", stops, N=2001)


_DRAW: dict[type[panels.Panel], Callable[[Axes, Any, Tone], None]] = {
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
