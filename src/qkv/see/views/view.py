"""What all views can do: print themselves, become a page, a picture or numbers."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qkv.files import replacing
from qkv.see.analysis.words import explained
from qkv.see.draw.terminal import Screen, with_a_width
from qkv.see.page.html import fragment, whole_page
from qkv.see.page.payload import finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.text import Text


class View(ABC):
    """Something to look at.

    In a notebook it shows itself; elsewhere there are `print()`, `str(view)`, `to_html(path)`,
    `to_png(path)`, `to_svg(path)`, `figure()` and, for the numbers, `to_dict()`.
    """

    def __str__(self) -> str:
        """The view as plain text, 80 columns wide."""
        from rich.console import Console

        # rich would display it in a notebook, whatever the file is
        page = io.StringIO()
        console = Console(
            file=page,
            width=80,
            color_system=None,
            force_jupyter=False,
            legacy_windows=False,
        )
        self._write(console, Screen(80))
        return page.getvalue().rstrip("\n")

    __repr__ = __str__  # what an interpreter prints of it

    def _repr_html_(self) -> str:
        """What a notebook shows of it: one piece of HTML that needs no network."""
        return fragment(self._payload() | {"notes": self.notes}, self._picture())

    @property
    def notes(self) -> list[str]:
        """What a reader should know of the tokens: words in pieces, words that are unknown."""
        return [note for text in self._texts() for note in explained(*text)]

    def print(self, console: Console | None = None) -> None:
        """Write the view to a terminal, as wide and as colourful as this one allows."""
        from rich.console import Console

        console = with_a_width(console or Console(highlight=False))
        self._write(console, Screen.of(console))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the view to one HTML file that needs nothing else, whole or not at all."""
        payload = self._payload() | {"notes": self.notes}
        page = whole_page(payload, self._picture()).encode("utf-8")
        with replacing(path) as file:
            file.write(page)

    def to_svg(self, path: str | os.PathLike[str]) -> None:
        """Write the static picture to an SVG file, whole or not at all."""
        data = self._picture().encode("utf-8")
        with replacing(path) as file:
            file.write(data)

    def to_png(self, path: str | os.PathLike[str]) -> None:
        """Write `figure()` to a PNG file, whole or not at all."""
        from qkv.see.draw.figure import write_png

        write_png(self.figure(), path)

    def to_dict(self) -> dict[str, Any]:
        """The numbers of the view, ready for JSON: None for what is not finite or was not kept."""
        found: dict[str, Any] = finite(self._numbers() | {"notes": self.notes})
        return found

    @abstractmethod
    def figure(self) -> Figure:
        """The view as a matplotlib figure."""

    @abstractmethod
    def _numbers(self) -> dict[str, Any]:
        """What `to_dict` gives, arrays as they are."""

    def _texts(self) -> list[tuple[list[str], list[bool], str]]:
        """The tokens of each text, which of them are special, and its name."""
        return []

    @abstractmethod
    def _lines(self, screen: Screen) -> Iterator[Text]:
        """The view line by line; prose is wrapped by the console."""

    @abstractmethod
    def _payload(self) -> dict[str, Any]:
        """What a page reads, as page.py describes it."""

    @abstractmethod
    def _picture(self) -> str:
        """The static picture, as SVG."""

    def _write(self, console: Console, screen: Screen) -> None:
        for line in self._lines(screen):
            console.print(line, highlight=False, overflow="fold")
