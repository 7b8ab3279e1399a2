"""The view of the shift of word vectors: how vectors change from layer to layer, in one plane."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error
from qkv.models import Model
from qkv.see.analysis import labels_of, one_text, reader_of, texts_of
from qkv.see.analysis.measures import strongest
from qkv.see.analysis.word_vectors import Shift, shift_of_traces, shift_of_vectors
from qkv.see.draw.panels import PICTURE, Arrows, Column, HeatMap, Panel, Prose, Table
from qkv.see.page.payload import check_theme, shift_payload
from qkv.see.views.view import Heading, View, models_of
from qkv.trace import Seq2SeqTrace, Trace

_MOST_ROWS = 20


@dataclass(frozen=True, eq=False, repr=False)
class ShiftView(View):
    """The paths of word vectors through the layers, for the words of one or more sentences.

    Attributes:
        traces: the traces of the sentences; empty for arrays.
        shift: the points and the cosines.
    """

    traces: list[Trace]
    shift: Shift

    @property
    def names(self) -> list[str]:
        """Return the names of the tokens, with sentence numbers if there are several sentences."""
        tokens = labels_of(self.shift.tokens)
        if len(self.shift.sentences) == 1:
            return tokens
        pairs = zip(tokens, self.shift.of, strict=True)
        return [f"{token} ({number + 1})" for token, number in pairs]

    @property
    def sentence(self) -> str:
        """Describe the word with the longest arrow in the plane, and the cosine of its vectors."""
        last = self.shift.stages[-1]
        moved = self.shift.distances(last)
        longest = int(moved.argmax())
        lowest = ", the lowest of all" if longest == int(last.cosine.argmin()) else ""
        return (
            f"{self.names[longest]} has the longest arrow: {moved[longest]:.2f} in the plane. "
            "Before the projection onto the plane, all vectors are scaled to length 1, and then "
            "each set of vectors is centred. The cosine between the word's static vector and its "
            f"vector {last.name} is {last.cosine[longest]:.3f}{lowest}."
        )

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers of the view."""
        sentence = {"sentence": self.sentence}
        return models_of(self.traces) | sentence | shift_payload(self.shift)

    def panels(self) -> list[list[Panel]]:
        """Show cosines by layer, and arrows from static vectors to vectors after the last layer."""
        shift = self.shift
        map_ = HeatMap(
            title="Cosine of each word's vector with its static vector",
            explained="each row: one word, at each layer",
            values=np.stack([x.cosine for x in shift.stages], axis=1)[shift.labelled],
            rows=[self.names[index] for index in shift.labelled],
            columns=[stage.name for stage in shift.stages],
            top=None,
            of="cosine",
            shown_in=PICTURE,
        )
        arrows = Arrows(
            title=f"From the static vectors to the vectors {shift.stages[-1].name}",
            before=shift.before,
            after=shift.stages[-1].points,
            names=self.names,
            alone=labels_of(shift.tokens),
            named=shift.labelled,
            explained_variance=shift.explained.tolist(),
        )
        rows: list[list[Panel]] = [
            [Prose(text=sentence, shown_in=PICTURE)] for sentence in shift.sentences
        ]
        rows += [[map_, arrows], [self._cosines()]]
        if shift.pairs:
            rows.append([self._shared_words()])
        return rows

    def _cosines(self) -> Table:
        """List the words whose vectors turned furthest, with the cosine at each stage."""
        shift, last = self.shift, self.shift.stages[-1]
        indices, moved = strongest(1 - last.cosine, _MOST_ROWS), self.shift.distances(last)
        note = f"Shown: the {len(indices)} of {len(shift.tokens)} words that turned furthest."
        stages = [
            Column(
                stage.name.removeprefix("after "),
                [f"{stage.cosine[i]:.3f}" for i in indices],
                spare=True,
            )
            for stage in shift.stages
        ]
        arrows = Column("arrow", [f"{moved[i]:.2f}" for i in indices], style="not bold dim")
        return Table(
            title="How far each word turned",
            explained="cosine of its static vector and each later vector",
            names=[self.names[i] for i in indices],
            columns=[*stages, arrows],
            note=note if len(indices) < len(shift.tokens) else "",
        )

    def _shared_words(self) -> Table:
        """List the words that two sentences share, with cosines before and after all layers."""
        shift = self.shift
        sides = [f"{shift.of[pair.a] + 1} and {shift.of[pair.b] + 1}" for pair in shift.pairs]
        ends = [f"{pair.cosine[0]:.3f} → {pair.cosine[-1]:.3f}" for pair in shift.pairs]
        return Table(
            title="Words that sentences share",
            explained="cosine of the static vectors → cosine of the vectors after the last layer",
            names=labels_of([pair.word for pair in shift.pairs]),
            columns=[Column("", sides), Column("", ends)],
        )

    def _headings(self) -> list[Heading]:
        several = len(self.traces) > 1
        return [
            Heading.of(trace, str(number) if several else "")
            for number, trace in enumerate(self.traces, 1)
        ]

    def _payload(self) -> dict[str, Any]:
        shift = shift_payload(self.shift) | {"sentence": self.sentence}
        shift["tokens"] = labels_of(self.shift.tokens)
        words = labels_of([pair.word for pair in self.shift.pairs])
        pairs = zip(shift["pairs"], words, strict=True)
        shift["pairs"] = [pair | {"word": word} for pair, word in pairs]
        return self._page("shift", "; ".join(self.shift.sentences), shift=shift)


@public_call("plot_shift")
def plot_shift(
    original: Any,
    contextual: Any = None,
    tokens: Sequence[str] | None = None,
    *,
    model: Model | str | None = None,
    theme: str = "auto",
    pieces: bool = False,
) -> ShiftView:
    """Show word vectors before and after attention, as arrows in one plane.

    Vectors are scaled to length 1: like a cosine, the picture compares only directions. The vectors
    before attention are centred on their own mean, and the vectors after attention on their own
    mean. The plane is the PCA plane of all these vectors. Vectors before attention are blue;
    vectors after attention are red. If there are more than 20 tokens, only the tokens that moved
    furthest in the plane are labelled.

    Args:
        original: `(T, D)`, the vectors before attention; or instead a text, a model's trace of a
            text, or a list of texts or traces. For texts and traces, the view follows each word,
            except special tokens, from its row in the token table to its vector after the last
            layer.
        contextual: `(T, D)`, the vectors after attention.
        tokens: the T words.
        model: the model for a text, or a model's name; if omitted, the default model.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        pieces: whether each subword has its own arrow; otherwise a word's vector is the mean of the
            vectors of its subwords.

    Returns:
        A view for notebooks and terminals, with export methods such as `to_html` and `to_png`.

    Raises:
        ValueError: the shapes do not match, or a number is not finite.

    >>> view = plot_shift([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]], ["cat", "mat"])
    >>> view.to_dict()["stages"][0]["cosine"]
    [1.0, 1.0]
    """
    check_theme(theme)
    several = isinstance(original, (list, tuple))
    parts = list(original) if several else [original]
    if any(isinstance(part, str | Trace | Seq2SeqTrace) for part in parts):
        if contextual is not None or tokens is not None:
            raise type_error("a trace already has vectors and tokens; pass only the trace")
        texts = [part for part in parts if isinstance(part, str)]
        if texts:
            checked = [text for part in texts for text in texts_of([part])]
            used = reader_of(model, checked)
            parts = [used.trace(part) if isinstance(part, str) else part for part in parts]
        traces = [one_text(part) for part in parts]
        return ShiftView(traces, shift_of_traces(traces, pieces=pieces), theme=theme)
    if contextual is None or tokens is None:
        raise type_error(
            "contextual or tokens is missing; pass original, contextual and tokens, or "
            "one trace; if you have only weights, call qkv.show(weights, tokens=...)"
        )
    words = [str(token) for token in tokens]
    return ShiftView([], shift_of_vectors(original, contextual, words), theme=theme)
