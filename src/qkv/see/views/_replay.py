"""A training run as a view: the attention of a head at each snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv._argument_errors import public_call
from qkv.arrays import Array
from qkv.files import StrPath
from qkv.models import Model
from qkv.see.analysis import quote_words, snapshots
from qkv.see.analysis.head_weights import Heads
from qkv.see.analysis.measures import strongest
from qkv.see.draw.colours import INK, THEMES, scale_end
from qkv.see.draw.panels import PICTURE, ChartLine, Column, HeatMap, Lines, Panel, Prose, Table
from qkv.see.page.payload import check_theme, replay_payload
from qkv.see.views.view import Heading, HeadShown
from qkv.trace import Trace

_STRIP = 6  # the largest number of steps side by side in a picture
_MOST_ROWS = 24
# the dash patterns of lines; the lines also differ in colour
_DASHES = ((), (8, 4), (2, 4), (10, 3, 2, 3))


@dataclass(frozen=True, eq=False, repr=False)
class ReplayView(HeadShown):
    """The attention of a model's heads over one text, at each snapshot of the training run.

    Attributes:
        replay: the weights, the scores and the loss.
        score: the index of the shown score in `replay.scores`.
    """

    replay: snapshots.Replay
    score: int

    @property
    def top(self) -> float:
        """Return the upper end of the scale of weights."""
        return scale_end([self.weights], self.stretch)

    @property
    def tokens(self) -> list[str]:
        """Return the tokens of the text."""
        return list(self.replay.first.tokens)

    @property
    def steps(self) -> list[int]:
        """Return the steps of the snapshots."""
        return list(self.replay.steps)

    @property
    def weights(self) -> Array:
        """Return the kept weights of the shown head, `(steps, T, T)`."""
        return self.replay.patterns(self.head)

    @property
    def sentence(self) -> str:
        """Describe how the shown head's score changes during training."""
        return snapshots.in_words(self.replay, self.head, self.score)

    @property
    def strip(self) -> list[int]:
        """Choose the steps that fit in a picture; return their indices."""
        return snapshots.spread(len(self.replay.shown), _STRIP)

    def panels(self) -> list[list[Panel]]:
        """Show the head's weights and scores at steps of the training run, and the loss."""
        replay, hidden = self.replay, self.replay.hidden_of(self.head)
        caption = (
            f"Each square shows what each of the {len(self.tokens)} tokens (rows, from the top) "
            f"attends to (columns); white is a weight of 0, dark blue {self.top:.2f}"
            f"{' (stretched)' if self.stretch else ''}."
        )
        strip: list[Panel] = [
            HeatMap(
                title=f"step {replay.steps[replay.shown[index]]:,}", values=self.weights[index],
                rows=self.tokens, columns=self.tokens, top=self.top, hidden=hidden, compact=True,
                shown_in=PICTURE,
            )
            for index in self.strip
        ]  # fmt: skip
        tables: list[list[Panel]] = [[self._steps()], [self._first_and_last()]]
        return [[Prose(text=caption, shown_in=PICTURE)], strip, self._charts(), *tables]

    def _charts(self) -> list[Panel]:
        """Show each score of the head, and the loss, as lines over the steps."""
        replay, knots = self.replay, self.replay.knots
        names = [f"{knot:,}" for knot in knots]

        def line(points: Sequence[tuple[float, float]], *style: Any) -> ChartLine:
            xs = np.interp([step for step, _ in points], knots, range(len(knots))).tolist()
            return ChartLine(list(zip(xs, (y for _, y in points), strict=True)), *style)

        scores = [
            line(
                list(zip(self.steps, replay.course(self.head, index).tolist(), strict=True)),
                score.of,
                THEMES["light"].lines[index],
                _DASHES[index],
            )
            for index, score in enumerate(replay.scores)
        ]
        charts: list[Panel] = [
            Lines(
                title=f"Scores of {self.where}, by training step",
                lines=scores, names=names, ends=(0.0, 1.0), shown_in=PICTURE,
            )
        ]  # fmt: skip
        if replay.losses:
            points = [(x, y) for x, y in snapshots.thin(replay.losses, snapshots.MOST_LOSSES)]
            ends = min(y for _, y in points), max(y for _, y in points)
            loss = Lines(
                title="Loss, by training step",
                lines=[line(points, "", INK)],
                names=names,
                ends=ends,
                shown_in=PICTURE,
            )
            charts.append(loss)
        return charts

    def _steps(self) -> Table:
        """List the shown score and the loss at each step."""
        replay, score = self.replay, self.replay.scores[self.score]
        course = replay.course(self.head, self.score)
        indices = snapshots.spread(len(replay.steps), _MOST_ROWS // 2)
        columns = [
            Column(score.name, [f"{course[index]:.2f}" for index in indices]),
            Column("", bars=course[indices].tolist()),
        ]
        if replay.losses:
            logged = [replay.loss_at(replay.steps[index]) for index in indices]
            columns.append(Column("loss", ["" if x is None else f"{x:.3f}" for x in logged]))
        return Table(
            title=f"L{self.where[1:]} step by step",
            explained=score.of,
            corner="step",
            names=[f"{replay.steps[index]:,}" for index in indices],
            columns=columns,
        )

    def _first_and_last(self) -> Table:
        """List the scores of each head at the first step and at the last step."""
        replay = self.replay
        first, last = (replay.values[at].reshape(-1, len(replay.scores)) for at in (0, -1))
        indices = strongest(np.abs(last - first).max(axis=-1), _MOST_ROWS)
        heads = [divmod(index, replay.values.shape[2]) for index in indices]
        columns = [
            Column(
                score.name,
                [f"{first[i, n]:.2f} → {last[i, n]:.2f}" for i in indices],
                style=["bold" if last[i, n] - first[i, n] >= 0.2 else "not bold" for i in indices],
            )
            for n, score in enumerate(replay.scores)
        ]
        note = f"Shown: the {len(indices)} of {len(first)} heads that changed most."
        return Table(
            title="Scores of each head",
            explained=f"at step {replay.steps[0]:,} and at step {replay.steps[-1]:,}",
            corner="layer · head",
            names=[f"{replay.layers[row]} · {column}" for row, column in heads],
            columns=columns,
            note=note if len(indices) < len(first) else "",
        )

    def _all_heads(self) -> Sequence[Heads]:
        return []  # the weights are in `replay`

    def _headings(self) -> list[Heading]:
        return [Heading.of(self.replay.first)]

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers of the view.

        `scores` contains the value of each score at each step, layer and head. `weights` contains
        the weights of the shown head at each of `shown_steps`.
        """
        replay = self.replay
        return {
            "run": replay.run,
            "tokens": self.tokens,
            "steps": self.steps,
            "layers": replay.layers,
            "score": replay.scores[self.score].name,
            **self._head_numbers(),
            "scores": {
                score.name: replay.values[..., index] for index, score in enumerate(replay.scores)
            },
            "losses": [list(logged) for logged in replay.losses],
            "shown_steps": [replay.steps[index] for index in replay.shown],
            "weights": self.weights,
        }

    def _payload(self) -> dict[str, Any]:
        first = self.replay.first
        title = quote_words(first.text, first.tokens, first.special)
        replay = replay_payload(self.replay, self.score)
        return self._page("replay", title, start=self._start(), replay=replay)


@public_call("replay")
def replay(
    run: StrPath | Mapping[int, Model] | Mapping[int, Trace],
    text: str | Sequence[int] | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    theme: str = "auto",
    stretch: bool = False,
) -> ReplayView:
    """Show the attention of a model's heads over a text, at each snapshot of a training run.

    The scores of a head at a step are its mean weights on the previous token, on the next token and
    on the first token. If the text repeats tokens, each head has one more score: its mean weight on
    the token after an earlier occurrence of the same token (induction). By default, the view shows
    the head whose score rose most between the first and the last snapshot. Ties go to the lowest
    layer, then the lowest head.

    Args:
        run: the folder of a `qkv train` run, with models in `snapshots/step-00000100/` and so on,
            and losses in `metrics.jsonl`. Alternatively, `run` is a mapping from each step to a
            model or to a trace of one text.
        text: the text, or the ids of its tokens; leave it out if `run` holds traces.
        layer: the layer to show first, counted from 0; -1 is the last layer.
        head: the head to show first, counted from 0.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        stretch: whether scales end at the largest shown weight instead of 1.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: the run has no snapshots; the models belong to different runs; or the text is
            missing, empty or too long for a page.
        IndexError: `layer` or `head` is out of range; the message names the range.

    >>> import qkv
    >>> models = {step: qkv.models.random_model("the cat sat", seed=step) for step in (0, 10, 20)}
    >>> view = replay(models, "the cat sat")
    >>> view.steps, view.weights.shape
    ([0, 10, 20], (3, 3, 3))
    """
    check_theme(theme)
    measured = snapshots.replay_of(snapshots.read_run(run), text)
    chosen, score = snapshots.choose(measured, layer, head)
    return ReplayView(measured, score, head=chosen, theme=theme, stretch=stretch)
