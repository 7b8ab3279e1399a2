"""A training run as a view: a head going from noise to structure, step by step."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array
from qkv.see.analysis.selection import Head
from qkv.see.analysis.snapshots import read_run
from qkv.see.analysis.training import (
    MOST_LOSSES,
    Replay,
    choose,
    in_words,
    replay_of,
    spread,
    thinned,
)
from qkv.see.analysis.words import quoted
from qkv.see.draw import svg
from qkv.see.draw.colours import scale_end, shade
from qkv.see.draw.figure import replay_figure
from qkv.see.draw.lines import heading, note_lines, title
from qkv.see.draw.terminal import Screen, bar, prose, strongest
from qkv.see.page.payload import check_theme, payload_of, start_at
from qkv.see.page.replay import replay_payload
from qkv.see.views.image_view import png
from qkv.see.views.view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from qkv.models import Model
    from qkv.trace import Trace

_STRIP = 6  # steps side by side in a picture
_MOST_ROWS = 24
_TILE = 150.0  # pixels of a side
_DASHES = "", "8 4", "2 4", "10 3 2 3"  # of lines, which are told apart by their colours as well
_VEIL = (226, 226, 226)


@dataclass(frozen=True, eq=False, repr=False)
class ReplayView(View):
    """What the heads of a model look at in one text, at each snapshot of its training.

    Attributes:
        replay: the weights, the scores and the loss.
        head: the head that is shown.
        score: which of `replay.scores` it is shown for.
        theme: "auto", "light" or "dark".
        stretch: whether scales end at the largest weight, and not at 1.
    """

    replay: Replay
    head: Head
    score: int
    theme: str = "auto"
    stretch: bool = False

    @property
    def top(self) -> float:
        """Where the scale of weights ends."""
        return scale_end([self.weights], self.stretch)

    @property
    def tokens(self) -> list[str]:
        """The tokens of the text."""
        return list(self.replay.first.tokens)

    @property
    def steps(self) -> list[int]:
        """The steps of the snapshots."""
        return list(self.replay.steps)

    @property
    def weights(self) -> Array:
        """The weights of the head that is shown, `(steps, T, T)`; of many snapshots some."""
        return self.replay.patterns(self.head)

    @property
    def sentence(self) -> str:
        """What became of the head that is shown, in words."""
        return in_words(self.replay, self.head, self.score)

    @property
    def strip(self) -> list[int]:
        """The places among the steps shown that a picture has room for."""
        return spread(len(self.replay.shown), _STRIP)

    @property
    def lines(self) -> list[svg.Line]:
        """Each score of the head that is shown as a line over the steps."""
        return [
            svg.Line(
                list(zip(self.steps, self.replay.course(self.head, place).tolist(), strict=True)),
                score.of,
                svg.LINES[place],
                _DASHES[place],
            )
            for place, score in enumerate(self.replay.scores)
        ]

    def _numbers(self) -> dict[str, Any]:
        """The numbers of the view.

        `scores` has for each score its value at each step, layer and head; `weights` are those of
        the head that is shown at each of `shown_steps`.
        """
        replay = self.replay
        return {
            "run": replay.run,
            "tokens": self.tokens,
            "steps": self.steps,
            "layers": replay.layers,
            "layer": self.head.layer,
            "head": self.head.head,
            "score": replay.scores[self.score].name,
            "chosen": self.head.reason,
            "sentence": self.sentence,
            "scores": {
                score.name: replay.values[..., place] for place, score in enumerate(replay.scores)
            },
            "losses": [list(logged) for logged in replay.losses],
            "shown_steps": [replay.steps[place] for place in replay.shown],
            "weights": self.weights,
        }

    def figure(self) -> Figure:
        """A strip of the head's weights through training, its scores, and the loss."""
        return replay_figure(self)

    def _texts(self) -> list[tuple[list[str], list[bool], str]]:
        return [(self.tokens, self.replay.first.special, "")]

    def _payload(self) -> dict[str, Any]:
        first = self.replay.first
        return payload_of(
            "replay",
            quoted(first.text, first.tokens, first.special),
            [],
            model=first.model,
            theme=self.theme,
            stretch=self.stretch,
            start=start_at(
                self.head.layer,
                self.head.head,
                None,
                chosen=self.head.reason,
                sentence=self.sentence,
            ),
            replay=replay_payload(self.replay, self.score),
        )

    def _picture(self) -> str:
        replay, hidden = self.replay, self.replay.hidden_of(self.head)
        shares = self.weights / self.top
        tiles = [
            _tile(shares[place], hidden, f"step {replay.steps[replay.shown[place]]:,}")
            for place in self.strip
        ]
        where = f"layer {self.head.layer}, head {self.head.head}"
        charts = [
            svg.chart(self.lines, f"Scores of {where}, over the steps", replay.knots, (0.0, 1.0))
        ]
        if replay.losses:
            points = [(x, y) for x, y in thinned(replay.losses, MOST_LOSSES)]
            ends = min(y for _, y in points), max(y for _, y in points)
            charts.append(svg.chart([svg.Line(points, "", svg.INK)], "Loss", replay.knots, ends))
        notes = [
            f"This head is shown because {self.head.reason}.",
            f"Each square: what each of the {len(self.tokens)} tokens (rows, from the top) looks "
            f"at (columns); white is a weight of 0, dark blue {self.top:.2f}.",
        ]
        return svg.picture(self.sentence, [*notes, *self.notes], [tiles, charts])

    def _lines(self, screen: Screen) -> Iterator[Text]:
        from rich.text import Text

        replay, score = self.replay, self.replay.scores[self.score]
        yield heading(screen, replay.first)
        yield from note_lines(screen, self.notes)
        yield Text()
        yield from prose(screen, self.sentence, "bold")
        yield from prose(screen, f"This head is shown because {self.head.reason}.", "dim")
        yield Text()
        where = f"layer {self.head.layer}, head {self.head.head}"
        yield title(f"Layer {self.head.layer}, head {self.head.head} step by step", score.of)
        course = replay.course(self.head, self.score)
        room = screen.room(30, beside=30)
        loss = "  loss" if replay.losses else ""
        yield Text(f"{'step':>9}  {score.name:<{room + 5}}{loss:>8}", style="dim")
        for place in spread(len(replay.steps), _MOST_ROWS // 2):
            step, value = replay.steps[place], float(course[place])
            line = Text(f"{step:>9,}  {value:4.2f} ")
            line.append(bar(screen, value, room))
            logged = replay.loss_at(step)
            yield line if logged is None else line.append(f"{logged:8.3f}")
        yield Text()
        yield from self._table(screen, where)

    def _table(self, screen: Screen, where: str) -> Iterator[Text]:
        """The scores of each head at the first step and at the last."""
        from rich.text import Text

        replay = self.replay
        first, last = replay.values[0], replay.values[-1]
        count = first.shape[1]
        largest = np.abs(last - first).max(axis=-1).ravel()
        rows = strongest(largest, _MOST_ROWS)
        yield title(
            "Scores of each head", f"at step {replay.steps[0]:,} and at step {replay.steps[-1]:,}"
        )
        names = "".join(f"{score.name:>14}" for score in replay.scores)
        yield Text(f"{'layer · head' if screen.unicode else 'layer head':12}{names}", style="dim")
        arrow = screen.plain("→")
        for place in rows:
            row, column = divmod(place, count)
            shown = (replay.layers[row], column) == (self.head.layer, self.head.head)
            line = Text(
                f"{replay.layers[row]:>5} {'·' if screen.unicode else '-'} {column:<4}",
                style="bold" if shown else "",
            )
            for a, b in zip(first[row, column].tolist(), last[row, column].tolist(), strict=True):
                line.append(f"  {f'{a:.2f} {arrow} {b:.2f}':>12}", _weight(b - a))
            yield line
        if len(rows) < len(largest):
            yield Text(
                f"Shown: the {len(rows)} of {len(largest)} heads that changed most.", style="dim"
            )


def _weight(change: float) -> str:
    return "bold" if change >= 0.2 else "not bold"


def _tile(shares: Array, hidden: Array | None, caption: str) -> svg.Part:
    """Shares of the scale as a small picture, `(L, L)` pixels large, what a mask hides in grey."""
    colors = np.array(
        [tuple(bytes.fromhex(shade(n / 255)[1:])) for n in range(256)], dtype=np.uint8
    )
    pixels = colors[np.rint(np.clip(shares, 0, 1) * 255).astype(int)]
    if hidden is not None:
        pixels[hidden] = _VEIL
    data = base64.b64encode(png(pixels)).decode("ascii")
    return svg.Part(
        [
            svg.text(0, 12, caption, weight="bold"),
            f'<image y="20" width="{_TILE:g}" height="{_TILE:g}" preserveAspectRatio="none" '
            f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>',
            f'<rect y="20" width="{_TILE:g}" height="{_TILE:g}" fill="none" stroke="{svg.LINE}"/>',
        ],
        _TILE,
        _TILE + 20,
    )


def replay(
    run: str | os.PathLike[str] | Mapping[int, Model] | Mapping[int, Trace],
    text: str | Sequence[int] | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    theme: str = "auto",
    stretch: bool = False,
) -> ReplayView:
    """What the heads of a model look at in a text, at each snapshot of its training.

    Each head is scored at each step by the weight that it puts on the previous token, on the next
    token, on the first token and, where the text repeats tokens, on the token after an earlier copy
    (induction). Unless `layer` and `head` say otherwise, the head is the one of which one of these
    rose most from the first snapshot to the last; ties go to the lowest layer, then head.

    Args:
        run: the folder of a run of `qkv train`, with the models in `snapshots/step-00000100/` and
            so on and the losses in `metrics.jsonl`; or a mapping from step to model, or to trace
            of one text.
        text: the text, or the ids of its tokens; left out where there are traces.
        layer: the layer to show first, from 0.
        head: the head to show first, from 0.
        theme: of the page: "light", "dark", or "auto" for what the reader's system prefers.
        stretch: whether scales end at the largest weight that is shown, and not at 1.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: there are no snapshots, they are not of one run, or the text is missing, empty
            or too long for a page.
        IndexError: there is no such layer or head; the message names the range.

    >>> import qkv
    >>> models = {step: qkv.models.random_model("the cat sat", seed=step) for step in (0, 10, 20)}
    >>> view = replay(models, "the cat sat")
    >>> view.steps, view.weights.shape
    ([0, 10, 20], (3, 3, 3))
    """
    check_theme(theme, "replay")
    found = replay_of(read_run(run), text)
    return ReplayView(found, *choose(found, layer, head), theme, stretch)
