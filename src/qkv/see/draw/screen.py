"""The capabilities of a terminal: width, colours, characters, and a light or dark background."""

import math
import os
import re
import select
import shutil
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, TYPE_CHECKING

from qkv.see.draw.colours import THEMES, ink, shade
from qkv.visible import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BAR = (
    f"not bold {THEMES['light'].more[5]}"  # a blue that is readable on light and dark backgrounds
)

LEAST = 0.025  # a terminal with few shades draws smaller shares like the background

_ASCII = {
    "ᵀ": ".T", "√": "sqrt ", "·": "*", "→": "->", "…": "...", "⋯": "...", "∞": "inf",
    "Σ": "sum", "ₖ": "_k",
}  # fmt: skip


def with_a_width(console: "Console") -> "Console":
    """If the variable COLUMNS is 0, set a console's width to the terminal's width."""
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
    def of(cls, console: "Console") -> "Screen":
        """Read a console's capabilities; with NO_COLOR or only 16 colours, use no colours."""
        depths = {"256": 256, "truecolor": 1 << 24}
        colors = 0 if console.no_color else depths.get(console.color_system or "", 0)
        theme = ground_of(console.file) if colors else None
        return cls(console.width, colors, console.encoding, theme)

    @property
    def shades(self) -> bool:
        """Return whether the terminal can shade cells; it needs colours and a known background."""
        return bool(self.colors and self.theme)

    def shading(self, share: float) -> str:
        """Return the style (for rich) of a share from -1 to 1; a share of 0 has no style.

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
        """In one of qkv's own texts, replace the characters that this screen cannot show."""
        if not self.unicode:
            for sign, ascii_form in _ASCII.items():
                text = text.replace(sign, ascii_form)
        return self.safe(text)

    def safe(self, text: str) -> str:
        r"""In untrusted text, escape characters that the terminal cannot show or would execute.

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

    def room(self, most: int, *, beside: int) -> int:
        """Return the screen's width minus `beside` columns, limited to the range 4 to `most`."""
        return max(4, min(most, self.width - beside))


def styled(words: str = "", style: str = "") -> "Text":
    """Return a line of words in a style."""
    from rich.text import Text

    return Text(words, style)


def prose(screen: Screen, text: str, style: str = "", indent: int = 0) -> "list[Text]":
    """Wrap one of qkv's own texts at the screen's width, and indent the lines."""
    lines = textwrap.wrap(
        screen.plain(text), max(20, screen.width - indent), break_on_hyphens=False
    )
    return [styled(" " * indent + line, style=style) for line in lines]


def bar(screen: Screen, value: float, width: int = 20) -> "Text":
    """Draw a bar for a share from 0 to 1, padded with spaces to `width` columns.

    >>> bar(Screen(), 0.5, 4).plain + "|", bar(Screen(encoding="ascii"), 0.5, 4).plain + "|"
    ('██  |', '##  |')
    """
    share = 0.0 if math.isnan(value) else min(1.0, max(0.0, value))
    if not screen.unicode:
        return styled(("#" * round(share * width)).ljust(width), _BAR)
    full, part = divmod(round(share * width * 8), 8)
    return styled(("█" * full + ("▏▎▍▌▋▊▉"[part - 1] if part else "")).ljust(width), _BAR)


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


_WAIT = 0.3  # The number of seconds to wait for an answer, which normally comes at once.
# A request for the background colour, then a request that every terminal answers.
_QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
_COLOR = re.compile(rb"\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
_END = re.compile(rb"\x1b\[\?[\d;]*c")


def ground_of(file: IO[str]) -> str | None:
    """Return the background of a stream's terminal, "light" or "dark"; None if it is not known."""
    ground = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    if ground.isdigit():  # the index of one of 16 colours; vim uses the same rule
        return "dark" if int(ground) in (*range(7), 8) else "light"
    return _asked() if file.isatty() else None


@lru_cache(maxsize=1)
def _asked() -> str | None:
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
    r"""Read "light" or "dark" from a terminal's answer, by the brightness of the colour.

    >>> _theme(b"\x1b]11;rgb:fdfd/f6f6/e3e3\x1b\\"), _theme(b"\x1b]11;rgb:1e/1e/1e\x07")
    ('light', 'dark')
    """
    color = _COLOR.search(answer)
    if color is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in color.groups())
    return "light" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "dark"
