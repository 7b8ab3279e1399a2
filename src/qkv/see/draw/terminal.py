"""Lines for a terminal: shaded grids, tables of numbers that line up, bars."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.arrays import Array
from qkv.see.draw.colours import THEMES, ink, shade
from qkv.see.draw.terminal_background import ground_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BAR = f"not bold {THEMES['light'].more[5]}"  # a blue that is seen on light ground and on dark

_LEAST = 0.025  # less is nearer to the ground than to the first of few shades

_ASCII = {
    "ᵀ": ".T", "√": "sqrt ", "·": "*", "→": "->", "…": "...", "⋯": "...", "∞": "inf",
    "Σ": "sum", "ₖ": "_k",
}  # fmt: skip


def with_a_width(console: Console) -> Console:
    """The console, as wide as its terminal where COLUMNS is 0, which stands for no number."""
    if not console.width:
        console.width = shutil.get_terminal_size().columns
    return console


@dataclass(frozen=True)
class Screen:
    """What a terminal can show.

    Attributes:
        width: columns.
        colors: how many colours a background can have: 0, 256 or 2**24.
        encoding: of its stream, that decides whether marks beyond ASCII are used.
        theme: "light" or "dark", by the ground of the terminal; None where that is not known, and
            cells are marked instead of shaded.
    """

    width: int = 80
    colors: int = 0
    encoding: str = "utf-8"
    theme: str | None = "dark"

    @classmethod
    def of(cls, console: Console) -> Screen:
        """What this console can show; NO_COLOR is obeyed, and 16 colours are too few to shade."""
        depths = {"256": 256, "truecolor": 1 << 24}
        colors = 0 if console.no_color else depths.get(console.color_system or "", 0)
        theme = ground_of(console.file) if colors else None
        return cls(console.width, colors, console.encoding, theme)

    @property
    def shades(self) -> bool:
        """Whether a cell can be shaded from the ground of the terminal on."""
        return bool(self.colors and self.theme)

    def shading(self, share: float) -> str:
        """How rich is to colour a cell for a share from 0 to 1; nothing at 0, where the ground is.

        >>> Screen(colors=1 << 24).shading(1.0), Screen(colors=256, theme="light").shading(1.0)
        ('#000000 on #afe4ff', 'color(231) on color(17)')
        """
        if share < 0.005 or self.theme is None:
            return ""
        if self.colors > 256:
            color = shade(share, self.theme)
            return f"{ink(color)} on {color}"
        cells = THEMES[self.theme].cells
        if share < _LEAST:
            return ""
        place = cells[max(1, min(len(cells), round(share * len(cells)))) - 1]
        return f"color({16 if ink(cube_color(place)) == '#000000' else 231}) on color({place})"

    @property
    def unicode(self) -> bool:
        """Whether bars, shades and signs beyond ASCII can be written."""
        return _fits("█▏░√ᵀ→…⋯·Σₖ∞", self.encoding)

    def plain(self, text: str) -> str:
        """Our own text as this screen can write it."""
        if not self.unicode:
            for sign, ascii_form in _ASCII.items():
                text = text.replace(sign, ascii_form)
        return self.safe(text)

    def safe(self, text: str) -> str:
        r"""Text from outside: what cannot be written or would steer the terminal is escaped.

        >>> Screen().safe("a\x1b[2Jb")
        'a\\x1b[2Jb'
        """
        return "".join(
            mark
            if mark.isprintable() and _fits(mark, self.encoding)
            else mark.encode("unicode_escape").decode("ascii")
            for mark in text
        )

    def cut(self, text: str, width: int) -> str:
        """Text from outside made exactly `width` columns wide: cut or filled up."""
        from rich.cells import cell_len, set_cell_size

        text = self.safe(text)
        if cell_len(text) > width:
            mark = "…" if self.unicode else "~"
            text = set_cell_size(text, width - 1) + mark
        return set_cell_size(text, width)

    def right(self, text: str, width: int) -> str:
        """The same with the blanks in front."""
        text = self.cut(text, width)
        blanks = len(text) - len(text.rstrip(" "))
        return " " * blanks + text.rstrip(" ")

    def fit(self, texts: Sequence[str], least: int, most: int) -> int:
        """How wide a column of these texts is, within limits."""
        from rich.cells import cell_len

        return max(least, min(most, max((cell_len(self.safe(t)) for t in texts), default=0)))

    def room(self, most: int, *, beside: int) -> int:
        """How wide something may be that has `beside` columns beside it on its line."""
        return max(4, min(most, self.width - beside))


def prose(screen: Screen, text: str, style: str = "", indent: int = 0) -> list[Text]:
    """Our own text, wrapped at the width and indented."""
    import textwrap

    from rich.text import Text

    lines = textwrap.wrap(
        screen.plain(text), max(20, screen.width - indent), break_on_hyphens=False
    )
    return [Text(" " * indent + line, style=style) for line in lines]


def grid(
    screen: Screen,
    weights: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    hidden: Array | None = None,
    score: Array | None = None,
    top: float = 1.0,
    max_rows: int = 24,
) -> list[Text]:
    """Weights `(Q, K)` as a table of shaded cells, and under it the scale.

    Where not all rows or columns fit, those with the largest `score` `(Q, K)` are shown, the others
    are counted, and the weight on columns left out is summed in a column of its own.

    Args:
        screen: what can be shown.
        weights: the weights.
        rows: the token of each row.
        columns: the token of each column.
        hidden: `(Q, K)` bool, True where a mask hides the cell.
        score: what makes a row or a column worth showing; the weights if left out.
        top: the upper end of the scale.
        max_rows: how many rows at most.
    """
    from rich.text import Text

    label = screen.fit(rows, 3, min(12, screen.width // 3))
    score = weights if score is None else score
    cell = 4 if screen.shades else 5
    room = (screen.width - label - 1) // (cell + 1)
    most = room if len(columns) <= room else max(1, room - 2)
    shown_rows, shown = strongest_block(score, max_rows, most)
    rest = len(columns) - len(shown)
    spare = (screen.width - label - 1 - (2 + cell + 3 if rest else 0)) // len(shown) - 1
    cell = max(cell, min(spare, screen.fit([columns[j] for j in shown], cell, 9)))

    head = Text(" " * (label + 1))
    for j in shown:
        head.append(" " + screen.right(columns[j], cell), style="bold")
    if rest:
        head.append(" " + "others".rjust(max(cell, 6)), style="dim")
    lines = [head]
    for i in shown_rows:
        line = Text(screen.cut(rows[i], label) + " ", style="bold")
        for j in shown:
            if hidden is not None and hidden[i, j]:
                line.append(("·" if screen.unicode else "-").rjust(cell + 1), "dim not bold")
            else:
                line.append_text(_cell(screen, float(weights[i, j]), top, cell + 1))
        if rest:
            left = weights[i].sum() - weights[i, shown].sum()
            line.append(f" {max(0.0, float(left)):{max(cell, 6)}.2f}", style="dim not bold")
        lines.append(line)
    lines.append(_scale(screen, top, hidden is not None and bool(hidden.any())))
    note = _left_out(len(rows), len(shown_rows), "rows") + _left_out(
        len(columns), len(shown), "columns"
    )
    if note:
        lines.append(
            Text(f"Shown: {' and '.join(note)}, those of the largest weights.", style="dim")
        )
    return lines


def numbers(
    screen: Screen,
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    cell: tuple[int, int] | None = None,
    hidden: Array | None = None,
    max_rows: int = 8,
) -> list[Text]:
    """Numbers `(n, m)` as a table: the first rows and columns, and how many more there are.

    Args:
        screen: what can be shown.
        values: the numbers.
        rows: a label for each row.
        columns: a label for each column; their numbers if left out.
        cell: a row and a column that are shown in any case, the number in them marked.
        hidden: `(n, m)` bool, True where a mask hides the number.
        max_rows: how many rows at most.
    """
    from rich.text import Text

    label = screen.fit(rows, 3, min(12, screen.width // 3))
    form = number_format(values)
    width = max(7, max(len(form(float(x))) for x in _finite(values)))
    room = max(1, (screen.width - label - 2) // (width + 1))
    headings = [str(j) for j in range(values.shape[1])] if columns is None else list(columns)
    if columns is None and len(headings) > room:
        room = min(room, 8)
    shown_rows = _first(len(rows), max_rows, cell[0] if cell else 0)
    shown = _first(len(headings), room, cell[1] if cell else 0)

    head = Text(" " * label, style="bold" if columns else "dim")
    for j in shown:
        head.append(" " + screen.right(headings[j], width))
    lines = [head]
    for i in shown_rows:
        line = Text(screen.cut(rows[i], label), style="bold")
        for j in shown:
            line.append(" ", style="not bold")
            if hidden is not None and hidden[i, j]:
                line.append("-inf".rjust(width), style="dim not bold")
            else:
                marked = "bold underline" if cell == (i, j) else "not bold"
                line.append(form(float(values[i, j])).rjust(width), style=marked)
        if len(shown) < len(headings) and shown[-1] == len(shown) - 1:
            line.append(screen.plain(" …") if screen.unicode else " ~", style="dim not bold")
        lines.append(line)
    note = _left_out(len(rows), len(shown_rows), "rows") + _left_out(
        len(headings), len(shown), "columns"
    )
    if note:
        lines.append(Text(f"Shown: {' and '.join(note)}.", style="dim"))
    return lines


def bar(screen: Screen, value: float, width: int = 20) -> Text:
    """A bar for a share from 0 to 1, `width` columns wide with the blanks after it.

    >>> bar(Screen(), 0.5, 4).plain + "|", bar(Screen(encoding="ascii"), 0.5, 4).plain + "|"
    ('██  |', '##  |')
    """
    from rich.text import Text

    share = 0.0 if math.isnan(value) else min(1.0, max(0.0, value))
    if not screen.unicode:
        return Text(("#" * round(share * width)).ljust(width), _BAR)
    full, part = divmod(round(share * width * 8), 8)
    return Text(("█" * full + ("▏▎▍▌▋▊▉"[part - 1] if part else "")).ljust(width), _BAR)


def strongest(score: Array, count: int) -> list[int]:
    """The places of the `count` largest numbers, in their order of place; ties to the first.

    >>> strongest(np.array([0.1, 0.5, 0.3, 0.5]), 2)
    [1, 3]
    """
    return sorted(np.argsort(-np.nan_to_num(score), kind="stable")[:count].tolist())


def strongest_block(score: Array, most_rows: int, most_columns: int) -> tuple[list[int], list[int]]:
    """The rows and columns in which the largest numbers stand, in their order of place.

    >>> strongest_block(np.array([[1, 9, 0], [0, 0, 2], [8, 0, 0]]), 2, 2)
    ([0, 2], [0, 1])
    """
    n, m = score.shape
    rows = set(range(n)) if n <= most_rows else set()
    columns = set(range(m)) if m <= most_columns else set()
    for place in np.argsort(-np.nan_to_num(score), axis=None, kind="stable").tolist():
        if len(rows) >= min(n, most_rows) and len(columns) >= min(m, most_columns):
            break
        i, j = divmod(place, m)
        fits = (i in rows or len(rows) < most_rows), (j in columns or len(columns) < most_columns)
        if all(fits):
            rows.add(i)
            columns.add(j)
    return sorted(rows), sorted(columns)


def number_format(values: Array) -> Callable[[float], str]:
    """One way to write all of these numbers, so that they line up.

    >>> form = number_format(np.array([0.5, -12.0]))
    >>> form(0.5), form(-12.0), number_format(np.array([2e-6]))(2e-6)
    ('0.500', '-12.000', '2.00e-06')
    """
    size = float(np.abs(_finite(values)).max())
    if size and not 1e-2 <= size < 1e6:
        return lambda x: f"{x:.2e}"
    decimals = 3 if size < 100 else 2 if size < 1e4 else 1
    return lambda x: f"{x:.{decimals}f}"


def _cell(screen: Screen, weight: float, top: float, width: int) -> Text:
    from rich.text import Text

    if math.isnan(weight):
        return Text("nan".rjust(width), style="bold red")
    share = weight / top
    if screen.shades:
        return Text(f"{weight:.2f}".rjust(width), f"not bold {screen.shading(share)}")
    marks = " ░▒▓█" if screen.unicode else " .:*#"
    mark = marks[0 if share < _LEAST else min(4, math.ceil(share * 4 - 0.02))]
    return Text((mark + f"{weight:.2f}").rjust(width), style="not bold")


def _scale(screen: Screen, top: float, some_hidden: bool) -> Text:
    from rich.text import Text

    line = Text("scale 0.00 ", style="dim")
    if screen.shades:
        for step in range(16):
            line.append(" ", style=f"not dim {screen.shading(step / 15)}")
    else:
        line.append(" ░▒▓█" if screen.unicode else " .:*#")
    line.append(f" {top:.2f}")
    if top != 1:
        line.append(" (stretched to the largest)")
    if some_hidden:
        line.append(f"   {'·' if screen.unicode else '-'} hidden by the mask")
    return line


def cube_color(place: int) -> str:
    """One of the 256 colours of a terminal, of those from 16 to 231.

    >>> cube_color(16), cube_color(153)
    ('#000000', '#afd7ff')
    """
    levels = (0, 95, 135, 175, 215, 255)
    red, green, blue = (levels[(place - 16) // step % 6] for step in (36, 6, 1))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _first(count: int, room: int, needed: int) -> list[int]:
    """The first places, the last of them given up for one that is needed."""
    shown = list(range(min(count, room)))
    if shown and needed not in shown:
        shown[-1] = needed
    return shown


def _left_out(count: int, shown: int, what: str) -> list[str]:
    return [f"{shown} of {count} {what}"] if shown < count else []


def _finite(values: Array) -> Array:
    finite = values[np.isfinite(values)]
    return finite if finite.size else np.zeros(1)


def _fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
