"""The colours of numbers: one table for terminals, pictures and pages."""

import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array


class Theme(NamedTuple):
    """The colours for numbers, chosen for one background.

    Attributes:
        more: the colours of numbers from 0 to 1 at equal intervals; the colour of 0 is the
            background. Lightness changes in one direction, and faster near 0, so that 0.05 differs
            visibly from 0.
        less: the colours of numbers from 0 to -1 at equal intervals.
        lines: the colours of lines in a chart. No line is orange, because orange marks the reader's
            changes. The second line is not red, because red marks numbers below 0.
        cells: indices into the 256 colours of a terminal, from the smallest weight to the largest.
        cells_less: indices into the same 256 colours, for numbers below 0. The first entry gives
            the colour of numbers near 0, and the last entry gives the colour of the number -1.
    """

    more: tuple[str, ...]
    less: tuple[str, ...]
    lines: tuple[str, ...]
    cells: tuple[int, ...]
    cells_less: tuple[int, ...]


class Tone(NamedTuple):
    """The colours of a figure on one background, except the colours of numbers.

    Attributes:
        theme: the name of the background among `THEMES`.
        paper: the colour of the background.
        ink: the colour of words.
        dim: the colour of notes.
        line: the colour of lines and frames.
        faint: the colour of less important elements.
        before: the colour of vectors before attention.
        after: the colour of vectors after attention.
    """

    theme: str
    paper: str
    ink: str
    dim: str
    line: str
    faint: str
    before: str
    after: str

    def of(self, color: str) -> str:
        """Translate a colour of the light theme to this theme; return any other colour unchanged.

        >>> TONES["dark"].of(INK), TONES["dark"].of("#123456"), TONES["light"].of(INK)
        ('#eef1f5', '#123456', '#1a1a1a')
        """
        light = (*TONES["light"][1:], *THEMES["light"].lines)
        return dict(zip(light, (*self[1:], *THEMES[self.theme].lines), strict=True)).get(
            color, color
        )

    def side(self, name: str) -> str:
        """Return the colour of a side, "A" or "B"; for other names, return the colour of words."""
        return THEMES[self.theme].lines[SIDES[name]] if name in SIDES else self.ink


SIDES = {"A": 2, "B": 3}  # the sides of a comparison, and the numbers of their colours in `lines`
_TABLES = tomllib.loads(files("qkv.see.draw").joinpath("colours.toml").read_text("utf-8"))
THEMES = {
    name: Theme(**{field: tuple(colors) for field, colors in table.items()})
    for name, table in _TABLES["themes"].items()
}
TONES = {name: Tone(name, **table) for name, table in _TABLES["tones"].items()}
_, _, INK, DIM, LINE, FAINT, BEFORE, AFTER = TONES["light"]


def shade(share: float, theme: str = "light") -> str:
    """Return the colour of a share as `#rrggbb`; shares outside -1 to 1 are clipped.

    >>> shade(0.0), shade(1.0), shade(-1.0), shade(0.0, "dark")
    ('#ffffff', '#023a6c', '#750b1d', '#12161c')
    """
    stops = THEMES[theme].less if share < 0 else THEMES[theme].more
    position = min(1.0, abs(share)) * (len(stops) - 1)
    low = min(int(position), len(stops) - 2)
    ends = zip(_channels(stops[low]), _channels(stops[low + 1]), strict=True)
    # halves are rounded up, as in the script of a page
    return "#" + "".join(f"{int(a + (position - low) * (b - a) + 0.5):02x}" for a, b in ends)


def ink(color: str) -> str:
    """Choose black or white text for a background, by the relative luminance of WCAG 2.1.

    >>> ink(shade(0.0)), ink(shade(1.0))
    ('#000000', '#ffffff')
    """
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in _channels(color))
    )
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"


def scale_end(weights: Iterable[Array], stretch: bool) -> float:
    """Return the upper end of a scale: 1, or the largest weight if the scale is stretched.

    >>> scale_end([np.array([0.2, 0.4])], False), scale_end([np.array([0.2, 0.4])], True)
    (1.0, 0.4)
    """
    if not stretch:
        return 1.0
    finite = (part[np.isfinite(part)] for part in weights)
    return max((float(part.max(initial=0.0)) for part in finite), default=0.0) or 1.0


def signed_end(values: Array, ground: float = 0.0) -> tuple[float, float]:
    """Return the ends `(low, high)` of a scale that contains all finite numbers.

    If no number is smaller than `ground`, the scale begins at `ground`. Otherwise, `ground` is the
    middle of the scale.

    >>> signed_end(np.array([-2.0, 1.0, np.inf])), signed_end(np.array([0.5, 1.0]))
    ((-2.0, 2.0), (0.0, 1.0))
    >>> signed_end(np.array([2.0, 5.0]), 3.0)
    (1.0, 5.0)
    """
    away = values[np.isfinite(values)] - ground
    far = float(np.abs(away).max(initial=0.0)) or 1.0
    return ground - far if (away < 0).any() else ground, ground + far


def css() -> str:
    """Write the themes as CSS properties, which the scripts and style sheets of a page read."""
    rules = []
    for name, theme in THEMES.items():
        style = {"paper": theme.more[0], "more": " ".join(theme.more), "less": " ".join(theme.less)}
        style |= {f"line-{number}": color for number, color in enumerate(theme.lines)}
        style |= {side.lower(): theme.lines[number] for side, number in SIDES.items()}
        where = ".view" if name == "light" else f'.view[data-theme="{name}"]'
        rules.append(where + "{" + ";".join(f"--{key}:{style[key]}" for key in style) + "}")
    return "\n".join(rules)


def _channels(color: str) -> bytes:
    return bytes.fromhex(color[1:])
