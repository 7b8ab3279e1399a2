"""The colours that stand for numbers: one table for terminals, pictures and pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array


class Theme(NamedTuple):
    """What numbers look like on one ground.

    Attributes:
        more: at equal steps from 0, the ground itself, to 1; lightness goes one way, and faster at
            first, so that 0.05 is told from 0.
        less: the same from 0 to -1.
        lines: of lines that are told apart. None is orange: that is for what the reader changed.
            The second is not red either, which stands for numbers below 0.
        cells: places among the 256 colours of a terminal, from the smallest weight to the largest.
        cells_less: the same of numbers below 0.
    """

    more: tuple[str, ...]
    less: tuple[str, ...]
    lines: tuple[str, ...]
    cells: tuple[int, ...]
    cells_less: tuple[int, ...]


THEMES = {
    "light": Theme(
        ("#ffffff", "#cbdff3", "#a8c7e6", "#87b2dd", "#669ed4", "#438ccc", "#087ac3", "#0369ac",
         "#045896", "#004981", "#023a6c"),
        ("#ffffff", "#f3d6da", "#e9b7bf", "#e19ba5", "#d8818d", "#cf6775", "#c64c5e", "#b4384b",
         "#a32239", "#8b172a", "#750b1d"),
        ("#0b62b0", "#666200", "#00795a", "#8a3fc0", "#b8123a", "#5a6270"),
        (195, 153, 110, 68, 25, 17),
        (224, 217, 174, 167, 124, 88),
    ),
    "dark": Theme(
        ("#12161c", "#1d314a", "#1d486e", "#035e91", "#0473ab", "#0588c4", "#0b9cda", "#30b0ec",
         "#5ac3f8", "#87d4fc", "#afe4ff"),
        ("#12161c", "#46272c", "#6c3539", "#904048", "#b04d58", "#cb5d6a", "#e56d7b", "#f68390",
         "#ff9ca6", "#ffb8be", "#ffd2d5"),
        ("#63b0ff", "#d9d04d", "#4fd0a5", "#d59bff", "#ff8595", "#b4bcc8"),
        (17, 24, 31, 38, 81, 153),
        (52, 88, 125, 168, 211, 218),
    ),
}  # fmt: skip

# Words, what stands behind them, lines and frames, and what is before and after, on white.
INK, DIM, LINE, FAINT, BEFORE, AFTER = (
    "#1a1a1a", "#555555", "#b5b5b5", "#e2e2e2", "#1f5fbf", "#c8102e",
)  # fmt: skip


class Tone(NamedTuple):
    """What a figure is drawn in on one ground.

    Attributes:
        theme: its name among `THEMES`.
        paper: the ground.
        ink: words.
        dim: notes.
        line: lines and frames.
        faint: what stands back.
        grid: lines behind a chart.
        before: vectors before attention.
        after: vectors after it.
    """

    theme: str
    paper: str
    ink: str
    dim: str
    line: str
    faint: str
    grid: str
    before: str
    after: str

    def of(self, color: str) -> str:
        """A colour of a panel, which is one on white, on this ground.

        >>> TONES["dark"].of(INK), TONES["dark"].of("#123456"), TONES["light"].of(INK)
        ('#eef1f5', '#123456', '#1a1a1a')
        """
        light = TONES["light"]
        known = dict(zip(light[1:], self[1:], strict=True))
        return (
            known | dict(zip(THEMES["light"].lines, THEMES[self.theme].lines, strict=True))
        ).get(color, color)


TONES = {
    "light": Tone("light", "#ffffff", INK, DIM, LINE, FAINT, "#e6e6e6", BEFORE, AFTER),
    "dark": Tone(
        *("dark", "#12161c", "#eef1f5", "#a9b3c0", "#6d7886", "#3a434f", "#252c36"),
        *("#63b0ff", "#ff8595"),
    ),
}


def shade(share: float, theme: str = "light") -> str:
    """The colour of a share from -1 to 1, as `#rrggbb`; what lies outside is as its end.

    >>> shade(0.0), shade(1.0), shade(-1.0), shade(0.0, "dark")
    ('#ffffff', '#023a6c', '#750b1d', '#12161c')
    """
    stops = THEMES[theme].less if share < 0 else THEMES[theme].more
    place = min(1.0, abs(share)) * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    ends = zip(_channels(stops[low]), _channels(stops[low + 1]), strict=True)
    # halves go up, as in a page's script
    return "#" + "".join(f"{int(a + (place - low) * (b - a) + 0.5):02x}" for a, b in ends)


def ink(color: str) -> str:
    """Black or white, whichever reads better on a colour (WCAG 2.1's relative luminance).

    >>> ink(shade(0.0)), ink(shade(1.0))
    ('#000000', '#ffffff')
    """
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in _channels(color))
    )
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"


def scale_end(weights: Iterable[Array], stretch: bool) -> float:
    """Where a scale of weights ends: at 1; stretched, at the largest weight.

    >>> scale_end([np.array([0.2, 0.4])], False), scale_end([np.array([0.2, 0.4])], True)
    (1.0, 0.4)
    """
    if not stretch:
        return 1.0
    finite = (part[np.isfinite(part)] for part in weights)
    return max((float(part.max(initial=0.0)) for part in finite), default=0.0) or 1.0


def signed_end(values: Array, ground: float = 0.0) -> tuple[float, float]:
    """Both ends of a scale of any numbers: the ground is one of them, or lies in the middle.

    >>> signed_end(np.array([-2.0, 1.0, np.inf])), signed_end(np.array([0.5, 1.0]))
    ((-2.0, 2.0), (0.0, 1.0))
    >>> signed_end(np.array([2.0, 5.0]), 3.0)
    (1.0, 5.0)
    """
    away = values[np.isfinite(values)] - ground
    far = float(np.abs(away).max(initial=0.0)) or 1.0
    return ground - far if (away < 0).any() else ground, ground + far


def css() -> str:
    """The table as a page's script and style sheets read it: properties of a view, by theme."""
    rules = []
    for name, theme in THEMES.items():
        own = {"paper": theme.more[0], "more": " ".join(theme.more), "less": " ".join(theme.less)}
        own |= {f"line-{place}": color for place, color in enumerate(theme.lines)}
        where = ".view" if name == "light" else f'.view[data-theme="{name}"]'
        rules.append(where + "{" + ";".join(f"--{key}:{own[key]}" for key in own) + "}")
    return "\n".join(rules)


def _channels(color: str) -> bytes:
    return bytes.fromhex(color[1:])
