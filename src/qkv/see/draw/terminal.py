"""Panels drawn in a terminal, line by line, with the colours and characters that it supports."""

from __future__ import annotations

import math
import os
import re
import select
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from qkv._visible import visible
from qkv.see.analysis.measures import strongest_block
from qkv.see.draw import panels
from qkv.see.draw.colours import THEMES, TONES, ink, shade

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# A blue that is readable on light and dark backgrounds.
_BAR = f"not bold {THEMES['light'].more[5]}"

LEAST = 0.025  # With at most 256 colours, shares below this number look like the background.

_ASCII = {
    "ᵀ": ".T", "√": "sqrt ", "·": "*", "→": "->", "…": "...", "⋯": "...", "∞": "inf",
    "Σ": "sum", "ₖ": "_k",
}  # fmt: skip


def with_a_width(console: Console) -> Console:
    """Set a console's width to the width of the terminal if the console's width is 0.

    Rich sets a console's width to 0 if the environment variable COLUMNS is 0.
    """
    if not console.width:
        console.width = shutil.get_terminal_size().columns
    return console


@dataclass(frozen=True)
class Screen:
    """The capabilities of a terminal.

    Attributes:
        width: the number of columns.
        colors: the number of background colours: 0, 256 or 2**24.
        encoding: the encoding of the output, which decides whether characters beyond ASCII are
            used.
        theme: the terminal's background, "light" or "dark". If the background is unknown (None),
            cells are marked instead of shaded.
    """

    width: int = 80
    colors: int = 0
    encoding: str = "utf-8"
    theme: str | None = "dark"

    @classmethod
    def of(cls, console: Console) -> Screen:
        """Read a console's capabilities; with NO_COLOR or only 16 colours, use no colours."""
        depths = {"256": 256, "truecolor": 1 << 24}
        colors = 0 if console.no_color else depths.get(console.color_system or "", 0)
        theme = ground_of(console.file) if colors else None
        return cls(console.width, colors, console.encoding, theme)

    @property
    def shades(self) -> bool:
        """Return whether the terminal can shade cells; it needs colours and a known background."""
        return bool(self.colors and self.theme)

    def side(self, name: str) -> str:
        """Return the style (for Rich) of the name of a side, "A" or "B"."""
        return f"bold {TONES[self.theme].side(name)}" if self.colors and self.theme else "bold"

    def shading(self, share: float) -> str:
        """Return the style (for Rich) of a share from -1 to 1; a share of 0 has no style.

        >>> Screen(colors=1 << 24).shading(1.0), Screen(colors=256, theme="light").shading(1.0)
        ('#000000 on #afe4ff', 'color(231) on color(17)')
        """
        if abs(share) < 0.005 or self.theme is None:
            return ""
        if self.colors > 256:
            color = shade(share, self.theme)
            return f"{ink(color)} on {color}"
        theme = THEMES[self.theme]
        cells = theme.cells_less if share < 0 else theme.cells
        if abs(share) < LEAST:
            return ""
        number = cells[max(1, min(len(cells), round(abs(share) * len(cells)))) - 1]
        return f"color({16 if ink(cube_color(number)) == '#000000' else 231}) on color({number})"

    @property
    def unicode(self) -> bool:
        """Return whether the terminal can show bars, shades and signs beyond ASCII."""
        return _fits("█▏░√ᵀ→…⋯·Σₖ∞", self.encoding)

    def plain(self, text: str) -> str:
        """In a text that qkv wrote, replace the characters that this screen cannot show."""
        if not self.unicode:
            for sign, ascii_form in _ASCII.items():
                text = text.replace(sign, ascii_form)
        return self.safe(text)

    def safe(self, text: str) -> str:
        r"""Escape the characters of `text` that the terminal cannot show or would execute.

        Use this method for untrusted texts.

        >>> Screen().safe("a\x1b[2Jb")
        'a\\x1b[2Jb'
        """
        return "".join(
            mark if _fits(mark, self.encoding) else ascii(mark)[1:-1] for mark in visible(text)
        )

    def cut(self, text: str, width: int) -> str:
        """Cut an untrusted text, or pad it on the right, to exactly `width` columns."""
        from rich.cells import cell_len, set_cell_size

        text = self.safe(text)
        if cell_len(text) > width:
            mark = "…" if self.unicode else "~"
            text = set_cell_size(text, width - 1) + mark
        return set_cell_size(text, width)

    def right(self, text: str, width: int) -> str:
        """Cut an untrusted text, or pad it on the left, to exactly `width` columns."""
        text = self.cut(text, width)
        blanks = len(text) - len(text.rstrip(" "))
        return " " * blanks + text.rstrip(" ")

    def fit(self, texts: Sequence[str], least: int, most: int) -> int:
        """Return the width of a column with these texts, within limits."""
        from rich.cells import cell_len

        return max(least, min(most, max((cell_len(self.safe(t)) for t in texts), default=0)))

    def free_columns(self, most: int, *, beside: int) -> int:
        """Return the screen's width minus `beside` columns, limited to the range 4 to `most`."""
        return max(4, min(most, self.width - beside))


def to_line(words: str = "", style: str = "") -> Text:
    """Return a line of words in a style."""
    from rich.text import Text

    return Text(words, style)


def prose(screen: Screen, text: str, style: str = "", indent: int = 0) -> list[Text]:
    """Wrap one of qkv's own texts at the screen's width, and indent the lines."""
    lines = textwrap.wrap(
        screen.plain(text), max(20, screen.width - indent), break_on_hyphens=False
    )
    return [to_line(" " * indent + line, style=style) for line in lines]


def bar(screen: Screen, value: float, width: int = 20) -> Text:
    """Draw a bar for a share from 0 to 1, padded with spaces to `width` columns.

    >>> bar(Screen(), 0.5, 4).plain + "|", bar(Screen(encoding="ascii"), 0.5, 4).plain + "|"
    ('██  |', '##  |')
    """
    share = 0.0 if math.isnan(value) else min(1.0, max(0.0, value))
    if not screen.unicode:
        return to_line(("#" * round(share * width)).ljust(width), _BAR)
    full, part = divmod(round(share * width * 8), 8)
    return to_line(("█" * full + ("▏▎▍▌▋▊▉"[part - 1] if part else "")).ljust(width), _BAR)


def cube_color(number: int) -> str:
    """Convert the index of a terminal colour, 16 to 231, to `#rrggbb`.

    >>> cube_color(16), cube_color(153)
    ('#000000', '#afd7ff')
    """
    levels = (0, 95, 135, 175, 215, 255)
    red, green, blue = (levels[(number - 16) // step % 6] for step in (36, 6, 1))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


_WAIT = 0.3  # The maximum time to wait for the terminal's answer, in seconds.
# Ask for the background colour, then for the type of the terminal. All terminals answer the second
# question. So if a terminal ignores the first question, the wait ends when it answers the second.
_QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
_COLOR = re.compile(rb"\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
_END = re.compile(rb"\x1b\[\?[\d;]*c")


def ground_of(file: IO[str]) -> str | None:
    """Return the background of a stream's terminal, "light" or "dark"; None if it is not known."""
    ground = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    if ground.isdigit():  # of the 16 colours, 0 to 6 and 8 are dark, as in vim
        return "dark" if int(ground) in (*range(7), 8) else "light"
    return _ask_terminal() if file.isatty() else None


@lru_cache(maxsize=1)
def _ask_terminal() -> str | None:
    try:
        import termios
        import tty

        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except (ImportError, OSError):
        return None
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return None  # the system would stop a background process that reads from the terminal
        before = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal)
            os.write(terminal, _QUESTION)
            return _theme(_answer(terminal))
        finally:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
    except (OSError, termios.error):
        return None
    finally:
        os.close(terminal)


def _answer(terminal: int) -> bytes:
    answer, until = b"", time.monotonic() + _WAIT
    while not _END.search(answer):
        left = until - time.monotonic()
        if left <= 0 or not select.select([terminal], [], [], left)[0]:
            break
        answer += os.read(terminal, 256)
    return answer


def _theme(answer: bytes) -> str | None:
    r"""Return "light" or "dark": the brightness of the background in a terminal's answer.

    The result is None if the answer contains no colour.

    >>> _theme(b"\x1b]11;rgb:fdfd/f6f6/e3e3\x1b\\"), _theme(b"\x1b]11;rgb:1e/1e/1e\x07")
    ('light', 'dark')
    """
    color = _COLOR.search(answer)
    if color is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in color.groups())
    return "light" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "dark"


def draw(screen: Screen, rows: panels.Rows) -> Iterator[Text]:
    """Draw rows of panels: named panels side by side, other panels one below the other."""
    for row in panels.drawn_in("terminal", rows):
        if len(row) > 1 and row[0].name:
            yield to_line()
            yield _title(screen, row[0])
            half = replace(screen, width=(screen.width - 3) // 2)
            yield from _side_by_side(
                screen, [(panel.name, _DRAW[type(panel)](half, panel)) for panel in row]
            )
            continue
        for panel in row:
            if panel.title:
                yield to_line()
                yield _title(screen, panel)
            yield from _DRAW[type(panel)](screen, panel)


def heading(screen: Screen, name: str, model: str, tokens: Sequence[str]) -> Text:
    """Write the name, the model and the first tokens of a text."""
    most, line = 60, to_line(f"{name}  " if name else "", style="bold")
    count = "1 token" if len(tokens) == 1 else f"{len(tokens)} tokens"
    line.append(f"{screen.safe(model)}, {count}: " if model else f"{count}: ")
    line.append(" ".join(screen.safe(token) for token in tokens[:most]), style="not bold")
    if len(tokens) > most:
        line.append(f" and {len(tokens) - most} more", style="dim not bold")
    return line


def _title(screen: Screen, panel: panels.Panel) -> Text:
    line = to_line(screen.plain(panel.title), style="bold")
    if panel.explained:
        line.append(screen.plain(f" ({panel.explained})"), style="dim not bold")
    return line


def _prose(screen: Screen, panel: panels.Prose) -> list[Text]:
    if panel.code:
        blank = " " * panel.indent
        return [to_line(blank + screen.plain(x), style=panel.style) for x in panel.text.split("\n")]
    return prose(screen, panel.text, panel.style, panel.indent)


def _links(screen: Screen, panel: panels.Links) -> list[Text]:
    """Draw the largest links with bars."""
    width = screen.fit([query for query, _, _ in panel.strongest], 3, 16)
    wide = screen.fit([key for _, key, _ in panel.strongest], 3, 16)
    free = screen.free_columns(24, beside=width + wide + 11)
    lines = []
    for query, key, weight in panel.strongest:
        line = to_line("  " + screen.cut(query, width), style="bold")
        line.append(f" {weight:.2f} ", style="not bold")
        line.append(bar(screen, weight, free))
        lines.append(line.append(screen.plain(" → ") + screen.cut(key, wide)))
    return lines


def _bars(screen: Screen, panel: panels.Bars) -> list[Text]:
    written = [panel.form.format(value) for value in panel.values]
    columns = [panels.Column("", written), panels.Column("", bars=panel.shares)]
    return _table(screen, panels.Table(names=panel.names, columns=columns))


def _chart(screen: Screen, panel: panels.Lines) -> list[Text]:
    """Draw a bar for each number of the chart's first line."""
    values = [value for _, value in panel.lines[0].points]
    top = max(map(abs, panel.axis))
    return _bars(screen, panels.Bars(names=panel.names, values=values, top=top))


def _table(screen: Screen, panel: panels.Table) -> list[Text]:
    """Draw a table. Names and columns are as wide as their texts; bars take the remaining width."""
    width = screen.fit([panel.corner, *panel.names], 3, 20)
    sized = [
        (column, 4 if column.bars else screen.fit([column.header, *column.cells], 1, 36))
        for column in panel.columns
    ]
    spare = [pair for pair in sized if pair[0].spare]
    while len(spare) > 2 and width + sum(2 + size for _, size in sized) > screen.width:
        sized.remove(spare.pop(0))
    beside = width + sum(2 + size for column, size in sized if not column.bars)
    free = screen.free_columns(24, beside=beside + 2)
    sized = [(column, free if column.bars else size) for column, size in sized]
    lines = []
    if any(column.header for column, _ in sized):
        line = to_line(screen.cut(screen.plain(panel.corner), width), style="dim")
        for column, size in sized:
            put = screen.cut if column.left or column.bars else screen.right
            line.append("  " + put(screen.plain(column.header), size))
        lines.append(line)
    for row, name in enumerate(panel.names):
        line = to_line(screen.cut(screen.plain(name), width), style="bold")
        for column, size in sized:
            line.append("  ", style="not bold")
            if column.bars:
                line.append_text(bar(screen, column.bars[row], size))
                continue
            style = column.style if isinstance(column.style, str) else column.style[row]
            put = screen.cut if column.left else screen.right
            line.append(put(screen.plain(column.cells[row]), size), style=style)
        line.rstrip()
        lines.append(line)
    return [*lines, to_line(panel.note, style="dim")] if panel.note else lines


def _heat_map(screen: Screen, panel: panels.HeatMap) -> list[Text]:
    """Draw a table of shaded cells, and the scale below.

    If some rows or columns do not fit, the table has only the rows and columns with the largest
    scores, and a line below counts the others. An extra column shows the summed weight of the
    columns that are left out.
    """
    values, columns, hidden, shares = panel.values, panel.columns, panel.hidden, panel.shares
    form, words = panel.form, panel.words
    label = screen.fit(panel.rows, 3, min(16, screen.width // 3))
    written = (
        [form(end) for end in panel.ends] if words is None else [x for row in words for x in row]
    )
    cell = screen.fit(written, 4, 12) + (not screen.shades)
    free = max(1, (screen.width - label - 1) // (cell + 1))
    summed = panel.of == "weight"
    most = free if len(columns) <= free or not summed else max(1, free - 2)
    score = np.abs(shares) if panel.score is None else panel.score
    shown_rows, indices = strongest_block(score, panel.most_rows, most)
    rest = summed and len(columns) > len(indices)
    spare = (screen.width - label - 1 - (2 + cell + 3 if rest else 0)) // len(indices) - 1
    cell = max(cell, min(spare, screen.fit([columns[j] for j in indices], cell, 9)))

    head = to_line(" " * (label + 1))
    for j in indices:
        head.append(" " + screen.right(columns[j], cell), style="bold")
    if rest:
        head.append(" " + "others".rjust(max(cell, 6)), style="dim")
    lines = [head]
    for i in shown_rows:
        line = to_line(screen.cut(panel.rows[i], label) + " ", style="bold")
        for j in indices:
            if hidden is not None and hidden[i, j]:
                line.append(("·" if screen.unicode else "-").rjust(cell + 1), "dim not bold")
                continue
            value = float(values[i, j])
            if not math.isfinite(value):
                line.append(str(value).rjust(cell + 1), "bold red")
                continue
            content = form(value) if words is None else words[i][j]
            line.append_text(_cell(screen, content, float(shares[i, j]), cell + 1))
        if rest:
            left = values[i].sum() - values[i, indices].sum()
            line.append(f" {max(0.0, float(left)):{max(cell, 6)}.2f}", style="dim not bold")
        lines.append(line)
    lines.append(_scale(screen, panel))
    counts = [(len(panel.rows), len(shown_rows), "rows"), (len(columns), len(indices), "columns")]
    return lines + _left_out(counts, f", those with the largest {panel.what}")


def _numbers(screen: Screen, panel: panels.Numbers) -> list[Text]:
    """Draw the first rows and columns as a table, and count the rows and columns left out."""
    values, columns, cell = panel.values, panel.columns, panel.cell
    label = screen.fit(panel.rows, 3, min(12, screen.width // 3))
    form = panels.number_format(values)
    width = max(7, *(len(form(x)) for x in values[np.isfinite(values)].tolist()), 0)
    free = max(1, (screen.width - label - 2) // (width + 1))
    headings = [str(j) for j in range(values.shape[1])] if columns is None else list(columns)
    if columns is None and len(headings) > free:
        free = min(free, 8)
    shown_rows = _first(len(panel.rows), panel.most_rows, cell[0] if cell else 0)
    indices = _first(len(headings), free, cell[1] if cell else 0)

    head = to_line(" " * label, style="bold" if columns else "dim")
    for j in indices:
        head.append(" " + screen.right(headings[j], width))
    lines = [head]
    for i in shown_rows:
        line = to_line(screen.cut(panel.rows[i], label), style="bold")
        for j in indices:
            line.append(" ", style="not bold")
            if panel.hidden is not None and panel.hidden[i, j]:
                line.append("-inf".rjust(width), style="dim not bold")
            else:
                marked = "bold underline" if cell == (i, j) else "not bold"
                line.append(form(float(values[i, j])).rjust(width), style=marked)
        if len(indices) < len(headings) and indices[-1] == len(indices) - 1:
            line.append(screen.plain(" …") if screen.unicode else " ~", style="dim not bold")
        lines.append(line)
    counts = [(len(panel.rows), len(shown_rows), "rows"), (len(headings), len(indices), "columns")]
    return lines + _left_out(counts)


def _passages(screen: Screen, panel: panels.Passages) -> list[Text]:
    """Draw shaded words in lines; the marked word is bold or, without colours, in brackets."""
    from rich.cells import cell_len

    label = screen.fit([passage.label for passage in panel.passages], 1, 20)
    free = screen.free_columns(100, beside=label + 4)
    drawn = []
    lines = panel.wrap(lambda word: cell_len(screen.safe(word)) + 3, free)
    for passage, rows in zip(panel.passages, lines, strict=True):
        front = screen.right(passage.label, label)
        for row in rows:
            line = to_line(f"  {front} ", style="not bold")
            for number in row:
                word = screen.safe(passage.words[number])
                marked = number == passage.marked
                word = f"[{word}]" if marked and not screen.shades else word
                line.append(" ")
                style = screen.shading(passage.shares[number])
                line.append(word, style=f"{style} bold".strip() if marked else style)
            drawn.append(line)
            front = " " * label
    return drawn


def _cells(screen: Screen, panel: panels.Cells) -> list[Text]:
    """Draw a shade for each cell or, without colours, a digit from 0 to 9."""
    lines = []
    for row, shares in enumerate(panel.shares.tolist()):
        line = to_line("  ")
        for column, share in enumerate(shares):
            blank = "  " if screen.shades else f"{round(9 * share):d} "
            marked = (row, column) == panel.marked
            line.append("x " if marked else blank, screen.shading(share))
        lines.append(line)
    return lines


def _left_out(counts: list[tuple[int, int, str]], which: str = "") -> list[Text]:
    """Return a line that counts the shown rows and columns; no line if all are shown."""
    note = " and ".join(
        f"{number} of {count} {what}" for count, number, what in counts if number < count
    )
    return [to_line(f"Shown: {note}{which}.", style="dim")] if note else []


def _cell(screen: Screen, written: str, share: float, width: int) -> Text:
    if screen.shades:
        return to_line(screen.right(written, width), f"not bold {screen.shading(share)}")
    marks = " ░▒▓█" if screen.unicode else " .:*#"
    size = abs(share)
    mark = marks[0 if size < LEAST else min(4, math.ceil(size * 4 - 0.02))]
    return to_line(screen.right(mark + screen.safe(written), width), style="not bold")


def _scale(screen: Screen, panel: panels.HeatMap) -> Text:
    low, top = (panel.form(end) for end in panel.ends)
    name = "" if panel.of == "weight" else f"{panel.scale_name} "
    line = to_line(f"scale {screen.plain(name)}{low} ", style="dim")
    if screen.shades:
        for step in range(16):
            share = (2 * step / 15 - 1) if panel.signed else step / 15
            line.append(" ", style=f"not dim {screen.shading(share)}")
    else:
        marks = " ░▒▓█" if screen.unicode else " .:*#"
        line.append(marks[:0:-1] * panel.signed + marks)
    line.append(f" {top}")
    if panel.top not in (None, 1.0):
        line.append(" (stretched to the largest)")
    if panel.hidden is not None and panel.hidden.any():
        line.append(f"   {'·' if screen.unicode else '-'} hidden by the mask")
    return line


def _first(count: int, free: int, needed: int) -> list[int]:
    """Choose the first `free` indices; replace the last by `needed` if it is not among them."""
    indices = list(range(min(count, free)))
    if indices and needed not in indices:
        indices[-1] = needed
    return indices


def _side_by_side(screen: Screen, sides: Sequence[tuple[str, list[Text]]]) -> Iterator[Text]:
    """Draw two lists of lines under their names: side by side if they fit, otherwise stacked."""
    left, right = (
        [to_line(name, screen.side(side)), *lines]
        for side, (name, lines) in zip("AB", sides, strict=True)
    )
    half, wide = (2 + max(line.cell_len for line in lines) for lines in (left, right))
    if half + wide + 1 > screen.width:
        yield from (*left, *right)
        return
    half += 1
    for first, second in zip_longest(left, right, fillvalue=to_line()):
        line = first.copy()
        line.append(" " * (half - line.cell_len))
        yield line.append_text(second)


_DRAW: dict[type[panels.Panel], Callable[[Screen, Any], list[Text]]] = {
    panels.Bars: _bars,
    panels.Cells: _cells,
    panels.HeatMap: _heat_map,
    panels.Lines: _chart,
    panels.Links: _links,
    panels.Numbers: _numbers,
    panels.Passages: _passages,
    panels.Prose: _prose,
    panels.Table: _table,
}
