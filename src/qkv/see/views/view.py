"""The base class of all views, which write text, pages, pictures and numbers."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.arrays import finite
from qkv.files import StrPath, replacing
from qkv.see.analysis.words import explained
from qkv.see.draw import figure, svg, terminal
from qkv.see.draw.panels import Panel
from qkv.see.draw.terminal import Screen, prose, styled, with_a_width
from qkv.see.page.html import document, fragment, picture
from qkv.see.page.payload import payload_of
from qkv.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.text import Text


def one_model(models: Sequence[str]) -> str:
    """Join the names of several texts' models; each name appears once.

    >>> one_model(["books", "books"]), one_model(["books", "minilm"])
    ('books', 'books and minilm')
    """
    return " and ".join(filter(None, dict.fromkeys(models)))


def models_of(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the entries of `to_dict` that name the models."""
    models = [trace.model for trace in traces]
    return {"model": one_model(models), "models": models}


class Heading(NamedTuple):
    """The heading of a text in a view: tokens, flags for special tokens, model and name.

    `unknown` lists words of the text that the tokenizer replaced with its unknown token ([UNK]).
    """

    tokens: list[str]
    special: list[bool]
    model: str = ""
    name: str = ""
    unknown: Sequence[str] = ()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class View(ABC):
    """A view of attention, which can be printed, or exported as a page, an image or numbers.

    A notebook displays a view automatically. Elsewhere, call `print()`, `str(view)`,
    `to_html(path)`, `to_png(path)`, `to_svg(path)`, `figure()` or `svg()`. `to_dict()` returns the
    numbers.

    Attributes:
        theme: "auto", "light" or "dark", the theme of the page.
        stretch: whether scales end at the largest weight instead of 1.
    """

    theme: str = "auto"
    stretch: bool = False

    def __str__(self) -> str:
        """Draw the view as plain text, 80 columns wide."""
        from rich.console import Console

        # without force_jupyter=False, rich would also display the text in a notebook
        page = io.StringIO()
        console = Console(
            file=page, width=80, color_system=None, force_jupyter=False, legacy_windows=False
        )
        self._write(console, Screen(80))
        return page.getvalue().rstrip("\n")

    __repr__ = __str__  # an interactive interpreter calls this method to print a result

    def _repr_html_(self) -> str:
        """Return HTML for a notebook; the HTML needs no network."""
        return self._html()[1]

    @property
    @abstractmethod
    def sentence(self) -> str:
        """Describe in a sentence what the view shows."""

    @property
    def title(self) -> str:
        """Return the title above the view."""
        return self.sentence

    @property
    def reasons(self) -> list[str]:
        """Explain in sentences why the view shows this head or word."""
        return []

    @property
    def notes(self) -> list[str]:
        """Explain the models and the tokens: subwords and unknown words."""
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

    def print(self, console: "Console | None" = None) -> None:
        """Print the view to a terminal, in the terminal's width and colours."""
        from rich.console import Console

        console = with_a_width(console or Console(highlight=False))
        self._write(console, Screen.of(console))

    def to_html(self, path: StrPath) -> None:
        """Write the view to one self-contained HTML file; a failed write changes no file."""
        page = self._document().encode("utf-8")
        with replacing(path) as file:
            file.write(page)

    def to_svg(self, path: StrPath) -> None:
        """Write `svg()` to a file; a failed write changes no file."""
        data = self.svg().encode("utf-8")
        with replacing(path) as file:
            file.write(data)

    def to_png(self, path: StrPath) -> None:
        """Write `figure()` to a PNG file; a failed write changes no file."""
        figure.write_png(self.figure(), path)

    def to_dict(self) -> dict[str, Any]:
        """Return the view's numbers for JSON; numbers that are unknown or not finite are None."""
        return dict(finite(self._numbers() | {"notes": self.notes}))

    def figure(self) -> "Figure":
        """Draw the panels as a matplotlib figure, in the colours of the theme."""
        return figure.draw(self.title, self._below(), self.panels(), dark=self.theme == "dark")

    def svg(self) -> str:
        """Draw the panels as SVG, in the colours of the theme."""
        return svg.draw(self.title, self._below(), self.panels(), dark=self.theme == "dark")

    @abstractmethod
    def panels(self) -> list[list[Panel]]:
        """Return the contents of the view: rows of panels side by side."""

    @abstractmethod
    def _headings(self) -> list[Heading]:
        """Return the texts of the view."""

    @abstractmethod
    def _numbers(self) -> dict[str, Any]:
        """Return the numbers for `to_dict`, still as arrays."""

    def _payload(self) -> dict[str, Any] | None:
        """Return the data of a page's script (page/payload.py); None if the page is a picture."""
        return None

    def _html(self) -> tuple[str, str]:
        """Return the title and the body of a page."""
        payload = self._payload()
        if payload is None:
            return self.title, picture(self.title, self._below(), self.panels(), self.theme)
        return payload["title"], fragment(
            payload | {"notes": self.notes}, self.svg(), self._about()
        )

    def _below(self) -> list[str]:
        """Return the prose below a picture."""
        return [*self.reasons, *self.notes]

    def _about(self) -> str:
        """Describe the model whose parameters the page contains (see page/html.py)."""
        return ""

    def _document(self) -> str:
        """Return the whole page."""
        return document(*self._html(), self.theme)

    def _page(
        self, kind: str, title: str, texts: Sequence[dict[str, Any]] = (), **parts: Any
    ) -> dict[str, Any]:
        """Assemble the data of a page from `start` and other parts."""
        model = one_model([text.model for text in self._headings()])
        return payload_of(
            kind, title, texts, model=model, theme=self.theme, stretch=self.stretch, **parts
        )

    def _lines(self, screen: Screen) -> "Iterator[Text]":
        """Draw the view line by line; the console wraps prose."""
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

    def _write(self, console: "Console", screen: Screen) -> None:
        for line in self._lines(screen):
            console.print(line, highlight=False, overflow="fold")
