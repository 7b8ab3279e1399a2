"""Two runs of one text beside each other: what a head or a word changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis import findings, selection
from qkv.see.analysis.heads import Heads, heads_of
from qkv.see.analysis.selection import Head
from qkv.see.analysis.words import quoted
from qkv.see.draw import svg
from qkv.see.draw.colours import scale_end
from qkv.see.draw.lines import heading, note_lines, title
from qkv.see.draw.terminal import Screen, bar, prose, strongest
from qkv.see.page.payload import payload_of, start_at, text_payload
from qkv.see.views.view import View
from qkv.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

_MOST_ROWS = 20


@dataclass(frozen=True)
class Change:
    """What became of one token's last vector.

    Attributes:
        token: its place.
        distance: between its two vectors.
        cosine: between them.
        length: of the first one.
    """

    token: int
    distance: float
    cosine: float
    length: float


@dataclass(frozen=True, eq=False, repr=False)
class RunsView(View):
    """Two runs of one text: what changed in each token's output, largest first.

    Attributes:
        traces: of both runs.
        names: what each run is called.
        head: the head that is shown.
        changes: one for each token, the largest distance first.
        by_layer: the mean distance at the embeddings and after each layer, `(num_layers + 1,)`.
        theme: "auto", "light" or "dark".
        stretch: whether scales end at the largest weight, and not at 1.
    """

    traces: tuple[Trace, Trace]
    names: tuple[str, str]
    head: Head
    changes: list[Change]
    by_layer: Array
    theme: str = "auto"
    stretch: bool = False

    @property
    def top(self) -> float:
        """Where the scale of weights ends."""
        layer, head = self.head.layer, self.head.head
        return scale_end((part.known(layer, head) for part in self.heads), self.stretch)

    @property
    def tokens(self) -> list[str]:
        """The tokens of the text."""
        return list(self.traces[0].tokens)

    @property
    def sentence(self) -> str:
        """The largest change, in words."""
        first = self.changes[0]
        what = f"From '{self.names[0]}' to '{self.names[1]}'"
        if not first.distance:
            return f"{what} no token's output changes."
        return (
            f"{what} the output of {self.tokens[first.token]} changes most: by "
            f"{first.distance:.2f}, where its length is {first.length:.2f} "
            f"(cosine {first.cosine:.3f})."
        )

    def _numbers(self) -> dict[str, Any]:
        """The numbers of the view."""
        return {
            "model": self.traces[0].model,
            "tokens": self.tokens,
            "runs": list(self.names),
            "sentence": self.sentence,
            "layer": self.head.layer,
            "head": self.head.head,
            "chosen": self.head.reason,
            "by_layer": self.by_layer,
            "changes": [
                {
                    "token": self.tokens[change.token],
                    "place": change.token,
                    "distance": change.distance,
                    "cosine": change.cosine,
                    "length": change.length,
                }
                for change in self.changes
            ],
        }

    def figure(self) -> Figure:
        """The head in both runs, and each token's change."""
        from qkv.see.draw.figure import runs_figure

        return runs_figure(self)

    @property
    def heads(self) -> list[Heads]:
        """All heads of both runs."""
        return [
            heads_of(trace, name=name) for trace, name in zip(self.traces, self.names, strict=True)
        ]

    def _texts(self) -> list[tuple[list[str], list[bool], str]]:
        return [(self.tokens, self.traces[0].special, "")]

    def _payload(self) -> dict[str, Any]:
        layer, head = self.head.layer, self.head.head
        return payload_of(
            "compare",
            quoted(self.traces[0].text, self.tokens, self.traces[0].special),
            [text_payload(heads, layer) for heads in self.heads],
            model=self.traces[0].model,
            theme=self.theme,
            stretch=self.stretch,
            start=start_at(
                layer,
                head,
                self.changes[0].token,
                chosen=self.head.reason,
                sentence=self.sentence,
            ),
            compare={
                "what": "runs",
                "sentence": self.sentence,
                "of": "the vectors after the last layer",
                "changes": [[c.token, c.distance, c.cosine, c.length] for c in self.changes],
                "by_layer": self.by_layer,
            },
        )

    def _picture(self) -> str:
        layer, head = self.head.layer, self.head.head
        blocks = [heads.block(layer, head, svg.MOST_ROWS) for heads in self.heads]
        maps = [
            svg.heat_map(
                block.values, block.rows, block.columns,
                top=self.top, hidden=block.hidden, caption=f"{name}: layer {layer}, head {head}",
                missing=block.missing,
            )
            for name, block in zip(self.names, blocks, strict=True)
        ]  # fmt: skip
        rows = [(self.tokens[c.token], c.distance) for c in self.changes[:_MOST_ROWS]]
        changed = svg.table(rows, "How far each token's output moved")
        notes = [f"This head is shown because {self.head.reason}."]
        return svg.picture(self.sentence, [*notes, *self.notes], [maps, [changed]])

    def _lines(self, screen: Screen) -> Iterator[Text]:
        from rich.text import Text

        yield heading(screen, self.traces[0])
        yield from note_lines(screen, self.notes)
        yield Text()
        yield from prose(screen, self.sentence, "bold")
        yield Text()
        yield title("What changed in each token's output", "after the last layer, largest first")
        shown = self.changes[:_MOST_ROWS]
        width = screen.fit([self.tokens[change.token] for change in shown], 5, 16)
        yield Text(f"{'':{width}} distance                       cosine", style="dim")
        most = shown[0].distance or 1.0
        for change in shown:
            line = Text(screen.cut(self.tokens[change.token], width), style="bold")
            line.append(f" {change.distance:8.3f} ", style="not bold")
            line.append(bar(screen, change.distance / most, 20))
            yield line.append(f" {change.cosine:7.3f}", style="not bold dim")
        if len(shown) < len(self.changes):
            yield Text(f"Shown: the {len(shown)} of {len(self.changes)} that changed most.", "dim")
        if len(self.by_layer):
            yield Text()
            yield title("The mean of these distances")
        highest = float(self.by_layer.max(initial=0.0)) or 1.0
        for layer, value in enumerate(self.by_layer.tolist()):
            where = f"after layer {layer - 1}" if layer else "embeddings"
            line = Text(f"{where:15} {value:7.3f}  ")
            yield line.append(bar(screen, value / highest, 30))
        yield Text()
        where = f"layer {self.head.layer}, head {self.head.head}"
        query = self.changes[0].token
        yield title(screen.plain(f"What {self.tokens[query]} looks at in {where}"))
        yield from prose(screen, f"This head is shown because {self.head.reason}.", "dim")
        rows = [heads.row(self.head.layer, self.head.head, query) for heads in self.heads]
        width = screen.fit(self.tokens, 5, 14)
        names = [screen.cut(name, 18).rstrip() for name in self.names]
        yield Text(f"{'':{width}}  {names[0]:>18} {names[1]:>18}", style="dim")
        for key in strongest(np.maximum(*rows), 8):
            line = Text(screen.cut(self.tokens[key], width), style="bold")
            yield line.append(f"  {rows[0][key]:18.2f} {rows[1][key]:18.2f}", style="not bold")


@np.errstate(invalid="ignore", over="ignore")
def compare_runs(
    a: Trace,
    b: Trace,
    layer: int | None,
    head: int | None,
    theme: str = "auto",
    stretch: bool = False,
) -> RunsView:
    """Two traces of the same tokens, say one as it is and one with `ablate=` or `hide=`.

    Raises:
        ValueError: the tokens are not the same, or the vectors after the last layer are missing.
        IndexError: there is no such layer or head.
    """
    states = [findings.last_state(trace) for trace in (a, b)]
    if states[0] is None or states[1] is None or states[0].shape != states[1].shape:
        raise ValueError(
            "compare: two runs are compared by their vectors after the last layer: trace "
            "resid_post or normalized_resid_post of both, or name a word, word=..., to compare "
            "what it looks at"
        )
    before, after = (state[0].astype(np.float64) for state in states if state is not None)
    distances = np.linalg.norm(after - before, axis=-1)
    cosines = findings.cosine(before, after)
    lengths = np.linalg.norm(before, axis=-1)
    changes = [
        Change(i, float(distances[i]), float(cosines[i]), float(lengths[i]))
        for i in np.argsort(-distances, kind="stable").tolist()
    ]
    without = {pair for run in (a, b) for pair in run.changed.get("ablate", ())}
    chosen = selection.changed_head(heads_of(a), heads_of(b), without, layer, head)
    return RunsView((a, b), (_name(a), _name(b)), chosen, changes, _by_layer(a, b), theme, stretch)


def _by_layer(a: Trace, b: Trace) -> Array:
    """The mean distance at the embeddings and after each layer; empty if they were not traced."""
    try:
        states = list(zip(a.hidden_states, b.hidden_states, strict=True))
    except KeyError:
        return np.zeros(0)
    return np.array(
        [float(np.linalg.norm(y[0].astype(np.float64) - x[0], axis=-1).mean()) for x, y in states]
    )


def _name(trace: Trace) -> str:
    """What a run is called: what it went without.

    >>> _name(Trace({}, changed={"ablate": [(0, 4)], "hide": ["river"]}))
    'without layer 0, head 4, river hidden'
    """
    heads = [f"layer {layer}, head {head}" for layer, head in trace.changed.get("ablate", ())]
    parts = ["without " + " and ".join(heads)] if heads else []
    words = trace.changed.get("hide", [])
    parts += [f"{' and '.join(words)} hidden"] if words else []
    return ", ".join(parts) or "as it is"
