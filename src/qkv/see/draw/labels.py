"""Words in a matplotlib figure: their fonts, and positions of labels without overlaps."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

Box = tuple[float, float, float, float]
# in sixteenths of a full circle, in order of preference: right, left, above, below, the others
_DIRECTIONS = (0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 5, 11, 13)
_FAR = 14.0  # at larger distances, a line joins the label to its point


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


def plain(text: "Text", size: float) -> None:
    """Set the size of a text, choose fonts that have its letters, and draw `$` as plain text."""
    text.set_parse_math(False)
    text.set_fontsize(size)
    text.set_fontfamily([name for name, _ in _fonts(text.get_text())])


def write(
    axes: "Axes", x: float, y: float, words: str, size: float, below: str = "", **style: Any
) -> "Text":
    """Write words in any script at a point of a chart; each further line is below the last."""
    text = axes.text(x, y, drawable([words])[0] + below, **style)
    plain(text, size)
    return text


@lru_cache(maxsize=4096)
def width_of(word: str) -> float:
    """Measure the width of a word in points, in the standard font at size 8."""
    from matplotlib.textpath import TextPath

    if not word.strip():
        return 3.0  # a blank word has no outline to measure
    return float(TextPath((0, 0), drawable([word])[0], size=8).get_extents().width)


@lru_cache(maxsize=1024)
def _fonts(text: str) -> tuple[tuple[str, str], ...]:
    """List the standard font, then each installed font that can draw further letters of a text."""
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
    except (OSError, RuntimeError):  # the library cannot read some colour fonts and collections
        return frozenset()


def placed(
    labels: Sequence[tuple[tuple[float, float], tuple[float, float]]],
    points: Array,
    area: Box,
    unit: float = 1.0,
) -> Iterator[tuple[Box, tuple[float, float] | None] | None]:
    """Place labels near their points; yield `(box, line end)`, or None if a label does not fit.

    The method is greedy: each label takes the nearest position that overlaps no earlier label. A
    label near its point also covers no other point. A label far from its point is joined to the
    point by a line, which meets the box at `line end`. Without such a line, `line end` is None.

    Args:
        labels: the point, the width and the height of each label.
        points: `(n, 2)`, the points that labels should not cover.
        area: the left, lower, right and upper edges of the area for labels.
        unit: the size of a pixel.
    """
    taken: list[Box] = []
    for point, size in labels:
        box = _free_box(point, size, points, area, unit, taken)
        if box is None:
            yield None
            continue
        taken.append(box)
        nearest = min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3])
        yield box, nearest if math.dist(point, nearest) > _FAR * unit else None


def _free_box(
    point: tuple[float, float],
    size: tuple[float, float],
    points: Array,
    area: Box,
    unit: float,
    taken: Sequence[Box],
) -> Box | None:
    (x, y), (width, height) = point, size
    for ring in range(100):
        radius = (5 + 4 * ring) * unit
        for direction in _DIRECTIONS:
            along, up = math.cos(direction * math.pi / 8), math.sin(direction * math.pi / 8)
            left = x + radius * along + (along - 1) / 2 * width
            low = y + radius * up + (up - 1) / 2 * height
            box = left, low, left + width, low + height
            if left < area[0] or low < area[1] or box[2] > area[2] or box[3] > area[3]:
                continue
            if any(_meet(box, other) for other in taken):
                continue
            margin = 2 * unit
            inside = (points > (left - margin, low - margin)) & (
                points < (box[2] + margin, box[3] + margin)
            )
            if ring < 12 and inside.all(axis=1).any():
                continue
            return box
    return None


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def on_arrows(before: Array, after: Array, count: int = 24) -> Array:
    """Return `count` points on each arrow, including both ends, `(count * n, 2)`."""
    along = np.linspace(0, 1, count)[:, None, None]
    return np.asarray((before + along * (after - before)).reshape(-1, 2))
