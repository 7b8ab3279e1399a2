"""The shift as a view: static and contextual vectors in one plane, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis import findings
from qkv.see.analysis.inputs import model_of, texts_of
from qkv.see.analysis.shift import Shift, shift_of_traces
from qkv.see.draw import svg
from qkv.see.draw.figure import arrows_figure, shift_figure
from qkv.see.draw.lines import note_lines, title
from qkv.see.draw.terminal import Screen, prose, strongest
from qkv.see.page.payload import check_theme, payload_of
from qkv.see.page.shift import shift_payload
from qkv.see.views.view import View
from qkv.trace import Seq2SeqTrace, Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from qkv.models import Model

_CALL = "plot_shift"
_MOST_ROWS = 20


@dataclass(frozen=True, eq=False, repr=False)
class ShiftView(View):
    """How the words of one or more sentences move from their static vectors, layer by layer.

    Attributes:
        traces: of the sentences.
        shift: the points and the cosines.
        theme: "auto", "light" or "dark".
    """

    traces: list[Trace]
    shift: Shift
    theme: str = "auto"

    @property
    def names(self) -> list[str]:
        """The tokens, with the number of their sentence where there are several."""
        if len(self.shift.sentences) == 1:
            return list(self.shift.tokens)
        pairs = zip(self.shift.tokens, self.shift.of, strict=True)
        return [f"{token} ({number + 1})" for token, number in pairs]

    @property
    def sentence(self) -> str:
        """Which word turned furthest, and which one's arrow is the longest."""
        last = self.shift.stages[-1]
        turned, moved = int(last.cosine.argmin()), self.shift.moved(last)
        longest = int(moved.argmax())
        whose = (
            "Its arrow is the longest too"
            if longest == turned
            else (f"The longest arrow is that of {self.names[longest]}")
        )
        return (
            f"{self.names[turned]} turned furthest: the cosine between its static vector and its "
            f"vector {last.name} is {last.cosine[turned]:.3f}. {whose}: "
            f"{moved[longest]:.2f} in the plane, where each set is centred."
        )

    def _numbers(self) -> dict[str, Any]:
        """The numbers of the view."""
        shift = self.shift
        return {
            "model": self.traces[0].model,
            "sentence": self.sentence,
            "sentences": shift.sentences,
            "tokens": shift.tokens,
            "of": list(shift.of),
            "before": shift.before,
            "explained": shift.explained,
            "stages": [
                {
                    "name": stage.name,
                    "points": stage.points,
                    "held": stage.held,
                    "cosine": stage.cosine,
                    "moved": shift.moved(stage),
                }
                for stage in shift.stages
            ],
            "pairs": [
                {"word": pair.word, "a": pair.a, "b": pair.b, "cosine": pair.cosine}
                for pair in shift.pairs
            ],
        }

    def figure(self) -> Figure:
        """Cosines by layer, and the arrows from the static vectors to those of the last layer."""
        return shift_figure(self)

    @property
    def turns(self) -> tuple[Array, list[str], list[str]]:
        """Cosines `(n, stages)` of the words that are named, with those words and the stages."""
        shift = self.shift
        cosines = np.stack([stage.cosine for stage in shift.stages], axis=1)[shift.labelled]
        names = [self.names[place] for place in shift.labelled]
        return cosines, names, [stage.name for stage in shift.stages]

    def _texts(self) -> list[tuple[list[str], list[bool], str]]:
        names = [str(i) for i in range(1, 1 + len(self.traces))]
        named = names if len(names) > 1 else [""]
        return [(a.tokens, a.special, name) for a, name in zip(self.traces, named, strict=True)]

    def _payload(self) -> dict[str, Any]:
        return payload_of(
            "shift",
            "; ".join(self.shift.sentences),
            [],
            model=self.traces[0].model,
            theme=self.theme,
            shift=shift_payload(self.shift) | {"sentence": self.sentence},
        )

    def _picture(self) -> str:
        shift = self.shift
        named = set(shift.labelled)
        names = [name if place in named else "" for place, name in enumerate(self.names)]
        arrows = svg.arrows(shift.before, shift.stages[-1].points, names)
        shares = " and ".join(f"{share:.0%}" for share in shift.explained)
        notes = [
            *shift.sentences,
            f"From the static vectors (blue) to those {shift.stages[-1].name} (red); the axes hold "
            f"{shares} of the variance, each set centred first.",
        ]
        caption = "Cosine of each word's vector with its static one"
        turns = svg.heat_map(*self.turns, top=None, of="cosine", caption=caption)
        return svg.picture(self.sentence, [*notes, *self.notes], [[turns, arrows]])

    def _lines(self, screen: Screen) -> Iterator[Text]:
        from rich.text import Text

        shift, last = self.shift, self.shift.stages[-1]
        for number, sentence in enumerate(shift.sentences, 1):
            yield Text(f"{number}  {screen.safe(sentence)}", style="bold")
        yield from note_lines(screen, self.notes)
        yield Text()
        yield from prose(screen, self.sentence, "bold")
        yield Text()
        yield title("How far each word turned", "cosine of its static vector and each later one")
        shown = strongest(1 - last.cosine, _MOST_ROWS)
        width = screen.fit([self.names[i] for i in shown], 5, 16)
        few = max(2, (screen.width - width - 8) // 8)  # of more layers the last ones
        stages = shift.stages[-few:]
        names = [stage.name.removeprefix("after ") for stage in stages]
        heads = "".join(f" {screen.right(name, 7)}" for name in names)
        yield Text(f"{'':{width}}{heads}   arrow", style="dim")
        moved = shift.moved(last)
        for i in shown:
            line = Text(screen.cut(self.names[i], width), style="bold")
            for stage in stages:
                line.append(f" {stage.cosine[i]:7.3f}", style="not bold")
            yield line.append(f" {moved[i]:7.2f}", style="not bold dim")
        if len(shown) < len(shift.tokens):
            yield Text(
                f"Shown: the {len(shown)} of {len(shift.tokens)} that turned furthest.", style="dim"
            )
        if shift.pairs:
            yield Text()
            yield title("Words that sentences share", "cosine: static, then after the last layer")
            width = screen.fit([pair.word for pair in shift.pairs], 5, 16)
            for pair in shift.pairs:
                line = Text(screen.cut(pair.word, width), style="bold")
                where = f"  {shift.of[pair.a] + 1} and {shift.of[pair.b] + 1}"
                line.append(f"{where}  {pair.cosine[0]:6.3f}", style="not bold")
                yield line.append(screen.plain(" → ") + f"{pair.cosine[-1]:6.3f}", style="not bold")


@overload
def plot_shift(
    original: str | Trace | Sequence[str] | Sequence[Trace],
    *,
    model: Model | str | None = None,
    theme: str = "auto",
    pieces: bool = False,
) -> ShiftView: ...


@overload
def plot_shift(original: Any, contextual: Any, tokens: Sequence[str]) -> Figure: ...


def plot_shift(
    original: Any,
    contextual: Any = None,
    tokens: Sequence[str] | None = None,
    *,
    model: Model | str | None = None,
    theme: str = "auto",
    pieces: bool = False,
) -> ShiftView | Figure:
    """Word vectors before and after attention, as arrows in one plane.

    The plane is the PCA plane of both sets together, each centred on its own mean first. Before is
    blue, after is red. Of more than 20 tokens those that moved furthest in the plane are labelled.

    Args:
        original: `(T, D)`, the vectors before. Or a text, a model's trace of one, or a list of
            either: from each word's row in the token table, through each layer, to its last vector;
            special tokens are left out.
        contextual: `(T, D)`, the vectors after.
        tokens: T words.
        model: the model for a text, or its name; the default model if left out.
        theme: of the page: "light", "dark", or "auto" for what the reader's system prefers.
        pieces: whether the pieces of a word have arrows of their own; else its vector is the mean
            of theirs.

    Returns:
        Of texts and traces a view; of bare arrays a matplotlib figure.

    Raises:
        ValueError: the shapes do not fit each other, or a number is not finite.

    >>> figure = plot_shift([[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 2.0]], ["cat", "mat"])
    >>> figure.axes[0].get_xlabel()
    'PC 1 (100% of the variance; each set centred first)'
    """
    several = isinstance(original, (list, tuple))
    parts = list(original) if several else [original]
    if any(isinstance(part, str | Trace | Seq2SeqTrace) for part in parts):
        if contextual is not None or tokens is not None:
            raise TypeError("plot_shift: a trace has its vectors and tokens: pass it alone")
        check_theme(theme, "plot_shift")
        texts = [part for part in parts if isinstance(part, str)]
        if texts:
            used = model_of(model, [text for part in texts for text in texts_of([part], _CALL)])
            parts = [used.trace(part) if isinstance(part, str) else part for part in parts]
        traces = [findings.one_text(part, _CALL) for part in parts]
        return ShiftView(traces, shift_of_traces(traces, pieces=pieces), theme)
    if contextual is None or tokens is None:
        raise TypeError(
            "plot_shift: give original, contextual and tokens, or one trace; weights have no "
            "vectors, and qkv.show(weights, tokens=...) shows them"
        )
    return arrows_figure(original, contextual, tokens)
