"""Two runs of one text side by side: the effect of an intervention."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis import selection
from qkv.see.analysis.head_weights import Heads, heads_of
from qkv.see.analysis.measures import strongest
from qkv.see.analysis.word_vectors import cosine, last_state, measure_by_layer, need_alike
from qkv.see.analysis.words import quoted, run_name
from qkv.see.draw.panels import PICTURE, TERMINAL, Bars, Column, Panel, Table
from qkv.see.page.payload import text_payload
from qkv.see.views.head_panels import HeadShown, heading_of, names_of_layers
from qkv.see.views.view import Heading, models_of, one_model
from qkv.trace import Trace

_MOST_ROWS = 20


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
    """Two runs of one text: the change of each token's output, largest first.

    Attributes:
        traces: the traces of both runs.
        names: the names of the runs.
        heads: all heads of both runs.
        changes: the change of each token, the largest distance first.
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
            f"{runs} the output of {self.tokens[first.token]} changes most: by "
            f"{first.distance:.2f}, where its length is {first.length:.2f} "
            f"(cosine {first.cosine:.3f})."
        )

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers of the view."""
        return {
            **models_of(self.traces),
            "tokens": self.tokens,
            "runs": list(self.names),
            **self._chosen(),
            "by_layer": self.by_layer,
            "changes": [
                {**asdict(change), "token": self.tokens[change.token], "place": change.token}
                for change in self.changes
            ],
        }

    def panels(self) -> list[list[Panel]]:
        """Show the head in both runs, the change of each token, and one token's attention."""
        parts = self.heads
        shown = self.changes[:_MOST_ROWS]
        changed = Bars(
            title="How far each token's output moved",
            explained="distance between the two vectors after the last layer",
            names=[self.tokens[change.token] for change in shown],
            values=[change.distance for change in shown],
        )
        columns = [
            Column("distance", [f"{change.distance:.3f}" for change in shown]),
            Column("", bars=changed.shares),
            Column("cosine", [f"{change.cosine:.3f}" for change in shown], style="not bold dim"),
        ]
        note = f"Shown: the {len(shown)} of {len(self.changes)} that changed most."
        table = Table(
            title="What changed in each token's output",
            explained="after the last layer, largest first",
            names=changed.names,
            columns=columns,
            note=note if len(shown) < len(self.changes) else "",
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
            title=f"What {self.tokens[query]} looks at in {self.where}",
            names=[self.tokens[key] for key in keys],
            columns=[
                Column(name, [f"{row[key]:.2f}" for key in keys])
                for name, row in zip(self.names, looks, strict=True)
            ],
        )
        return [*rows, [table]]

    def _all_heads(self) -> Sequence[Heads]:
        return self.heads

    def _headings(self) -> list[Heading]:
        model = one_model([trace.model for trace in self.traces])
        return [heading_of(self.traces[0])._replace(model=model)]

    def _payload(self) -> dict[str, Any]:
        return self._page(
            "compare",
            quoted(self.traces[0].text, self.tokens, self.traces[0].special),
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
def compare_runs(
    a: Trace,
    b: Trace,
    layer: int | None,
    head: int | None,
    theme: str = "auto",
    stretch: bool = False,
) -> RunsView:
    """Compare two traces of the same tokens, for example runs with and without `ablate=`.

    Raises:
        ValueError: the tokens differ, or a trace lacks the vectors after the last layer.
        IndexError: `layer` or `head` is out of range.
    """
    states = [last_state(trace) for trace in (a, b)]
    if states[0] is None or states[1] is None:
        raise ValueError(
            "compare: two runs are compared by the vectors after the last layer: trace "
            "resid_post or normalized_resid_post of both, or name a word, word=..., to compare "
            "the word's attention"
        )
    by_layer = measure_by_layer(
        a, b, lambda x, y: np.linalg.norm(y.astype(np.float64) - x, axis=-1).mean()
    )
    need_alike("numbers in a vector", a, states[0].shape[-1], b, states[1].shape[-1])
    before, after = (state[0].astype(np.float64) for state in states if state is not None)
    distances = np.linalg.norm(after - before, axis=-1)
    cosines = cosine(before, after)
    lengths = np.linalg.norm(before, axis=-1)
    changes = [
        Change(i, float(distances[i]), float(cosines[i]), float(lengths[i]))
        for i in np.argsort(-distances, kind="stable").tolist()
    ]
    names = _run_names(a, b)
    heads = [heads_of(trace, name=name) for trace, name in zip((a, b), names, strict=True)]
    need_alike("heads in a layer", a, heads[0].count, b, heads[1].count)
    without = {pair for run in (a, b) for pair in run.changed.get("ablate", ())}
    chosen = selection.changed_head(heads[0], heads[1], without, layer, head)
    return RunsView(
        (a, b), names, heads, changes, by_layer, head=chosen, theme=theme, stretch=stretch
    )
