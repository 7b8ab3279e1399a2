"""The view `compare`, for a word in two texts or for two runs of one text."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from qkv._argument_errors import public_call, value_error
from qkv.arrays import Array
from qkv.models import Model
from qkv.see.analysis import (
    labels_of,
    name_of,
    positions_of,
    quote_words,
    reader_of,
    run_name,
    selection,
    texts_of,
    trace_of,
    word_vectors,
)
from qkv.see.analysis.head_weights import Heads, by_word, heads_of
from qkv.see.analysis.measures import Link, strongest, strongest_by_token, weights_from
from qkv.see.analysis.selection import ChosenHead
from qkv.see.draw.panels import (
    PICTURE,
    TERMINAL,
    Bars,
    ChartLine,
    Column,
    Later,
    Lines,
    Panel,
    Prose,
    Table,
)
from qkv.see.page.payload import check_theme, text_payload
from qkv.see.views.view import Heading, HeadShown, arrows, link_to_dict, models_of, names_of_layers
from qkv.trace import Trace

_MOST_ROWS = 20


@dataclass(frozen=True, eq=False)
class Side:
    """The word in one of the two texts: its positions and its attention.

    Attributes:
        trace: the trace of the text.
        positions: the positions of the tokens of the word's first occurrence.
        occurrences: the number of the word's occurrences in the text.
        weights: `(T,)`, the word's weights in the shown head, averaged over the word's tokens.
        strongest: the word's largest links, each from the head where its weight is largest.
        heads: all heads, with weights between tokens.
        shown: all heads, with weights between words if subwords are merged, otherwise between
            tokens.
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
        """Return the word's rows in the weights of `shown`; a split word has several rows."""
        return self.shown.queries.rows_of(self.positions)

    def looks_at(self, head: ChosenHead) -> Array:
        """Return this head's weights in `shown`, averaged over the word's rows."""
        return weights_from(self.shown, head.layer, head.head, self.rows)

    @property
    def strongest_links(self) -> list[dict[str, Any]]:
        """Return the word's largest links as data for JSON."""
        return [link_to_dict(self.shown, link) for link in self.strongest]

    def most(self, head: ChosenHead) -> tuple[str, float]:
        """Return `(name, weight)` of the key with the largest weight, including special tokens."""
        weights = self.looks_at(head)
        best = int(np.argmax(weights))
        name = "itself" if self.rows == [best] else self.shown.keys.name_of(best)
        return name, float(weights[best])

    @property
    def text(self) -> str:
        """Return the original text; if it is unknown, return the joined tokens."""
        return quote_words(self.trace.text, self.trace.tokens, self.trace.special)


@dataclass(frozen=True, eq=False, repr=False)
class CompareView(HeadShown):
    """A word that two texts share: the similarity of its vectors at each layer, and its attention.

    Attributes:
        word: the word.
        similarity: the cosine at the embeddings and after each layer, `(num_layers + 1,)`; empty if
            no vectors were traced.
        sides: the two texts.
        why: the reason for the choice of the word, as a clause that follows "because".
    """

    word: str
    similarity: Array
    sides: tuple[Side, Side]
    why: str = "it was requested"

    @property
    def sentence(self) -> str:
        """Describe the word's attention in both texts, and its first and last `similarity`."""
        most = zip("AB", (side.most(self.head) for side in self.sides), strict=True)
        at = [
            f"to {name} in {text} ({weight:.2f})" if weight else f"to nothing in {text}"
            for text, (name, weight) in most
        ]
        looks = f"{self.word} attends {' and '.join(at)}: {self.where}."
        if self.head.stands_out is False:
            untrained = any(side.heads.untrained for side in self.sides)
            why = ", because the model is untrained" if untrained else ""
            looks = (
                f"No head stands out for {self.word}{why}. Where its attention differs most, "
                f"{looks}"
            )
        if not len(self.similarity):
            return looks
        return (
            f"{looks} Cosine of its two vectors: {self.similarity[0]:.3f} at the embeddings, "
            f"{self.similarity[-1]:.3f} after the last layer."
        )

    @property
    def reasons(self) -> list[str]:
        """Explain why this word, this occurrence in each text, and this head were chosen."""
        taken = [
            f"In {name}, {self.word} occurs {side.occurrences} times: the first occurrence is used."
            for name, side in zip("AB", self.sides, strict=True)
            if side.occurrences > 1
        ]
        return [f"The word is {self.word} because {self.why}.", *super().reasons, *taken]

    def panels(self) -> list[list[Panel]]:
        """Show both texts, the chosen head in each, the word's similarities, and its attention."""
        named = list(zip("AB", self.sides, strict=True))
        looks: list[Panel] = [
            Table(
                name=name,
                title=f"What {self.word} attends to in {self.where}",
                **_looks_at(side, self.head),
            )
            for name, side in named
        ]
        most: list[Panel] = [
            Table(
                name=name,
                title=f"The content words that {self.word} attends to most",
                explained="each in its strongest head",
                names=[side.shown.keys.names[link.key] for link in side.strongest],
                columns=[
                    Column("", [f"{link.weight:.2f}" for link in side.strongest]),
                    Column(
                        "",
                        [f"--layer {link.layer} --head {link.head}" for link in side.strongest],
                        style="dim",
                        left=True,
                    ),
                ],
            )
            for name, side in named
        ]
        vectors: list[Panel] = [] if not len(self.similarity) else [self._alike(), *self._arrows()]
        maps = self._maps("AB", *(side.rows for side in self.sides))
        texts: list[list[Panel]] = [[Prose(text=f"{name}: {side.text}")] for name, side in named]
        return [*texts, maps, vectors, looks, most]

    def _alike(self) -> Lines:
        """Show the cosine of the word's two vectors, at the embeddings and after each layer."""
        values = self.similarity.tolist()
        least = float(np.nan_to_num(self.similarity).min())
        return Lines(
            title=f"How similar {self.word} is in A and in B",
            explained="cosine",
            lines=[ChartLine(list(enumerate(values)))],
            names=names_of_layers(len(values) - 1),
            ends=(min(0.0, least), 1.0),
            numbered=True,
        )

    def _arrows(self) -> list[Panel]:
        """Show all words of both texts in one plane, if the traces have their vectors."""
        words = (word_vectors.words_before_and_after(side.trace, side.shown) for side in self.sides)
        parts = [part for part in words if part is not None]
        if len(parts) < len(self.sides):
            return []
        before, after = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
        names = [
            f"{token} ({name})" if token == self.word else token
            for name, part in zip("AB", parts, strict=True)
            for token in part[2]
        ]
        alone = [token for part in parts for token in part[2]]
        return [Later(make=lambda: arrows(before, after, names, alone=alone))]

    def _all_heads(self) -> Sequence[Heads]:
        return [side.shown for side in self.sides]

    def _headings(self) -> list[Heading]:
        return [Heading.of(side.trace, name) for name, side in zip("AB", self.sides, strict=True)]

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers of the view."""
        return {
            **models_of([side.trace for side in self.sides]),
            "word": self.word,
            "word_chosen": self.why,
            "similarity": self.similarity,
            **self._head_numbers(),
            "texts": [
                {
                    "text": side.text,
                    "tokens": side.trace.tokens,
                    "positions": side.positions,
                    "occurrences": side.occurrences,
                    "weights": side.weights,
                    "strongest": side.strongest_links,
                }
                for side in self.sides
            ],
        }

    def _payload(self) -> dict[str, Any]:
        return self._page(
            "compare",
            f"{self.word} in two texts",
            [text_payload(side.heads, self.head.layer) for side in self.sides],
            start=self._start(merge=any(side.shown.queries.spans for side in self.sides)),
            compare={
                "what": "word",
                "word": self.word,
                "why": self.reasons[0],
                "sentence": self.sentence,
                "texts": [side.text for side in self.sides],
                "positions": [side.positions for side in self.sides],
                "similarity": self.similarity,
                "strongest": [side.strongest_links for side in self.sides],
            },
        )


@dataclass(frozen=True)
class Change:
    """The change of one token's vector after the last layer, from the first run to the second.

    Attributes:
        token: the position of the token.
        distance: the distance between the two vectors.
        cosine: the cosine between the two vectors.
        length: the length of the vector in the first run.
    """

    token: int
    distance: float
    cosine: float
    length: float


@dataclass(frozen=True, eq=False, repr=False)
class RunsView(HeadShown):
    """Two runs of one text, and how each token's vector after the last layer differs between them.

    Attributes:
        traces: the traces of both runs.
        names: the names of the runs.
        heads: all heads of both runs.
        changes: the change of each token, sorted by `distance`, largest first.
        by_layer: the mean distance at the embeddings and after each layer, `(num_layers + 1,)`.
    """

    traces: tuple[Trace, Trace]
    names: tuple[str, str]
    heads: list[Heads]
    changes: list[Change]
    by_layer: Array

    @property
    def tokens(self) -> list[str]:
        """Return the tokens of the text."""
        return list(self.traces[0].tokens)

    @property
    def sentence(self) -> str:
        """Describe the largest change."""
        first = self.changes[0]
        runs = f"From '{self.names[0]}' to '{self.names[1]}'"
        if not first.distance:
            return f"{runs} no token's output changes."
        return (
            f"{runs} the output of {name_of(self.tokens[first.token])} changes most: by "
            f"{first.distance:.2f} (length in the first run {first.length:.2f}, "
            f"cosine {first.cosine:.3f})."
        )

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers of the view."""
        return {
            **models_of(self.traces),
            "tokens": self.tokens,
            "runs": list(self.names),
            **self._head_numbers(),
            "by_layer": self.by_layer,
            "changes": [
                {**asdict(change), "token": self.tokens[change.token], "place": change.token}
                for change in self.changes
            ],
        }

    def panels(self) -> list[list[Panel]]:
        """Show the chosen head in both runs, the tokens' changes, and one token's attention."""
        parts = self.heads
        changes = self.changes[:_MOST_ROWS]
        changed = Bars(
            title="How far each token's output moved",
            explained="distance between the two vectors after the last layer",
            names=labels_of([self.tokens[change.token] for change in changes]),
            values=[change.distance for change in changes],
        )
        columns = [
            Column("distance", [f"{change.distance:.3f}" for change in changes]),
            Column("", bars=changed.shares),
            Column("cosine", [f"{change.cosine:.3f}" for change in changes], style="not bold dim"),
        ]
        note = f"Shown: the {len(changes)} of {len(self.changes)} tokens that changed most."
        table = Table(
            title="What changed in each token's output",
            explained="after the last layer, largest first",
            names=changed.names,
            columns=columns,
            note=note if len(changes) < len(self.changes) else "",
        )
        rows: list[list[Panel]] = [
            [*self._maps(self.names), replace(changed, shown_in=PICTURE)],
            [table],
        ]
        if len(self.by_layer):
            names = names_of_layers(len(self.by_layer) - 1)
            values = self.by_layer.tolist()
            mean = "The mean of these distances"
            rows.append([Bars(title=mean, names=names, values=values, shown_in=TERMINAL)])
        query = self.changes[0].token
        looks = [part.row(self.head.layer, self.head.head, query) for part in parts]
        keys = strongest(np.maximum(*looks), 8)
        table = Table(
            title=f"What {name_of(self.tokens[query])} attends to in {self.where}",
            names=labels_of([self.tokens[key] for key in keys]),
            columns=[
                Column(name, [f"{row[key]:.2f}" for key in keys])
                for name, row in zip(self.names, looks, strict=True)
            ],
        )
        return [*rows, [table]]

    def _all_heads(self) -> Sequence[Heads]:
        return self.heads

    def _headings(self) -> list[Heading]:
        model = models_of(self.traces)["model"]
        return [Heading.of(self.traces[0])._replace(model=model)]

    def _payload(self) -> dict[str, Any]:
        return self._page(
            "compare",
            quote_words(self.traces[0].text, self.tokens, self.traces[0].special),
            [text_payload(heads, self.head.layer) for heads in self.heads],
            start=self._start(self.changes[0].token),
            compare={
                "what": "runs",
                "sentence": self.sentence,
                "of": "the vectors after the last layer",
                "changes": [[c.token, c.distance, c.cosine, c.length] for c in self.changes],
                "by_layer": self.by_layer,
            },
        )


class _Options(TypedDict, total=False):
    """The options of `compare` for both kinds of comparison: of a word, and of two runs."""

    tokens: Sequence[Iterable[str]] | None
    model: Model | str | None
    layer: int | None
    head: int | None
    pieces: bool
    theme: str
    stretch: bool


@overload
def compare(
    text_a: str, text_b: str, *, word: str | None = None, **options: Unpack[_Options]
) -> CompareView: ...


@overload
def compare(text_a: Any, text_b: Any, *, word: str, **options: Unpack[_Options]) -> CompareView: ...


@overload
def compare(
    text_a: Any, text_b: Any, *, word: None = None, **options: Unpack[_Options]
) -> CompareView | RunsView: ...


@public_call("compare")
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
    """Compare one word in two texts, or two runs of one text.

    For a word, the view shows the similarity of its vectors at each layer, and its attention. If
    the model splits the word into subwords, the vectors and weights of the subwords are averaged.
    If a text contains the word several times, the first occurrence is used.

    If `word` is None, the view chooses a content word that both texts contain. Among several such
    words, it chooses the word whose two vectors after the last layer are least similar. If `layer`
    and `head` are None, the view chooses the head in which the word's links differ most between the
    texts. For each link, the usual weight is first subtracted from the weight (see `show`). The
    sentence of the view says that no head stands out if the links differ by less than 0.1, or if a
    model is untrained.

    Two traces of the same tokens, such as `model.trace(text)` and
    `model.trace(text, ablate=[(0, 4)])`, are compared as two runs unless `word` is given. The view
    of two runs shows the change of each token's output, largest change first.

    Args:
        text_a: a text, the token ids of a text, a trace, or weights as `show` accepts them. Ids
            give the same view as `model.trace(ids)`, whose words are the ids.
        text_b: another text, list of ids, trace or array of weights.
        word: a word in both texts; by default a word that the texts share.
        tokens: the tokens of both texts as `(tokens_a, tokens_b)`, if weights are given.
        model: a model or the name of a model; if omitted, the default model.
        layer: the layer to show, counted from 0; -1 is the last layer.
        head: the head to show, counted from 0.
        pieces: whether subwords are shown separately, instead of merged into words.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        stretch: whether scales end at the largest shown weight instead of 1.

    Raises:
        ValueError: a text is empty, or the word is not in both texts; the message lists the words.
        IndexError: `layer` or `head` is out of range; the message names the range.

    >>> view = compare("I love you", "You love me", word="love", model="random")
    >>> view.similarity.shape, [side.positions for side in view.sides]
    ((2,), [[1], [1]])
    """
    check_theme(theme)
    both = isinstance(text_a, str) and isinstance(text_b, str)
    texts = texts_of([text_a, text_b]) if both else []
    shared = reader_of(model, texts) if texts else model
    listed = (None, None) if tokens is None else tuple(tokens)
    if len(listed) != 2:
        raise value_error(f"`tokens` has {len(listed)} lists; pass two, (tokens_a, tokens_b)")
    (a, used), (b, other) = (
        trace_of(text, names, shared) for text, names in zip((text_a, text_b), listed, strict=True)
    )
    used = used or other
    if word is None and a.tokens == b.tokens and not isinstance(text_a, str):
        return _runs(a, b, layer, head, theme=theme, stretch=stretch)
    word, why, positions = positions_of(used, word, a, b)
    parameters = None if used is None else used.parameters
    heads = [
        heads_of(trace, parameters=parameters, name=name)
        for name, trace in zip("AB", (a, b), strict=True)
    ]
    similarity = word_vectors.similarity_by_layer(a, positions[0][0], b, positions[1][0])
    word_vectors.need_alike("heads in a layer", a, heads[0].count, b, heads[1].count)
    parts = heads if pieces else [by_word(part) for part in heads]
    rows = [part.queries.rows_of(copies[0]) for part, copies in zip(parts, positions, strict=True)]
    chosen = selection.contrasting_head((parts[0], rows[0]), (parts[1], rows[1]), layer, head)
    first, second = (
        Side(
            trace,
            copies[0],
            len(copies),
            weights_from(all_heads, chosen.layer, chosen.head, copies[0]),
            strongest_by_token(words, words.queries.rows_of(copies[0]), 5),
            all_heads,
            words,
        )
        for trace, copies, all_heads, words in zip((a, b), positions, heads, parts, strict=True)
    )
    return CompareView(
        word, similarity, (first, second), why, head=chosen, theme=theme, stretch=stretch
    )


def _looks_at(side: Side, head: ChosenHead, most: int = 6) -> dict[str, Any]:
    """Show the largest weights from the word in the shown head, each with a bar."""
    weights, names = side.looks_at(head), side.shown.keys.names
    order = np.argsort(-weights, kind="stable")[:most].tolist()
    rest = [max(0.0, float(weights.sum() - weights[order].sum()))] * (len(order) < len(weights))
    values = [*weights[order].tolist(), *rest]
    return {
        "names": [*(names[i] for i in order), *["others"] * len(rest)],
        "columns": [
            Column("", [f"{weight:.2f}" for weight in values]),
            Column("", bars=[*weights[order].tolist(), *[0.0] * len(rest)]),
        ],
    }


def _run_names(a: Trace, b: Trace) -> tuple[str, str]:
    """Name two runs by their interventions and, if the models differ, by their models."""
    first, second = run_name(a.changed), run_name(b.changed)
    if a.model != b.model:
        first, second = (
            ", ".join([trace.model or "a model without a name", *([name] if trace.changed else [])])
            for trace, name in ((a, first), (b, second))
        )
    return (first, second) if first != second else (f"A, {first}", f"B, {second}")


@np.errstate(invalid="ignore", over="ignore")
def _runs(a: Trace, b: Trace, layer: int | None, head: int | None, **options: Any) -> RunsView:
    """Compare two traces of the same tokens, for example runs with and without `ablate=`.

    Raises:
        ValueError: the tokens differ, or a trace lacks the vectors after the last layer.
        IndexError: `layer` or `head` is out of range.
    """
    states = [word_vectors.last_state(trace) for trace in (a, b)]
    if states[0] is None or states[1] is None:
        raise value_error(
            "a trace lacks the vectors after the last layer, which a comparison of two "
            "runs needs: trace resid_post or normalized_resid_post in both runs. To compare the "
            "attention of a word, pass word=..., which needs no vectors"
        )
    by_layer = word_vectors.measure_by_layer(
        a, b, lambda x, y: np.linalg.norm(y.astype(np.float64) - x, axis=-1).mean()
    )
    word_vectors.need_alike("numbers in a vector", a, states[0].shape[-1], b, states[1].shape[-1])
    before, after = (state[0].astype(np.float64) for state in states if state is not None)
    distances = np.linalg.norm(after - before, axis=-1)
    cosines = word_vectors.cosine(before, after)
    lengths = np.linalg.norm(before, axis=-1)
    changes = [
        Change(i, float(distances[i]), float(cosines[i]), float(lengths[i]))
        for i in np.argsort(-distances, kind="stable").tolist()
    ]
    names = _run_names(a, b)
    heads = [heads_of(trace, name=name) for trace, name in zip((a, b), names, strict=True)]
    word_vectors.need_alike("heads in a layer", a, heads[0].count, b, heads[1].count)
    without = {pair for run in (a, b) for pair in run.changed.get("ablate", ())}
    chosen = selection.changed_head(heads[0], heads[1], without, layer, head)
    return RunsView((a, b), names, heads, changes, by_layer, head=chosen, **options)
