"""The base classes of all views, and the panels and sentences that several views share."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qkv._argument_errors import public_call
from qkv.arrays import Array, finite
from qkv.files import StrPath, replacing
from qkv.see.analysis import explain_tokens, labels_of, quote_words, show_blanks
from qkv.see.analysis.head_weights import Heads, Indices
from qkv.see.analysis.measures import Link, strongest, strongest_links
from qkv.see.analysis.selection import TERMINAL, ChosenHead, Notation
from qkv.see.analysis.word_vectors import Movement, fit_plane, named_points, words_before_and_after
from qkv.see.draw import panels, png, svg, terminal
from qkv.see.draw.colours import TONES, scale_end
from qkv.see.draw.terminal import Screen, prose, to_line, with_a_width
from qkv.see.page.html import document, encode, fragment, picture
from qkv.see.page.payload import payload_of, start_at, text_payload
from qkv.text.tokenized import unknown_in
from qkv.trace import Trace

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Json = dict[str, Any]
Names = Sequence[str]
Rows = list[list[panels.Panel]]
EACH_ROW = "each row: what this token attends to; a row sums to 1"


def one_model(models: Sequence[str]) -> str:
    """Join the names of several texts' models; each name appears once.

    >>> one_model(["books", "books"]), one_model(["books", "minilm"])
    ('books', 'books and minilm')
    """
    return " and ".join(filter(None, dict.fromkeys(models)))


def models_of(traces: Sequence[Trace]) -> Json:
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

    @classmethod
    def of(cls, trace: Trace, name: str = "") -> "Heading":
        """Make the heading for a trace's text."""
        unknown = unknown_in(trace.tokens, trace.offsets, trace.text)
        return cls(labels_of(trace.tokens), list(trace.special), trace.model, name, unknown)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class View(ABC):
    """A view of attention that can be printed, or exported as a page, an image or numbers.

    A notebook displays a view automatically. Elsewhere, call `print()`, `str(view)`,
    `to_html(path)`, `to_png(path)`, `to_svg(path)` or `svg()`. `to_dict()` returns the numbers.

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
        """Return HTML for a notebook; the HTML does not need a network."""
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
        """Explain which models ran, and which tokens are subwords or unknown words."""
        texts = self._headings()
        pieces = [
            note
            for text in texts
            for note in explain_tokens(text.tokens, text.special, text.name, text.unknown)
        ]
        if len({text.model for text in texts}) < 2:
            return pieces
        ran = ", ".join(f"{text.name} in {text.model or 'an unnamed model'}" for text in texts)
        return [f"The texts ran in different models: {ran}.", *pieces]

    def print(self, console: "Console | None" = None) -> None:
        """Print the view to a terminal, at the terminal's width and in its colours."""
        from rich.console import Console

        console = with_a_width(console or Console(highlight=False))
        self._write(console, Screen.of(console))

    def to_html(self, path: StrPath) -> None:
        """Write the view to one HTML file; a failed write does not change the file."""
        page = encode(self._document())
        with replacing(path) as file:
            file.write(page)

    def to_svg(self, path: StrPath) -> None:
        """Write `svg()` to a file; a failed write does not change the file."""
        data = self.svg().encode("utf-8")
        with replacing(path) as file:
            file.write(data)

    @public_call("to_png")
    def to_png(self, path: StrPath) -> None:
        """Write `svg()` as a PNG file, at twice the size; a failed write does not change the file.

        Raises:
            ImportError: the extra `png` is not installed.
            ValueError: no font on this machine has a character of the picture.
        """
        data = png.render(self.svg(), TONES["dark" if self.theme == "dark" else "light"].paper)
        with replacing(path) as file:
            file.write(data)

    def to_dict(self) -> Json:
        """Return the view's numbers for JSON; numbers that are unknown or not finite are None."""
        return dict(finite(self._numbers() | {"notes": self.notes}))

    def svg(self) -> str:
        """Draw the panels as SVG, in the colours of the theme."""
        return svg.draw(self.title, self._below(), self.panels(), dark=self.theme == "dark")

    @abstractmethod
    def panels(self) -> Rows:
        """Return the contents of the view: rows of panels side by side."""

    @abstractmethod
    def _headings(self) -> list[Heading]:
        """Return a heading for each text of the view."""

    @abstractmethod
    def _numbers(self) -> Json:
        """Return the numbers for `to_dict`, still as arrays."""

    def _payload(self) -> Json | None:
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

    def _page(self, kind: str, title: str, texts: Sequence[Json] = (), **parts: Any) -> Json:
        """Assemble the data of a page from `kind`, `title`, `texts` and other parts."""
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
            yield to_line()
        yield from prose(screen, self.title, "bold")
        for reason in self.reasons:
            yield from prose(screen, reason, "dim")
        yield from terminal.draw(screen, self.panels())

    def _write(self, console: "Console", screen: Screen) -> None:
        for line in self._lines(screen):
            console.print(line, highlight=False, overflow="fold")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadShown(View):
    """A view that shows one head first.

    Attributes:
        head: the head.
    """

    head: ChosenHead

    @abstractmethod
    def _all_heads(self) -> Sequence[Heads]:
        """Return all heads of each text, with weights between words if subwords are merged."""

    @property
    def top(self) -> float:
        """Return the upper end of the scale of weights."""
        layer, head = self.head.layer, self.head.head
        return scale_end((part.weights_of(layer, head) for part in self._all_heads()), self.stretch)

    @property
    def where(self) -> str:
        """Name the head in words."""
        return self.head.where

    @property
    def reasons(self) -> list[str]:
        """Explain the choice of the head."""
        return [f"This head is shown because {self.head.reason}."]

    def _maps(self, names: Sequence[str], *outlined: Sequence[int]) -> list[panels.Panel]:
        """Show the head in each of two texts, as pictures side by side."""
        parts = zip("AB", names, self._all_heads(), outlined or ((), ()), strict=True)
        options: dict[str, Any] = {"explained": EACH_ROW, "shown_in": panels.PICTURE}
        return [
            self._map(part, f"{name}: {self.where}", rows, name=side, **options)
            for side, name, part, rows in parts
        ]

    def _map(
        self,
        heads: Heads,
        title: str,
        outlined: Sequence[int],
        queries: Indices = None,
        **options: Any,
    ) -> panels.HeatMap:
        """Show the weights of one head; for a long text, show only the weights that were kept.

        If `queries` are given, only their rows are shown.
        """
        head = self.head
        if not heads.weights:
            queries, keys, values = heads.excerpt(head.layer, head.head, panels.MOST_ROWS)
            return panels.HeatMap(
                title=title,
                values=values,
                rows=[heads.queries.names[i] for i in queries],
                columns=[heads.keys.names[j] for j in keys],
                top=self.top,
                outlined=[i for i, query in enumerate(queries) if query in outlined],
                missing="not among the weights that were kept",
                whole=(len(heads.queries.tokens), len(heads.keys.tokens)),
                **(options | {"shown_in": panels.PICTURE}),
            )
        weights = heads.weights[heads.layers.index(head.layer)][head.head]
        hidden = heads.hidden(head.layer, head.head)
        rows = [*range(len(weights))] if queries is None else [*queries]
        return panels.HeatMap(
            title=title,
            values=weights[rows],
            rows=[heads.queries.names[row] for row in rows],
            columns=heads.keys.names,
            top=self.top,
            hidden=None if hidden is None else hidden[rows],
            score=heads.between_content(weights, queries)[rows],
            outlined=[rows.index(row) for row in outlined if row in rows],
            **options,
        )

    def _head_numbers(self) -> Json:
        """Return the shown head as numbers for `to_dict`."""
        return {
            "layer": self.head.layer,
            "head": self.head.head,
            "chosen": self.head.reason,
            "stands_out": self.head.stands_out,
            "sentence": self.sentence,
        }

    def _start(self, query: int | None = None, **more: Any) -> Json:
        """Return the state in which the page opens."""
        return start_at(query=query, **self._head_numbers(), headline=self.head.headline, **more)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OneText(HeadShown):
    """A view of one head of one text.

    Attributes:
        shown: all heads, with weights between words if subwords are merged, otherwise between
            tokens.
        elsewhere: one link for each of several heads that are not shown. The link that stands out
            most comes first.
        one_link: whether the reader chose a query and a key; if so, heads are ranked by the link
            between these two words.
        queries: the words whose links are shown; None for all content words.
    """

    shown: Heads
    elsewhere: list[Link]
    one_link: bool = False
    queries: Indices = None

    @cached_property
    def links(self) -> list[Link]:
        """Return the head's largest weights between two different content words."""
        return strongest_links(self.shown, self.head.layer, self.head.head, 10, self.queries)

    @property
    def sentence(self) -> str:
        """Return the head's headline or, if it has none, a sentence about its strongest link."""
        return link_in_words(self.shown, self.head)

    def panels(self) -> Rows:
        """Show the chosen head, and links of other heads that stand out."""
        return [*self._of_head(), *self._of_other_heads()]

    def _of_head(self) -> Rows:
        """Show the head's weights and links and, for a long text, the most attended tokens."""
        heads, head = self.shown, self.head
        query = [first_query(heads, head)]
        title = f"Weights of {head.where}"
        weights = self._map(heads, title, query, self.queries, explained=EACH_ROW)
        explained, most = "the largest weights between content words", 6
        if not heads.weights:
            count = heads.summary[0].indices.shape[2]
            explained, most = f"the {count} largest weights of each query were kept", 10
        rows, columns = heads.queries.names, heads.keys.names
        named = [(rows[x.query], columns[x.key], x.weight) for x in self.links[:most]]
        first: list[panels.Panel] = [weights]
        if named:
            title = f"Links of {head.where}"
            links = panels.Links(title=title, explained=explained, map=weights, strongest=named)
            first.append(links)
        if heads.weights:
            return [first]
        received = heads.summary[heads.layers.index(head.layer)].received[head.head]
        order = sorted(strongest(received, 10), key=lambda key: -received[key])
        bars = panels.Bars(
            title="The tokens that receive the most weight",
            explained="weight received from all tokens",
            names=[columns[key] for key in order],
            values=[float(received[key]) for key in order],
            form="{:.2f}",
        )
        return [first, [bars]]

    def _of_other_heads(self) -> Rows:
        """Show the links in `elsewhere`: one link for each head, with its weight."""
        links, queries, keys = self.elsewhere, self.shown.queries.names, self.shown.keys.names
        if not links:
            return []
        title = ("Other heads worth a look", "for each head, the link that stands out most")
        if self.one_link:
            title = ("Other heads with this link", "the link that stands out most comes first")
        columns = [
            panels.Column("", [f"{queries[x.query]} → {keys[x.key]}" for x in links], left=True),
            panels.Column("", [f"{x.weight:.2f}" for x in links]),
        ]
        if self.one_link:
            columns.append(
                panels.Column("", [f"usually {max(x.usual):.2f}" for x in links], style="dim")
            )
        options = [f"--layer {x.layer} --head {x.head}" for x in links]
        return [[panels.Table(title=title[0], explained=title[1], names=options, columns=columns)]]

    def _all_heads(self) -> Sequence[Heads]:
        return [self.shown]

    def _show_page(self, parts: Sequence[Heads], **start: Any) -> Json:
        """Return a page's data for one text, or for the three `parts` of an encoder-decoder."""
        heads = parts[0]
        return self._page(
            "show",
            quote_words(heads.text, heads.queries.tokens, heads.queries.special),
            [text_payload(part, self.head.layer) for part in parts],
            start=self._start(
                self.shown.queries.position(first_query(self.shown, self.head)), **start
            ),
        )


def names_of_layers(layers: int) -> list[str]:
    """Return names for the embeddings and for the output of each layer."""
    return ["embeddings", *(f"after layer {layer}" for layer in range(layers))]


def link_in_words(heads: Heads, head: ChosenHead, written: Notation = TERMINAL) -> str:
    """Return the head's headline or, if it has none, a sentence about its strongest link."""
    if head.headline:
        return head.headline
    if head.link is None:
        return (
            f"In {written.head.format(head.layer, head.head)}, no content word attends to another."
        )
    query, key = heads.queries.name_of(head.link.query, "The"), heads.keys.name_of(head.link.key)
    where = written.head.format(head.layer, head.head)
    return f"{query} attends to {key}: {written.share(head.link.weight)} ({where})."


def guess_bars(guesses: Sequence[tuple[str, float]], title: str, name: str) -> panels.Bars:
    """Show a model's guesses with a bar for each probability."""
    return panels.Bars(
        title=title,
        explained="the probability of each word",
        name=name,
        names=[show_blanks(word) for word, _ in guesses],
        values=[share for _, share in guesses],
        top=1.0,
    )


def movement_table(heads: Heads, moved: Movement) -> panels.Table:
    """Show the cosine between each word's two vectors; a bar shows how far the cosine is from 1."""
    words = [i for i, special in enumerate(heads.queries.special) if not special]
    words = words or list(range(len(heads.queries.tokens)))
    distance = 1 - moved.cosine
    indices = [words[i] for i in strongest(distance[words], 20)]
    longest = max(1.0, float(np.nanmax(distance[words], initial=1.0)))
    lengths = [
        f"{a:.2f} → {b:.2f}"
        for a, b in zip(moved.static_length[indices], moved.contextual_length[indices], strict=True)
    ]
    note = f"Shown: the {len(indices)} of {len(words)} words that moved furthest."
    return panels.Table(
        title="How far each word moved",
        explained="from its row in the token table to its last vector",
        names=labels_of([heads.queries.tokens[i] for i in indices]),
        columns=[
            panels.Column("cosine", [f"{moved.cosine[i]:.3f}" for i in indices]),
            panels.Column(
                "1 - cosine" + ("" if longest == 1 else f", to {longest:.2f}"),
                bars=(distance[indices] / longest).tolist(),
            ),
            panels.Column("length", lengths, style="not bold dim"),
        ],
        note=note if len(indices) < len(words) else "",
    )


def arrows(before: Any, after: Any, names: Names, alone: Names | None = None) -> panels.Arrows:
    """Show the directions of vectors `(n, D)` before and after attention, in their PCA plane."""
    plane = fit_plane(before, after, unit=True)
    return panels.Arrows(
        title="Words before and after attention",
        before=plane.original,
        after=plane.contextual,
        names=names,
        alone=alone,
        named=named_points(plane.original, plane.contextual, names),
        explained_variance=plane.explained.tolist(),
    )


def arrows_of(trace: Trace) -> list[panels.Panel]:
    """Show a text's words before and after attention; return nothing if vectors are missing."""
    words = words_before_and_after(trace)
    return [panels.Later(make=lambda: arrows(*words))] if words else []


def first_query(heads: Heads, head: ChosenHead) -> int:
    """Return the query of the head's link; without a link, the query of the largest weight."""
    if head.link is not None:
        return head.link.query
    weights: Array = np.nan_to_num(heads.weights_of(head.layer, head.head))
    return int(weights.argmax()) // int(weights.shape[1])


def link_to_dict(heads: Heads, link: Link) -> Json:
    """Return a link as data for JSON."""
    return {
        "layer": link.layer,
        "head": link.head,
        "from": heads.queries.position(link.query),
        "from_token": heads.queries.tokens[link.query],
        "to": heads.keys.position(link.key),
        "to_token": heads.keys.tokens[link.key],
        "weight": link.weight,
    }
