"""One head of one text: `show`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from qkv.arrays import Array
from qkv.see.analysis import findings, selection
from qkv.see.analysis.by_word import by_word
from qkv.see.analysis.findings import Movement
from qkv.see.analysis.heads import Heads, heads_of
from qkv.see.analysis.inputs import places_in, traced
from qkv.see.analysis.removal import removal_of
from qkv.see.draw.panels import Panel
from qkv.see.page.payload import check_theme
from qkv.see.views.head_panels import OneText, heading_of, link_to_dict, movement_table
from qkv.see.views.view import Heading
from qkv.trace import Trace

if TYPE_CHECKING:
    from qkv.models import Model


@dataclass(frozen=True, eq=False, repr=False)
class ShowView(OneText):
    """One head of one text: its weights, its links, and how far each word moved.

    Attributes:
        trace: of the text.
        movement: how far each word moved, where its vectors were traced.
        heads: all heads of the tokens.
    """

    trace: Trace
    movement: Movement | None
    heads: Heads

    @property
    def tokens(self) -> list[str]:
        """The tokens of the text."""
        return list(self.trace.tokens)

    @property
    def weights(self) -> Array:
        """The weights of the head that is shown, `(T, T)`.

        Raises:
            ValueError: only the largest of each query were kept (`top_k`): see `links`.
        """
        if not self.heads.weights:
            raise ValueError("show: only the largest weights of each query were kept: see links")
        return self.trace.pattern(self.head.layer, self.head.head)

    def panels(self) -> list[list[Panel]]:
        """The head, the other heads worth a look, and how far attention moved each word."""
        rows = super().panels()
        if self.movement is not None:
            rows.append([movement_table(self.shown, self.movement)])
        return rows

    def _headings(self) -> list[Heading]:
        return [heading_of(self.trace)]

    def _numbers(self) -> dict[str, Any]:
        """The numbers of the view; the weights are exactly the trace's.

        `weights` is None where only the largest of each query were kept. Links and movement are
        of words, unless pieces are shown as they are: `from` and `to` are the places of their first
        tokens.
        """
        moved = self.movement
        return {
            "model": self.trace.model,
            "tokens": self.tokens,
            **self._chosen(),
            "weights": self.weights if self.heads.weights else None,
            "links": [link_to_dict(self.shown, link) for link in self.links],
            "other_heads": [link_to_dict(self.shown, link) for link in self.elsewhere],
            "movement": moved
            and [
                {"token": token} | {name: row[i] for name, row in vars(moved).items()}
                for i, token in enumerate(self.shown.queries.tokens)
            ],
        }

    def _payload(self) -> dict[str, Any]:
        return self._show_page([self.heads], merge=self.shown.queries.spans is not None)


def show(
    trace_or_text: Trace | str | Any,
    *,
    tokens: Iterable[str] | None = None,
    model: Model | str | None = None,
    layer: int | None = None,
    head: int | None = None,
    query: str | int | None = None,
    key: str | int | None = None,
    pieces: bool = False,
    theme: str = "auto",
    stretch: bool = False,
) -> ShowView:
    """One head's weights over a text, and how far attention moved each word.

    Unless `layer` and `head` say otherwise, the head is chosen by the rule of all views. In a text
    with a gap (the model's mask token) it is the head whose removal moves most of the probability
    at the first gap to other words. Without a gap it is the head whose link is furthest above what
    is usual. A link is a head's largest weight between two different content words; usual is what
    the head gives anyway: twice the mean weight of all pairs of words at that distance, or, if it
    is larger, the mean weight of the other words on that one. A head that gives 0.4 or more to
    either looks at a place and not at words: its links do not count. Ties go to the lowest layer,
    then head.

    What is less than 0.1, of the weight or of the probability, is no finding: the sentence then
    says that no head stands out, and so it does of an untrained model. Of weights that come without
    a model, and of a trace without `model`, the guess cannot be made again: there links decide. So
    they do in a text of more than 512 tokens; of a model with more than 48 heads those of its last
    layers are removed, as many as have 48.

    Content words are all but special tokens, punctuation, what the model has no word for, and the
    function words of English (the, of, she, is). Other languages have no such list here: there,
    and where fewer than two are left, each word counts.

    Args:
        trace_or_text: a model's trace of one text, or the text; or weights, as one array
            `(layers, heads, L, L)` or as `transformers` returns them, with `tokens`.
        tokens: the L tokens, where weights are given.
        model: the model for a text, or its name; the default model if left out. With a trace it
            adds the length of what each token gives, `|v W_O|`.
        layer: the layer to show, from 0, or from the end with -1.
        head: the head to show, from 0.
        query: the word to look from, or the place of a token: the heads are ranked by its links.
        key: the word to look at, or the place of a token; with `query` the heads are ranked by this
            one link.
        pieces: whether the pieces of a word are shown as they are, not merged into it: what they
            receive summed, what they look at averaged.
        theme: of the page: "light", "dark", or "auto" for that of the site or system around it.
        stretch: whether scales end at the largest weight that is shown, and not at 1.

    Raises:
        ValueError: the text is empty, the trace holds several texts or no weights, arrays and
            tokens do not fit each other, or a word is not in the text.
        IndexError: there is no such layer, head or place; the message names the range.

    >>> view = show("The cat sat on the mat", model="random", layer=0, head=1)
    >>> view.tokens, view.weights.shape
    (['the', 'cat', 'sat', 'on', 'the', 'mat'], (6, 6))
    >>> import numpy as np
    >>> show(np.full((1, 1, 2, 2), 0.5), tokens=["hello", "world"], layer=0, head=0).sentence
    'hello looks at world: 0.50 (layer 0, head 0).'
    """
    check_theme(theme, "show")
    trace, used = traced(trace_or_text, tokens, model, "show")
    heads = heads_of(trace, parameters=None if used is None else used.parameters)
    shown = heads if pieces else by_word(heads)
    queries, keys = (
        None if word is None else shown.queries.rows_of(places_in(trace, used, word, "show", name))
        for name, word in (("query", query), ("key", key))
    )
    chosen, links = selection.choose_head(
        shown,
        layer,
        head,
        queries=queries,
        keys=keys,
        call="show",
        removing=partial(removal_of, used, trace),
    )
    one_link = queries is not None and keys is not None
    return ShowView(
        trace,
        findings.movement(trace, shown.queries.spans),
        heads,
        head=chosen,
        shown=shown,
        elsewhere=selection.other_heads(
            shown, links, chosen, 8 if one_link else 5, repeat=one_link
        ),
        one_link=one_link,
        theme=theme,
        stretch=stretch,
    )
