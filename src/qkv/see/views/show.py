"""What a sentence's attention looks like: `show`, `compare` and `walk`, each as a view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from qkv.arrays import Array
from qkv.layers import Block, MultiHeadAttention
from qkv.see.analysis import findings, selection
from qkv.see.analysis.by_word import by_word
from qkv.see.analysis.findings import Link, Movement
from qkv.see.analysis.heads import Heads, heads_of
from qkv.see.analysis.inputs import model_of, places_in, places_of, texts_of, traced
from qkv.see.analysis.selection import Head
from qkv.see.analysis.words import quoted
from qkv.see.draw import svg
from qkv.see.draw.colours import scale_end
from qkv.see.draw.lines import (
    bar_lines,
    head_lines,
    heading,
    link_lines,
    movement_lines,
    note_lines,
    row,
    side_by_side,
    title,
)
from qkv.see.draw.terminal import Screen, bar, grid, numbers, prose, strongest_block
from qkv.see.page.payload import check_theme, payload_of, start_at, text_payload
from qkv.see.page.walk import walk_payload
from qkv.see.steps.walk import Step, Walk, walk_head, walk_layer
from qkv.see.views.one_head import link_in_words, show_payload, show_picture
from qkv.see.views.runs import RunsView, compare_runs
from qkv.see.views.view import View
from qkv.trace import Seq2SeqTrace, Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from qkv.models import Model


@dataclass(frozen=True, eq=False, repr=False)
class ShowView(View):
    """One head of one text: its weights, its links, and how far each word moved.

    Attributes:
        trace: of the text.
        head: the head that is shown.
        links: its largest weights between two different content words.
        elsewhere: the link of each other head, those first that stand out most.
        movement: how far each word moved, where its vectors were traced.
        heads: all heads of the tokens.
        shown: all heads of the words; those of the tokens where pieces are shown as they are.
        one_link: whether the heads were ranked by one link that was asked for.
        theme: "auto", "light" or "dark".
        stretch: whether scales end at the largest weight, and not at 1.
    """

    trace: Trace
    head: Head
    links: list[Link]
    elsewhere: list[Link]
    movement: Movement | None
    heads: Heads
    shown: Heads
    one_link: bool = False
    theme: str = "auto"
    stretch: bool = False

    @property
    def top(self) -> float:
        """Where the scale of weights ends."""
        return scale_end([self.shown.known(self.head.layer, self.head.head)], self.stretch)

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

    @property
    def sentence(self) -> str:
        """What is most striking about this head, in words."""
        return link_in_words(self.shown, self.head)

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
            "layer": self.head.layer,
            "head": self.head.head,
            "chosen": self.head.reason,
            "sentence": self.sentence,
            "weights": self.weights if self.heads.weights else None,
            "links": [link_to_dict(self.shown, link) for link in self.links],
            "other_heads": [link_to_dict(self.shown, link) for link in self.elsewhere],
            "movement": None
            if moved is None
            else [
                {"token": token, "cosine": c, "static_length": a, "contextual_length": b}
                for token, c, a, b in zip(
                    self.shown.tokens,
                    moved.cosine,
                    moved.static_length,
                    moved.contextual_length,
                    strict=True,
                )
            ],
        }

    def figure(self) -> Figure:
        """The weights as a grid, and the words before and after as arrows in one plane."""
        from qkv.see.draw.figure import show_figure

        return show_figure(self)

    def _texts(self) -> list[tuple[list[str], list[bool], str]]:
        return [(self.trace.tokens, self.trace.special, "")]

    def _payload(self) -> dict[str, Any]:
        return show_payload(
            [self.heads],
            self.shown,
            self.head,
            self.trace.model,
            self.theme,
            stretch=self.stretch,
            merge=self.shown.spans is not None,
        )

    def _picture(self) -> str:
        return show_picture(self.shown, self.head, self.notes, self.top)

    def _lines(self, screen: Screen) -> Iterator[Text]:
        from rich.text import Text

        yield heading(screen, self.trace)
        yield from note_lines(screen, self.notes)
        yield Text()
        yield from prose(screen, self.sentence, "bold")
        yield from prose(screen, f"This head is shown because {self.head.reason}.", "dim")
        yield Text()
        yield from head_lines(screen, self.shown, self.head, self.top)
        if self.heads.weights and self.links:
            yield Text()
            yield title("Lines of this head", "the largest weights between content words")
            yield from bar_lines(screen, self.shown, self.links[:6])
        if self.elsewhere:
            yield Text()
            if self.one_link:
                yield title("Other heads with this link", "where it stands out most first")
            else:
                yield title("Other heads worth a look", "the link of each that stands out")
            yield from link_lines(screen, self.shown, self.elsewhere, usual=self.one_link)
        if self.movement is not None:
            yield Text()
            yield from movement_lines(screen, self.shown, self.movement)


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two texts: where the word stands, and what it looks at.

    Attributes:
        trace: of the text.
        positions: of the word's tokens, the first time it occurs.
        occurrences: how often it occurs.
        weights: what it looks at in the head that is shown, `(T,)`, the mean over its tokens.
        strongest: what it looks at most, each in the head where it does so most.
        heads: all heads of the tokens.
        shown: all heads of the words; those of the tokens where pieces are shown as they are.
    """

    trace: Trace
    positions: list[int]
    occurrences: int
    weights: Array
    strongest: list[Link]
    heads: Heads
    shown: Heads

    @property
    def rows(self) -> list[int]:
        """Where the word stands among what is shown."""
        return self.shown.rows_of(self.positions)

    def looks_at(self, head: Head) -> Array:
        """What the word looks at, of what is shown."""
        return findings.attended(self.shown, head.layer, head.head, self.rows)

    def most(self, head: Head) -> tuple[str, float]:
        """The content word that it looks at most, or, where there is none, the token."""
        weights = self.looks_at(head)
        keys = self.shown.content_keys(self.rows[0]) or range(len(weights))
        best = max(keys, key=lambda key: weights[key])
        return self.shown.key_names[best], float(weights[best])


@dataclass(frozen=True, eq=False, repr=False)
class CompareView(View):
    """A word that two texts share: how alike it is in both, layer by layer, and what it looks at.

    Attributes:
        word: the word.
        similarity: the cosine at the embeddings and after each layer, `(num_layers + 1,)`; empty
            where no vectors were traced.
        head: the head that is shown.
        sides: the two texts.
        why: why it is this word, in words.
        theme: "auto", "light" or "dark".
        stretch: whether scales end at the largest weight, and not at 1.
    """

    word: str
    similarity: Array
    head: Head
    sides: tuple[Side, Side]
    why: str = "it was asked for"
    theme: str = "auto"
    stretch: bool = False

    @property
    def top(self) -> float:
        """Where the scale of weights ends."""
        layer, head = self.head.layer, self.head.head
        return scale_end((side.shown.known(layer, head) for side in self.sides), self.stretch)

    @property
    def sentence(self) -> str:
        """What the word looks at in both texts, and its similarity at both ends, in words."""
        (first, in_a), (second, in_b) = (side.most(self.head) for side in self.sides)
        looks = (
            f"{self.word} looks at {first} in A ({in_a:.2f}) and at {second} in B ({in_b:.2f}): "
            f"layer {self.head.layer}, head {self.head.head}."
        )
        if not len(self.similarity):
            return looks
        return (
            f"{looks} Its cosine between A and B: {self.similarity[0]:.3f} at the embeddings, "
            f"{self.similarity[-1]:.3f} after the last layer."
        )

    def _numbers(self) -> dict[str, Any]:
        """The numbers of the view."""
        return {
            "model": self.sides[0].trace.model,
            "word": self.word,
            "word_chosen": self.why,
            "sentence": self.sentence,
            "similarity": self.similarity,
            "layer": self.head.layer,
            "head": self.head.head,
            "chosen": self.head.reason,
            "texts": [
                {
                    "tokens": side.trace.tokens,
                    "positions": side.positions,
                    "occurrences": side.occurrences,
                    "weights": side.weights,
                    "strongest": [link_to_dict(side.shown, link) for link in side.strongest],
                }
                for side in self.sides
            ],
        }

    def figure(self) -> Figure:
        """Both grids on one scale, the words before and after in one plane, similarity by layer."""
        from qkv.see.draw.figure import compare_figure

        return compare_figure(self)

    def _texts(self) -> list[tuple[list[str], list[bool], str]]:
        traces = [side.trace for side in self.sides]
        return [(a.tokens, a.special, name) for a, name in zip(traces, "AB", strict=True)]

    def _payload(self) -> dict[str, Any]:
        layer, head = self.head.layer, self.head.head
        return payload_of(
            "compare",
            f"{self.word} in two texts",
            [text_payload(side.heads, layer) for side in self.sides],
            model=self.sides[0].trace.model,
            theme=self.theme,
            start=start_at(
                layer,
                head,
                None,
                chosen=self.head.reason,
                sentence=self.sentence,
                merge=any(side.shown.spans for side in self.sides),
            ),
            stretch=self.stretch,
            compare={
                "what": "word",
                "word": self.word,
                "why": self._reasons[0],
                "sentence": self.sentence,
                "places": [side.positions for side in self.sides],
                "similarity": self.similarity,
                "strongest": [
                    [
                        {
                            "key": side.shown.place(link.key),
                            "name": side.shown.tokens[link.key],
                            "layer": link.layer,
                            "head": link.head,
                            "weight": link.weight,
                        }
                        for link in side.strongest
                    ]
                    for side in self.sides
                ],
            },
        )

    def _picture(self) -> str:
        layer, head = self.head.layer, self.head.head
        blocks = [side.shown.block(layer, head, svg.MOST_ROWS) for side in self.sides]
        maps = [
            svg.heat_map(
                block.values,
                block.rows,
                block.columns,
                top=self.top,
                hidden=block.hidden,
                caption=f"{name}: layer {layer}, head {head}",
                outlined=[i for i, place in enumerate(block.places) if place in side.rows],
                missing=block.missing,
            )
            for name, side, block in zip("AB", self.sides, blocks, strict=True)
        ]
        names = ["embeddings", *(f"layer {k}" for k in range(len(self.similarity) - 1))]
        caption = f"How alike {self.word} is in A and in B (cosine)"
        rows = [maps]
        if len(self.similarity):
            rows.append([svg.curve(self.similarity.tolist(), names, caption)])
        return svg.picture(self.sentence, [*self._reasons, *self.notes], rows)

    @property
    def _reasons(self) -> list[str]:
        """Why it is this word and this head."""
        return [
            f"The word is {self.word} because {self.why}.",
            f"This head is shown because {self.head.reason}.",
        ]

    def _lines(self, screen: Screen) -> Iterator[Text]:
        from rich.text import Text

        for name, side in zip("AB", self.sides, strict=True):
            yield Text(f"{name}  ", style="bold").append_text(heading(screen, side.trace))
            if side.occurrences > 1:
                yield Text(
                    screen.plain(
                        f"   {self.word} occurs {side.occurrences} times: the first is taken"
                    ),
                    style="dim",
                )
        yield from note_lines(screen, self.notes)
        yield Text()
        yield from prose(screen, self.sentence, "bold")
        for reason in self._reasons:
            yield from prose(screen, reason, "dim")
        yield Text()
        if len(self.similarity):
            yield title(screen.plain(f"How alike {self.word} is in A and in B"), "cosine")
            for layer, value in enumerate(self.similarity.tolist()):
                where = f"after layer {layer - 1}" if layer else "embeddings"
                line = Text(f"{where:15} {value:6.3f}  ")
                yield line.append(bar(screen, value, screen.room(30, beside=25)))
            yield Text()
        where = f"layer {self.head.layer}, head {self.head.head}"
        yield title(screen.plain(f"What {self.word} looks at in {where}"))
        yield from side_by_side(screen, [_looks_at(screen, side, self.head) for side in self.sides])
        yield Text()
        yield title(
            screen.plain(f"The words {self.word} looks at most"), "in whichever head that is"
        )
        yield from side_by_side(screen, [_looks_most(screen, side) for side in self.sides])


@dataclass(frozen=True, eq=False, repr=False)
class WalkView(View):
    """One head step by step, and the recomputed output beside the model's own."""

    walk: Walk
    theme: str = "auto"
    stretch: bool = False

    @property
    def top(self) -> float:
        """Where the scale of weights ends."""
        return scale_end([step.values for step in self.walk.steps if step.weights], self.stretch)

    @property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        return self.walk.steps

    @property
    def difference(self) -> float:
        """The largest difference between the recomputed output and the model's own."""
        return self.walk.difference

    @property
    def sentence(self) -> str:
        """How the recomputed output compares with the model's own, in words."""
        return (
            f"Recomputed by these lines against the model's own {self.walk.own_name}: "
            f"the largest difference is {self.difference:.1e}."
        )

    def _numbers(self) -> dict[str, Any]:
        """The numbers of the view."""
        walk = self.walk
        return {
            "model": walk.trace.model,
            "tokens": walk.tokens,
            "keys": None if walk.keys is walk.tokens else walk.keys,
            "layer": walk.layer,
            "head": walk.head,
            "steps": [
                {
                    "title": step.title,
                    "formula": step.formula,
                    "shape": step.shape,
                    "code": step.code,
                    "name": step.name,
                    "values": step.values,
                    "sum": step.sum,
                    "note": step.note,
                }
                for step in walk.steps
            ],
            "own_name": walk.own_name,
            "own": walk.own,
            "recomputed": walk.recomputed,
            "largest_difference": self.difference,
        }

    def figure(self) -> Figure:
        """Scaled scores, weights, and the words before and after."""
        from qkv.see.draw.figure import walk_figure

        return walk_figure(self)

    def _texts(self) -> list[tuple[list[str], list[bool], str]]:
        return [(self.walk.trace.tokens, self.walk.trace.special, "")]

    def _payload(self) -> dict[str, Any]:
        walk = self.walk
        return payload_of(
            "walk",
            quoted(walk.trace.text, walk.tokens, walk.trace.special),
            [],
            model=walk.trace.model,
            theme=self.theme,
            stretch=self.stretch,
            walk=walk_payload(walk) | {"sentence": self.sentence},
        )

    def _picture(self) -> str:
        walk, where = self.walk, f"layer {self.walk.layer}, head {self.walk.head}"
        by_name = {step.name: step for step in walk.steps}
        scores, weights = by_name.get("masked", by_name["scaled"]), by_name["weights"]
        rows, columns = strongest_block(weights.values, svg.MOST_ROWS, svg.MOST_ROWS)
        cells = np.ix_(rows, columns)
        names = [walk.tokens[i] for i in rows], [walk.keys[j] for j in columns]
        hidden = None if scores.hidden is None else scores.hidden[cells]
        maps = [
            svg.heat_map(
                scores.values[cells],
                *names,
                top=None,
                hidden=hidden,
                caption=f"Scaled scores of {where}",
                of="score",
            ),
            svg.heat_map(
                weights.values[cells],
                *names,
                top=self.top,
                hidden=hidden,
                caption=f"Softmax of each row: the weights of {where}",
            ),
        ]
        lines = [
            f"{number}. {step.title}: {step.formula} {step.shape}"
            for number, step in enumerate(walk.steps, 1)
        ]
        title = f"{where.capitalize()} step by step"
        return svg.picture(title, [*self.notes, *lines, self.sentence], [maps])

    def _lines(self, screen: Screen) -> Iterator[Text]:
        from rich.text import Text

        walk = self.walk
        yield heading(screen, walk.trace)
        yield from note_lines(screen, self.notes)
        yield Text(f"Layer {walk.layer}, head {walk.head}, step by step.", style="bold")
        for number, step in enumerate(walk.steps, 1):
            yield Text()
            line = Text(f"{number}. {screen.plain(step.title)}", style="bold")
            yield line.append(f"  {screen.plain(step.shape)}", style="not bold cyan")
            if step.formula != step.code:
                yield Text("   " + screen.plain(step.formula), style="italic")
            for code in step.code.split("\n"):
                yield Text("   " + screen.safe(code), style="green")
            if step.weights:
                yield from grid(
                    screen,
                    step.values,
                    step.rows,
                    walk.keys,
                    hidden=step.hidden,
                    top=self.top,
                    max_rows=12,
                )
            else:
                yield from numbers(
                    screen,
                    step.values,
                    step.rows,
                    step.columns,
                    cell=step.cell,
                    hidden=step.hidden,
                )
            yield from prose(screen, step.sum, indent=3)
            yield from prose(screen, step.note, "dim", indent=3)
        yield Text()
        yield from prose(screen, self.sentence, "bold")
        for name, values in (("recomputed", walk.recomputed), ("own", walk.own)):
            first = numbers(screen, values[:1], [f"{name:10}"])
            yield first[1]


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

    Unless `layer` and `head` say otherwise, the head is the one whose link stands out most. A link
    is a head's largest weight between two different content words; it stands out by what it is more
    than the head gives anyway: twice the mean weight of all pairs of words at that distance, or, if
    it is larger, the mean weight of the other words on that one. So a head that always looks at the
    previous word does not win, nor does a word that all look at. Ties go to the lowest layer, then
    head.

    Content words are all but special tokens, punctuation, what the model has no word for, and the
    function words of English (the, of, she, is). Other languages have no such list here: there,
    and where fewer than two are left, each word counts.

    Args:
        trace_or_text: a model's trace of one text, or the text; or weights, as one array
            `(layers, heads, L, L)` or as `transformers` returns them, with `tokens`.
        tokens: the L tokens, where weights are given.
        model: the model for a text, or its name; the default model if left out. With a trace it
            adds the length of what each token hands over.
        layer: the layer to show, from 0.
        head: the head to show, from 0.
        query: the word to look from, or the place of a token: the heads are ranked by its links.
        key: the word to look at, or the place of a token; with `query` the heads are ranked by this
            one link.
        pieces: whether the pieces of a word are shown as they are, not merged into it: what they
            receive summed, what they look at averaged.
        theme: of the page: "light", "dark", or "auto" for what the reader's system prefers.
        stretch: whether scales end at the largest weight that is shown, and not at 1.

    Raises:
        ValueError: the text is empty, the trace holds several texts or no weights, arrays and
            tokens do not fit each other, or a word is not in the text.
        IndexError: there is no such layer, head or place; the message names the range.

    >>> view = show("The cat sat on the mat", model="random", layer=0, head=1)
    >>> view.tokens, view.weights.shape
    (['the', 'cat', 'sat', 'on', 'the', 'mat'], (6, 6))
    >>> show(np.full((1, 1, 2, 2), 0.5), tokens=["hello", "world"]).sentence
    'hello looks at world: 0.50 (layer 0, head 0).'
    """
    check_theme(theme, "show")
    trace, used = traced(trace_or_text, tokens, model, "show")
    heads = heads_of(trace, parameters=None if used is None else used.parameters)
    shown = heads if pieces else by_word(heads)
    queries, keys = (
        None if word is None else shown.rows_of(places_in(trace, used, word, "show", name))
        for name, word in (("query", query), ("key", key))
    )
    chosen, links = selection.choose_head(
        shown, layer, head, queries=queries, keys=keys, call="show"
    )
    one_link = queries is not None and keys is not None
    return ShowView(
        trace,
        chosen,
        findings.strongest_links(shown, chosen.layer, chosen.head, 10),
        selection.other_heads(links, chosen, 8 if one_link else 5, repeat=one_link),
        findings.movement(trace, shown.spans),
        heads,
        shown,
        one_link,
        theme,
        stretch,
    )


@overload
def compare(
    text_a: str,
    text_b: str,
    *,
    word: str | None = None,
    tokens: Sequence[Iterable[str]] | None = None,
    model: Model | str | None = None,
    layer: int | None = None,
    head: int | None = None,
    pieces: bool = False,
    theme: str = "auto",
    stretch: bool = False,
) -> CompareView: ...


@overload
def compare(
    text_a: Any,
    text_b: Any,
    *,
    word: str,
    tokens: Sequence[Iterable[str]] | None = None,
    model: Model | str | None = None,
    layer: int | None = None,
    head: int | None = None,
    pieces: bool = False,
    theme: str = "auto",
    stretch: bool = False,
) -> CompareView: ...


@overload
def compare(
    text_a: Any,
    text_b: Any,
    *,
    word: None = None,
    tokens: Sequence[Iterable[str]] | None = None,
    model: Model | str | None = None,
    layer: int | None = None,
    head: int | None = None,
    pieces: bool = False,
    theme: str = "auto",
    stretch: bool = False,
) -> CompareView | RunsView: ...


def compare(
    text_a: Any,
    text_b: Any,
    *,
    word: str | None = None,
    tokens: Sequence[Iterable[str]] | None = None,
    model: Model | str | None = None,
    layer: int | None = None,
    head: int | None = None,
    pieces: bool = False,
    theme: str = "auto",
    stretch: bool = False,
) -> CompareView | RunsView:
    """One word in two texts, or two runs of one text.

    Of a word: how alike its vectors are, layer by layer, and what it looks at. A word that the
    model cuts into pieces is the mean of their vectors and weights; of a word that occurs several
    times the first is taken. Unless it is named, it is the content word that both share; of several
    the one whose vectors after the last layer are least alike. Unless `layer` and `head` say
    otherwise, the head shown is the one in which the links of the word that stand out, as `show`
    has it, differ most between the two texts.

    Two traces of the same tokens without a word, say `model.trace(text)` and
    `model.trace(text, ablate=[(0, 4)])`, are two runs: what changed in each token's output, largest
    first.

    Args:
        text_a: a text, a trace of one, or weights as `show` takes them.
        text_b: another one.
        word: a word that both have; the one that they share if left out.
        tokens: the tokens of both, where weights are given.
        model: the model, or its name; the default model if left out.
        layer: the layer to show, from 0.
        head: the head to show, from 0.
        pieces: whether the pieces of a word are shown as they are, not merged into it.
        theme: of the page: "light", "dark", or "auto" for what the reader's system prefers.
        stretch: whether scales end at the largest weight that is shown, and not at 1.

    Raises:
        ValueError: a text is empty, or the word is not in both; the message names the words.
        IndexError: there is no such layer or head; the message names the range.

    >>> view = compare("I love you", "You love me", word="love", model="random")
    >>> view.similarity.shape, [side.positions for side in view.sides]
    ((2,), [[1], [1]])
    """
    check_theme(theme, "compare")
    both = isinstance(text_a, str) and isinstance(text_b, str)
    shared = model_of(model, texts_of([text_a, text_b], "compare")) if both else model
    listed = (None, None) if tokens is None else tuple(tokens)
    if len(listed) != 2:
        raise ValueError(
            f"compare: there are tokens of {len(listed)} texts: give (tokens_a, tokens_b)"
        )
    (a, used), (b, other) = (
        traced(text, names, shared, "compare")
        for text, names in zip((text_a, text_b), listed, strict=True)
    )
    used = used or other
    if word is None and a.tokens == b.tokens and not isinstance(text_a, str):
        return compare_runs(a, b, layer, head, theme, stretch)
    word, why, places = places_of(used, word, a, b)
    parameters = None if used is None else used.parameters
    heads = [
        heads_of(trace, parameters=parameters, name=name)
        for name, trace in zip("AB", (a, b), strict=True)
    ]
    shown = heads if pieces else [by_word(part) for part in heads]
    rows = [part.rows_of(found[0]) for part, found in zip(shown, places, strict=True)]
    chosen = selection.contrasting_head(shown[0], rows[0], shown[1], rows[1], layer, head)
    first, second = (
        Side(
            trace,
            found[0],
            len(found),
            findings.attended(own, chosen.layer, chosen.head, found[0]),
            findings.strongest_by_token(words, words.rows_of(found[0]), 5),
            own,
            words,
        )
        for trace, found, own, words in zip((a, b), places, heads, shown, strict=True)
    )
    similarity = findings.similarity_by_layer(a, places[0][0], b, places[1][0])
    return CompareView(word, similarity, chosen, (first, second), why, theme, stretch)


def walk(
    text_or_trace: str | Trace | MultiHeadAttention | Block,
    layer: int = 0,
    head: int = 0,
    *,
    model: Model | str | None = None,
    theme: str = "auto",
    stretch: bool = False,
    x: Any = None,
    context: Any = None,
    tokens: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    **options: Any,
) -> WalkView:
    """Each step of one head with its formula, its NumPy line and its real numbers.

    Computed anew, in plain NumPy, from the words to the layer's output, which is then compared with
    the model's own.

    Args:
        text_or_trace: a text, or a model's trace of one text. Without `model` the walk over a trace
            starts from its Q, K and V and ends before the output projection. Or a layer: a
            `MultiHeadAttention`, `SelfAttention` or `Block`, with `x`.
        layer: the layer, from 0.
        head: the head, from 0.
        model: the model, or its name; for a text the default model if left out.
        theme: of the page: "light", "dark", or "auto" for what the reader's system prefers.
        stretch: whether scales end at the largest weight that is shown, and not at 1.
        x: `(L, D)`, the word vectors that a layer is given.
        context: `(S, D)`, what a layer looks at where that is not `x`.
        tokens: L names for the rows of `x`.
        keys: S names for the rows of `context`.
        **options: what a layer runs with: `is_causal`, `window`, `attn_mask` and so on.

    Raises:
        ValueError: the text is empty, or the trace lacks what is needed.
        IndexError: there is no such layer or head; the message names the range.

    >>> view = walk("The cat sat on the mat", model="random")
    >>> [step.name for step in view.steps]
    ['E', 'P', 'X', 'Q', 'K', 'V', 'scores', 'scaled', 'weights', 'context', 'joined', 'out']
    >>> view.difference < 1e-6
    True
    """
    check_theme(theme, "walk")
    if isinstance(text_or_trace, MultiHeadAttention | Block):
        if x is None:
            raise TypeError("walk: a layer needs word vectors: walk(layer, x=...)")
        found = walk_layer(
            text_or_trace, x, context, head=head, tokens=tokens, keys=keys, **options
        )
        return WalkView(found, theme, stretch)
    if hasattr(text_or_trace, "__array__") or isinstance(text_or_trace, list | tuple):
        raise TypeError(
            "walk: weights alone cannot be walked through, without queries, keys and values: give "
            "a text, a trace or a layer; qkv.show(weights, tokens=...) shows weights"
        )
    given = {"x": x, "context": context, "tokens": tokens, "keys": keys, **options}
    needless = [name for name, value in given.items() if value is not None]
    if needless:
        raise TypeError(f"walk: {needless[0]} is for a walk through a layer: leave it out")
    if isinstance(text_or_trace, Trace | Seq2SeqTrace):
        trace = findings.one_text(text_or_trace, "walk")
        if model is None:
            return WalkView(walk_head(trace, layer, head), theme, stretch)
        used = model_of(model, [" ".join(trace.tokens)])
    else:
        (text,) = texts_of([text_or_trace], "walk")
        used = model_of(model, [text])
        trace = findings.readable(used.trace(text))
    return WalkView(walk_head(trace, layer, head, used), theme, stretch)


def link_to_dict(heads: Heads, link: Link) -> dict[str, Any]:
    """A link, ready for JSON."""
    return {
        "layer": link.layer,
        "head": link.head,
        "from": heads.place(link.query),
        "from_token": heads.tokens[link.query],
        "to": heads.place(link.key),
        "to_token": heads.tokens[link.key],
        "weight": link.weight,
    }


def _looks_at(screen: Screen, side: Side, head: Head, most: int = 6) -> list[Text]:
    """The words that the word looks at most in the head that is shown."""
    weights, names = side.looks_at(head), side.shown.key_names
    order = np.argsort(-weights, kind="stable")[:most].tolist()
    width = screen.fit([*(names[i] for i in order), "others"], 5, 14)
    lines = [
        row(screen, names[i], width, float(weights[i])).append(bar(screen, float(weights[i]), 12))
        for i in order
    ]
    rest = float(weights.sum() - weights[order].sum())
    if len(order) < len(weights):
        lines.append(row(screen, "others", width, max(0.0, rest)))
    return lines


def _looks_most(screen: Screen, side: Side) -> list[Text]:
    names = side.shown.key_names
    width = screen.fit([names[link.key] for link in side.strongest], 5, 14)
    return [
        row(screen, names[link.key], width, link.weight).append(
            f"--layer {link.layer} --head {link.head}", style="dim"
        )
        for link in side.strongest
    ]
