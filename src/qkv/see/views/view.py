"""What all views can do: print themselves, become a page, a picture or numbers."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.arrays import finite
from qkv.files import replacing
from qkv.see.analysis.words import explained
from qkv.see.draw import figure, svg, terminal
from qkv.see.draw.panels import Panel
from qkv.see.draw.screen import Screen, prose, styled, with_a_width
from qkv.see.page.html import document, fragment, picture
from qkv.see.page.payload import payload_of
from qkv.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.text import Text


def one_model(models: Sequence[str]) -> str:
    """The models of several texts as one name.

    >>> one_model(["books", "books"]), one_model(["books", "minilm"])
    ('books', 'books and minilm')
    """
    return " and ".join(filter(None, dict.fromkeys(models)))


def models_of(traces: Sequence[Trace]) -> dict[str, Any]:
    """The models of several traces among the numbers of a view."""
    models = [trace.model for trace in traces]
    return {"model": one_model(models), "models": models}


class Heading(NamedTuple):
    """A text that a view is of: its tokens, which of them are special, its model, its name.

    `unknown` is what stands in it where a token is that of an unknown word.
    """

    tokens: list[str]
    special: list[bool]
    model: str = ""
    name: str = ""
    unknown: Sequence[str] = ()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class View(ABC):
    """Something to look at.

    In a notebook it shows itself; elsewhere there are `print()`, `str(view)`, `to_html(path)`,
    `to_png(path)`, `to_svg(path)`, `figure()`, `svg()` and, for the numbers, `to_dict()`.

    Attributes:
        theme: of its page: "auto", "light" or "dark".
        stretch: whether scales end at the largest weight, and not at 1.
    """

    theme: str = "auto"
    stretch: bool = False

    def __str__(self) -> str:
        """The view as plain text, 80 columns wide."""
        from rich.console import Console

        # rich would display it in a notebook, whatever the file is
        page = io.StringIO()
        console = Console(
            file=page, width=80, color_system=None, force_jupyter=False, legacy_windows=False
        )
        self._write(console, Screen(80))
        return page.getvalue().rstrip("\n")

    __repr__ = __str__  # what an interpreter prints of it

    def _repr_html_(self) -> str:
        """What a notebook shows of it: one piece of HTML that needs no network."""
        return self._html()[1]

    @property
    @abstractmethod
    def sentence(self) -> str:
        """What there is to see, in words."""

    @property
    def title(self) -> str:
        """What stands on top."""
        return self.sentence

    @property
    def reasons(self) -> list[str]:
        """Why this is shown, in sentences."""
        return []

    @property
    def notes(self) -> list[str]:
        """What a reader should know of the models and of the tokens: pieces, unknown words."""
        texts = self._headings()
        pieces = [
            note
            for text in texts
            for note in explained(text.tokens, text.special, text.name, text.unknown)
        ]
        if len({text.model for text in texts}) < 2:
            return pieces
        ran = ", ".join(f"{text.name} in {text.model or 'one without a name'}" for text in texts)
        return [f"The texts ran in different models: {ran}.", *pieces]

    def print(self, console: Console | None = None) -> None:
        """Write the view to a terminal, as wide and as colourful as this one allows."""
        from rich.console import Console

        console = with_a_width(console or Console(highlight=False))
        self._write(console, Screen.of(console))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the view to one HTML file that needs nothing else, whole or not at all."""
        page = self._document().encode("utf-8")
        with replacing(path) as file:
            file.write(page)

    def to_svg(self, path: str | os.PathLike[str]) -> None:
        """Write `svg()` to a file, whole or not at all."""
        data = self.svg().encode("utf-8")
        with replacing(path) as file:
            file.write(data)

    def to_png(self, path: str | os.PathLike[str]) -> None:
        """Write `figure()` to a PNG file, whole or not at all."""
        figure.write_png(self.figure(), path)

    def to_dict(self) -> dict[str, Any]:
        """The numbers of the view, ready for JSON: None for what is not finite or was not kept."""
        found: dict[str, Any] = finite(self._numbers() | {"notes": self.notes})
        return found

    def figure(self) -> Figure:
        """The panels of the view as a matplotlib figure, on the ground of its theme."""
        notes = [*self.reasons, *self.notes]
        return figure.draw(self.title, notes, self.panels(), dark=self.theme == "dark")

    def svg(self) -> str:
        """The panels of the view as SVG, on the ground of its theme."""
        notes = [*self.reasons, *self.notes]
        return svg.draw(self.title, notes, self.panels(), dark=self.theme == "dark")

    @abstractmethod
    def panels(self) -> list[list[Panel]]:
        """What the view shows: rows of panels beside each other."""

    @abstractmethod
    def _headings(self) -> list[Heading]:
        """The texts that it is of."""

    @abstractmethod
    def _numbers(self) -> dict[str, Any]:
        """What `to_dict` gives, arrays as they are."""

    def _payload(self) -> dict[str, Any] | None:
        """What a page's script reads (page/payload.py); None where the picture is all there is."""
        return None

    def _html(self) -> tuple[str, str]:
        """Title and body of a page."""
        payload = self._payload()
        if payload is None:
            notes = [*self.reasons, *self.notes]
            return self.title, picture(self.title, notes, self.panels(), self.theme)
        return payload["title"], fragment(
            payload | {"notes": self.notes}, self.svg(), self._about()
        )

    def _about(self) -> str:
        """What a page says of a model whose parameters it holds (page/html.py)."""
        return ""

    def _document(self) -> str:
        """The page, whole."""
        return document(*self._html(), self.theme)

    def _page(
        self, kind: str, title: str, texts: Sequence[dict[str, Any]] = (), **parts: Any
    ) -> dict[str, Any]:
        """The same from its own parts; `start` among them."""
        model = one_model([text.model for text in self._headings()])
        return payload_of(
            kind, title, texts, model=model, theme=self.theme, stretch=self.stretch, **parts
        )

    def _lines(self, screen: Screen) -> Iterator[Text]:
        """The view line by line; prose is wrapped by the console."""
        texts = self._headings()
        for text in texts:
            yield terminal.heading(screen, text.name, text.model, text.tokens)
        for note in self.notes:
            yield from prose(screen, note, "dim")
        if texts:
            yield styled()
        yield from prose(screen, self.title, "bold")
        for reason in self.reasons:
            yield from prose(screen, reason, "dim")
        yield from terminal.draw(screen, self.panels())

    def _write(self, console: Console, screen: Screen) -> None:
        for line in self._lines(screen):
            console.print(line, highlight=False, overflow="fold")
