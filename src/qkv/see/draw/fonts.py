"""The choice of fonts for words in a matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text


def drawable(texts: Sequence[str]) -> list[str]:
    r"""Replace by a box each character that no installed font can draw.

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


def plain(text: Text, size: float) -> None:
    """Set the size of a text, choose fonts that have its letters, and draw `$` as a letter."""
    text.set_parse_math(False)
    text.set_fontsize(size)
    text.set_fontfamily([name for name, _ in _fonts(text.get_text())])


def write(
    axes: Axes, x: float, y: float, words: str, size: float, below: str = "", **style: Any
) -> Text:
    """Write words at a point of a chart, in any script; further lines are written below."""
    text = axes.text(x, y, drawable([words])[0] + below, **style)
    plain(text, size)
    return text


@lru_cache(maxsize=4096)
def width_of(word: str) -> float:
    """Measure a word in points, in the standard font at size 8."""
    from matplotlib.textpath import TextPath

    if not word.strip():
        return 3.0  # a blank word has no outline to measure
    return float(TextPath((0, 0), drawable([word])[0], size=8).get_extents().width)


@lru_cache(maxsize=1024)
def _fonts(text: str) -> tuple[tuple[str, str], ...]:
    """Name the standard font, then each installed font that adds letters of the text to it."""
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
