"""Panels that several views share: a head's weights and links, and the vectors of words."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.head_weights import Heads
from qkv.see.analysis.measures import Link, strongest, strongest_links
from qkv.see.analysis.selection import TERMINAL, ChosenHead, Notation
from qkv.see.analysis.word_vectors import Movement, fit_plane, named_points, words_before_and_after
from qkv.see.analysis.words import quoted
from qkv.see.draw import panels
from qkv.see.draw.colours import scale_end
from qkv.see.page.payload import start_at, text_payload
from qkv.see.views.view import Heading, View
from qkv.text.tokenized import unknown_in
from qkv.trace import Trace

EACH_ROW = "each row: what this token looks at; a row sums to 1"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadShown(View):
    """A view that shows one head first.

    Attributes:
        head: the head.
    """

    head: ChosenHead

    @abstractmethod
    def _all_heads(self) -> Sequence[Heads]:
        """Return all heads of each text, with weights between tokens or words, as in the view."""

    @property
    def top(self) -> float:
        """Return the upper end of the scale of weights."""
        layer, head = self.head.layer, self.head.head
        return scale_end((part.known(layer, head) for part in self._all_heads()), self.stretch)

    @property
    def where(self) -> str:
        """Name the head in words."""
        return self.head.where

    @property
    def reasons(self) -> list[str]:
        """Explain the choice of the head."""
        return [f"This head is shown because {self.head.reason}."]

    def _maps(
        self, names: Sequence[str], outlined: Sequence[Sequence[int]] = ((), ())
    ) -> list[panels.Panel]:
        """Show the head in each text, as pictures side by side."""
        parts = zip(names, self._all_heads(), outlined, strict=True)
        options: dict[str, Any] = {"explained": EACH_ROW, "shown_in": panels.PICTURE}
        return [
            weights_map(part, self.head, self.top, f"{name}: {self.where}", rows, **options)
            for name, part, rows in parts
        ]

    def _chosen(self) -> dict[str, Any]:
        """Return the shown head as numbers for `to_dict`."""
        return {
            "layer": self.head.layer,
            "head": self.head.head,
            "chosen": self.head.reason,
            "stands_out": self.head.stands_out,
            "sentence": self.sentence,
        }

    def _start(self, query: int | None = None, **more: Any) -> dict[str, Any]:
        """Return the state in which the page opens."""
        return start_at(query=query, **self._chosen(), headline=self.head.headline, **more)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OneText(HeadShown):
    """A view of one head of one text.

    Attributes:
        shown: all heads, with weights between words if subwords are merged, otherwise between
            tokens.
        elsewhere: the strongest links of other heads, starting with the link that stands out most.
        one_link: whether the reader named a query and a key; if so, heads are ranked by this one
            link.
    """

    shown: Heads
    elsewhere: list[Link]
    one_link: bool = False

    @cached_property
    def links(self) -> list[Link]:
        """Return the head's largest weights between two different content words."""
        return strongest_links(self.shown, self.head.layer, self.head.head, 10)

    @property
    def sentence(self) -> str:
        """Describe the head in a sentence: its headline, or its strongest link."""
        return link_in_words(self.shown, self.head)

    def panels(self) -> list[list[panels.Panel]]:
        """Show the head, and the links of other heads that stand out."""
        head = head_panels(self.shown, self.head, self.links, self.top)
        return [*head, *other_heads(self.shown, self.elsewhere, self.one_link)]

    def _all_heads(self) -> Sequence[Heads]:
        return [self.shown]

    def _show_page(self, parts: Sequence[Heads], **start: Any) -> dict[str, Any]:
        """Return a page's data for one text, or for all attention of an encoder-decoder."""
        heads = parts[0]
        return self._page(
            "show",
            quoted(heads.text, heads.queries.names, heads.queries.special),
            [text_payload(part, self.head.layer) for part in parts],
            start=self._start(
                self.shown.queries.position(first_query(self.shown, self.head)), **start
            ),
        )


def names_of_layers(layers: int) -> list[str]:
    """Return names for the embeddings and for the output of each layer."""
    return ["embeddings", *(f"after layer {layer}" for layer in range(layers))]


def link_in_words(heads: Heads, head: ChosenHead, written: Notation = TERMINAL) -> str:
    """Describe a head in a sentence: its headline, or its strongest link."""
    if head.headline:
        return head.headline
    if head.link is None:
        return (
            f"In {written.head.format(head.layer, head.head)} no content word looks at another one."
        )
    query, key = heads.queries.names[head.link.query], heads.keys.names[head.link.key]
    where = written.head.format(head.layer, head.head)
    return f"{query} looks at {key}: {written.share(head.link.weight)} ({where})."


def heading_of(trace: Trace, name: str = "") -> Heading:
    """Make the heading for a trace's text."""
    unknown = unknown_in(trace.tokens, trace.offsets, trace.text)
    return Heading(list(trace.tokens), list(trace.special), trace.model, name, unknown)


def weights_map(
    heads: Heads,
    head: ChosenHead,
    top: float,
    title: str,
    outlined: Sequence[int] = (),
    **options: Any,
) -> panels.HeatMap:
    """Show the weights of one head; for a long text, show only the weights that were kept."""
    if not heads.weights:
        queries, keys, values = heads.excerpt(head.layer, head.head, panels.MOST_ROWS)
        return panels.HeatMap(
            title=title,
            values=values,
            rows=[heads.queries.names[i] for i in queries],
            columns=[heads.keys.names[j] for j in keys],
            top=top,
            outlined=[i for i, query in enumerate(queries) if query in outlined],
            missing="not among the weights that were kept",
            whole=(len(heads.queries.tokens), len(heads.keys.tokens)),
            **(options | {"shown_in": panels.PICTURE}),
        )
    weights = heads.weights[heads.layers.index(head.layer)][head.head]
    return panels.HeatMap(
        title=title,
        values=weights,
        rows=heads.queries.names,
        columns=heads.keys.names,
        top=top,
        hidden=heads.hidden(head.layer, head.head),
        score=heads.between_content(weights),
        outlined=outlined,
        **options,
    )


def head_panels(
    heads: Heads, head: ChosenHead, links: Sequence[Link], top: float
) -> list[list[panels.Panel]]:
    """Show a head's weights and largest links; for a long text, also the most attended tokens."""
    query = [first_query(heads, head)]
    weights = weights_map(heads, head, top, f"Weights of {head.where}", query, explained=EACH_ROW)
    explained, most = "the largest weights between content words", 6
    if not heads.weights:
        kept = heads.summary[0].indices.shape[2]
        explained, most = f"the {kept} largest weights of each query were kept", 10
    rows, columns = heads.queries.names, heads.keys.names
    named = [(rows[x.query], columns[x.key], x.weight) for x in links[:most]]
    first: list[panels.Panel] = [weights]
    if named:
        first.append(
            panels.Links(
                title=f"Links of {head.where}", explained=explained, map=weights, strongest=named
            )
        )
    if heads.weights:
        return [first]
    received = heads.summary[heads.layers.index(head.layer)].received[head.head]
    shown = sorted(strongest(received, 10), key=lambda key: -received[key])
    bars = panels.Bars(
        title="The tokens that were looked at most",
        explained="weight received from all tokens",
        names=[columns[key] for key in shown],
        values=[float(received[key]) for key in shown],
        form="{:.2f}",
    )
    return [first, [bars]]


def other_heads(
    heads: Heads, links: Sequence[Link], one_link: bool = False
) -> list[list[panels.Panel]]:
    """Show the links of other heads; with `one_link`, the same link in each head."""
    if not links:
        return []
    title = ("Other heads worth a look", "the link of each head that stands out")
    if one_link:
        title = ("Other heads with this link", "in order of how much it stands out")
    names = heads.queries.names, heads.keys.names
    columns = [
        panels.Column("", [f"{names[0][x.query]} → {names[1][x.key]}" for x in links], left=True),
        panels.Column("", [f"{x.weight:.2f}" for x in links]),
    ]
    if one_link:
        columns.append(
            panels.Column("", [f"usually {max(x.usual):.2f}" for x in links], style="dim")
        )
    options = [f"--layer {x.layer} --head {x.head}" for x in links]
    return [[panels.Table(title=title[0], explained=title[1], names=options, columns=columns)]]


def guess_bars(guesses: Sequence[tuple[str, float]], title: str, name: str) -> panels.Bars:
    """Show a model's guesses with a bar for each probability."""
    return panels.Bars(
        title=title,
        explained="the probability of each word",
        name=name,
        names=[word for word, _ in guesses],
        values=[share for _, share in guesses],
        top=1.0,
    )


def movement_table(heads: Heads, moved: Movement) -> panels.Table:
    """Show the cosine of each word's two vectors; a bar shows how far the cosine is from 1."""
    words = [i for i, special in enumerate(heads.queries.special) if not special]
    words = words or list(range(len(heads.queries.tokens)))
    distance = 1 - moved.cosine
    shown = [words[i] for i in strongest(distance[words], 20)]
    longest = max(1.0, float(np.nanmax(distance[words], initial=1.0)))
    lengths = [
        f"{a:.2f} → {b:.2f}"
        for a, b in zip(moved.static_length[shown], moved.contextual_length[shown], strict=True)
    ]
    note = f"Shown: the {len(shown)} of {len(words)} that moved furthest."
    return panels.Table(
        title="How far each word moved",
        explained="from its row in the token table to its last vector",
        names=[heads.queries.tokens[i] for i in shown],
        columns=[
            panels.Column("cosine", [f"{moved.cosine[i]:.3f}" for i in shown]),
            panels.Column(
                "1 - cosine" + ("" if longest == 1 else f", to {longest:.2f}"),
                bars=(distance[shown] / longest).tolist(),
            ),
            panels.Column("length", lengths, style="not bold dim"),
        ],
        note=note if len(shown) < len(words) else "",
    )


def arrows(
    before: Any, after: Any, names: Sequence[str], *, alone: Sequence[str] | None = None
) -> panels.Arrows:
    """Show the directions of vectors `(n, D)` before and after attention, in their PCA plane."""
    plane = fit_plane(before, after, unit=True, call="plot_shift")
    if len(names) != len(plane.original):
        raise ValueError(
            f"plot_shift: there are {len(plane.original)} vectors, but {len(names)} tokens: "
            "give one token for each vector"
        )
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
    """Return the query of the strongest link; without a link, the query of the largest weight."""
    if head.link is not None:
        return head.link.query
    weights: Array = np.nan_to_num(heads.known(head.layer, head.head))
    return int(weights.argmax()) // int(weights.shape[1])


def link_to_dict(heads: Heads, link: Link) -> dict[str, Any]:
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
