"""Static figures: the grid of weights, the words before and after, similarity by layer."""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.arrays import Array
from qkv.extras import need
from qkv.files import replacing
from qkv.see.analysis import findings
from qkv.see.analysis.plane import fit_plane
from qkv.see.draw.colours import THEMES, ink, shade, signed_end
from qkv.see.draw.terminal import strongest_block
from qkv.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from qkv.see.analysis.heads import Heads
    from qkv.see.analysis.selection import Head
    from qkv.see.views.image_view import ImageView
    from qkv.see.views.replay import ReplayView
    from qkv.see.views.runs import RunsView
    from qkv.see.views.shift import ShiftView
    from qkv.see.views.show import CompareView, ShowView, WalkView

BEFORE, AFTER, ARROW, FAINT, INK = "#1f5fbf", "#c8102e", "#9a9a9a", "#dddddd", "#1a1a1a"
MOST_LABELS = 20
MOST_ROWS = 32
_DPI = 150


def arrows_figure(original: Any, contextual: Any, tokens: Sequence[str]) -> Figure:
    """The arrows of bare vectors `(T, D)`."""
    figure = _figure(6.4, 5.6)
    draw_shift(figure.add_subplot(), original, contextual, tokens)
    return figure


def shift_figure(view: ShiftView) -> Figure:
    """The cosines of the words by layer, and their arrows."""
    parts = list(filter(None, map(words_before_and_after, view.traces)))
    before, after = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    figure = _figure(13.2, 5.6)
    turns, arrows = figure.subplots(1, 2, width_ratios=[0.7, 1])
    draw_grid(
        turns, *view.turns, top=None, of="cosine", row="each row: one word, at each layer",
        title="Cosine of each word's vector with its static one",
    )  # fmt: skip
    draw_shift(arrows, before, after, view.names, alone=view.shift.tokens)
    return figure


def show_figure(view: ShowView) -> Figure:
    """The grid of the head that is shown, and the arrows beside it."""
    words = words_before_and_after(view.trace, view.shown)
    figure = _figure(13.2 if words else 6.8, 6.0)
    grid, *rest = figure.subplots(1, 2 if words else 1, squeeze=False)[0]
    draw_block(grid, view.shown, view.head, title=view.sentence, top=view.top)
    if words:
        draw_shift(rest[0], *words)
    return figure


def head_figure(heads: Heads, head: Head, top: float) -> Figure:
    """The grid of one head."""
    from qkv.see.views.one_head import link_in_words

    figure = _figure(6.8, 6.0)
    draw_block(figure.add_subplot(), heads, head, title=link_in_words(heads, head), top=top)
    return figure


def runs_figure(view: RunsView) -> Figure:
    """The grids of both runs on one scale, and how far each token's output moved."""
    figure = _figure(19.0, 6.0)
    *grids, bars = figure.subplots(1, 3)
    parts = view.heads
    for axes, part, name in zip(grids, parts, view.names, strict=True):
        title = f"{name}: layer {view.head.layer}, head {view.head.head}"
        draw_block(axes, part, view.head, title=title, top=view.top)
    shown = view.changes[:MOST_LABELS][::-1]
    places = range(len(shown))
    bars.barh(places, [change.distance for change in shown], color=BEFORE)
    bars.set_yticks(places, drawable([view.tokens[change.token] for change in shown]))
    for label in bars.get_yticklabels():
        _plain(label, 9)
    bars.set_xlabel("distance between the two vectors after the last layer", fontsize=9)
    _plain(bars.set_title("How far each token's output moved"), 11)
    for side in ("top", "right"):
        bars.spines[side].set_visible(False)
    return figure


def compare_figure(view: CompareView) -> Figure:
    """Both grids on one scale; of vectors all words in one plane, and the similarity by layer."""
    known = len(view.similarity) > 0
    found = (words_before_and_after(side.trace, side.shown) for side in view.sides)
    parts = [part for part in found if part is not None]
    figure = _figure(13.2, 12.0 if known else 6.0)
    grids, *below = figure.subplots(2 if known else 1, 2, squeeze=False)
    where = f"layer {view.head.layer}, head {view.head.head}"
    for name, axes, side in zip("AB", grids, view.sides, strict=True):
        key, weight = side.most(view.head)
        title = f"{name}: {view.word} looks at {key}: {weight:.2f} ({where})"
        draw_block(axes, side.shown, view.head, title=title, top=view.top, outlined=side.rows)
    if not known:
        return figure
    ((shift, curve),) = below
    draw_similarity(curve, view.similarity, view.word)
    if len(parts) < len(view.sides):
        shift.remove()
        return figure
    before, after = (np.concatenate([part[which] for part in parts]) for which in (0, 1))
    alone = [token for part in parts for token in part[2]]
    inside = [
        f"{token} ({name})" if token == view.word else token
        for name, part in zip("AB", parts, strict=True)
        for token in part[2]
    ]
    draw_shift(shift, before, after, inside, alone=alone)
    return figure


def walk_figure(view: WalkView) -> Figure:
    """The scaled scores, the weights they become, and the words before and after."""
    walk = view.walk
    trace, names = walk.trace, (walk.tokens, walk.keys)
    words = words_before_and_after(trace)
    figure = _figure(19.0 if words else 13.2, 6.0)
    panels = figure.subplots(1, 3 if words else 2)
    scores = next(step for step in reversed(walk.steps) if step.name in ("masked", "scaled"))
    weights = next(step for step in walk.steps if step.name == "weights")
    own = walk.keys is walk.tokens
    score = findings.between_content(trace, weights.values) if own else weights.values
    where = f"layer {walk.layer}, head {walk.head}"
    draw_grid(
        panels[0], scores.values, *names, hidden=scores.hidden, score=score,
        title=f"Scaled scores of {where}", top=None, of="score",
        row="each row: one query, every key",
    )  # fmt: skip
    draw_grid(
        panels[1], weights.values, *names, hidden=scores.hidden, score=score,
        title=f"Softmax of each row: the weights of {where}", top=view.top,
    )  # fmt: skip
    if words:
        draw_shift(panels[2], *words)
    return figure


def image_figure(view: ImageView) -> Figure:
    """The image, what one head looks at in it, and each head of the layer."""
    from matplotlib.patches import Rectangle

    dark = view.theme == "dark"
    ink = "#ececec" if dark else "#1a1a1a"
    count = len(view.weights)
    across = view.across
    down = -(-count // across) if count > 1 else 0
    shape = view.image.shape[0] / view.image.shape[1]
    wide = 10.0
    small = (wide - 0.4) / across * shape
    figure = _figure(wide, 1.1 + 4.4 * shape + down * (small + 0.25))
    figure.set_facecolor("#161616" if dark else "white")
    heights = [0.7 + 4.6 * shape, *([down * (small + 0.25)] if down else [])]
    top, *rest = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part in (top, *rest):
        part.set_facecolor(figure.get_facecolor())
    _plain(top.suptitle(_in_lines(view.sentence, 78), color=ink), 13)
    left, right = top.subplots(1, 2)
    left.imshow(view.image)
    _plain(left.set_title("the image", color=ink), 10)
    rows, columns = view.grid
    # in patches, so that a frame round one needs no arithmetic
    right.imshow(view.shown(view.head), extent=(0, columns, rows, 0), aspect=shape * columns / rows)
    for place, color in view.frames:
        if place is not None:
            right.add_patch(
                Rectangle(place[::-1], 1, 1, fill=False, edgecolor=color, linewidth=2.2)
            )
    _plain(right.set_title(view.caption, color=ink), 10)
    _plain(top.supxlabel(_in_lines(view.note, 110), color=ink), 9)
    panels = [axes for part in rest for axes in part.subplots(down, across, squeeze=False).flat]
    for axes in (left, right, *panels):
        axes.set_axis_off()
    left.add_patch(Rectangle((0, 0), 1, 1, transform=left.transAxes, fill=False, edgecolor=ARROW))
    for head, axes in zip(range(count), panels, strict=False):
        axes.imshow(view.shown(head, view.image.shape[1]))
        _plain(axes.set_title(f"head {head}", color=ink, pad=3), 9)
        if head == view.head:
            axes.add_patch(
                Rectangle(
                    (0, 0), 1, 1, transform=axes.transAxes, fill=False, edgecolor=AFTER,
                    linewidth=2.2, clip_on=False,
                )
            )  # fmt: skip
    return figure


def replay_figure(view: ReplayView) -> Figure:
    """A strip of the head's weights through training, its scores, and the loss."""
    replay, strip = view.replay, view.strip
    figure = _figure(13.2, 6.2)
    _plain(figure.suptitle(_in_lines(view.sentence, 110)), 13)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[0.95, 1.0])[:, 0]
    panels = above.subplots(1, len(strip), squeeze=False)[0]
    patterns, hidden = replay.patterns(view.head), replay.hidden_of(view.head)
    names = drawable(replay.first.tokens)
    image = None
    for axes, place in zip(panels, strip, strict=True):
        image = axes.imshow(patterns[place], cmap=_cmap(0.0), vmin=0.0, vmax=view.top)
        if hidden is not None and hidden.any():
            veil = np.ma.masked_where(~hidden, np.ones(hidden.shape))
            axes.imshow(veil, cmap="Greys", vmin=-4.0, vmax=16.0)
        _bounded(axes)
        axes.set_xticks([])
        axes.set_yticks([])
        _plain(axes.set_title(f"step {replay.steps[replay.shown[place]]:,}", pad=4), 10)
    if len(names) <= MOST_ROWS:
        panels[0].tick_params(length=0)
        panels[0].set_yticks(range(len(names)), names)
        for label in panels[0].get_yticklabels():
            _plain(label, min(9.0, 130 / len(names)))
    assert image is not None
    bar = above.colorbar(image, ax=list(panels), fraction=0.012, pad=0.01, shrink=0.8)
    bar.set_label(_scale_name("weight", view.top), fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_edgecolor(ARROW)
    charts = below.subplots(1, 2 if replay.losses else 1, squeeze=False)[0]
    knots = replay.knots

    def at(points: Sequence[tuple[float, float]]) -> tuple[Any, Any]:
        steps, values = zip(*points, strict=True)
        return np.interp(steps, knots, range(len(knots))), values

    charts[0].set_title(f"Scores of layer {view.head.layer}, head {view.head.head}", fontsize=11)
    for line in view.lines:
        style = "-" if not line.dash else (0, [float(x) / 2 for x in line.dash.split()])
        charts[0].plot(
            *at(line.points), label=line.name, color=line.color, linewidth=2.2,
            linestyle=style, marker="o", markersize=3,
        )  # fmt: skip
    charts[0].set_ylim(-0.02, 1.02)
    charts[0].legend(fontsize=8, frameon=False, loc="best")
    if replay.losses:
        charts[1].plot(*at(replay.losses), color="#1a1a1a", linewidth=1.4)
        charts[1].set_title("Loss", fontsize=11)
        charts[1].set_xlim(charts[0].get_xlim())
    places = range(len(knots))[:: -max(1, -(-len(knots) // 12))]
    for axes in charts:
        axes.set_xticks(places, [f"{knots[place]:,}" for place in places])
        axes.set_xlabel("training step", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def _in_lines(content: str, width: int) -> str:
    return "\n".join(textwrap.wrap(drawable([content])[0], width))


def draw_similarity(axes: Axes, similarity: Array, word: str) -> None:
    """The cosine between one word in two texts, at the embeddings and after each layer."""
    places = range(len(similarity))
    axes.plot(places, similarity, color=BEFORE, marker="o", linewidth=2)
    for place, value in zip(places, similarity.tolist(), strict=True):
        axes.annotate(
            f"{value:.3f}", (place, value), xytext=(0, 8), textcoords="offset points",
            ha="center", fontsize=9,
        )  # fmt: skip
    names = ["embeddings", *(f"after\nlayer {layer}" for layer in range(len(similarity) - 1))]
    axes.set_xticks(places, names, fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(min(0.0, float(similarity.min()) - 0.1), 1.08)
    axes.set_ylabel("cosine (1: the same direction)", fontsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _plain(axes.set_title(f"How alike {drawable([word])[0]} is in A and in B"), 11)


def words_before_and_after(
    trace: Trace, shown: Heads | None = None
) -> tuple[Array, Array, list[str]] | None:
    """Static and contextual vectors `(n, D)` and tokens of a text, special ones left out.

    Where words are shown in place of tokens, the means of their vectors. None where there are no
    such vectors, or where they are not finite.
    """
    last = findings.last_state(trace)
    if "embed" not in trace or last is None or trace["embed"].shape != last.shape:
        return None
    of, spans = (trace, None) if shown is None else (shown, shown.spans)
    kept = [i for i, special in enumerate(of.special) if not special] or range(len(of.tokens))
    before, after = (
        findings.mean_vectors(state[0], spans)[kept] for state in (trace["embed"], last)
    )
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        return None
    return before, after, [of.tokens[i] for i in kept]


def draw_block(
    axes: Axes,
    heads: Heads,
    head: Head,
    *,
    title: str,
    top: float,
    outlined: Sequence[int] = (),
) -> None:
    """One head's weights as a grid; of a long text those that were kept."""
    if not heads.weights:
        block = heads.block(head.layer, head.head, MOST_ROWS)
        draw_grid(
            axes,
            np.nan_to_num(block.values),
            block.rows,
            block.columns,
            hidden=np.isnan(block.values),
            title=f"{title}\n{len(block.rows)} of {len(heads.tokens)} tokens; hatched: not kept",
            top=top,
            outlined=[row for row, place in enumerate(block.places) if place in outlined],
        )
        return
    weights = heads.weights[heads.layers.index(head.layer)][head.head]
    draw_grid(
        axes,
        weights,
        heads.query_names,
        heads.key_names,
        hidden=heads.hidden(head.layer, head.head),
        score=heads.between_content(weights),
        title=title,
        top=top,
        outlined=outlined,
    )


def draw_grid(
    axes: Axes,
    weights: Array,
    tokens: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    hidden: Array | None = None,
    score: Array | None = None,
    title: str = "",
    top: float | None = 1.0,
    outlined: Iterable[int] = (),
    of: str = "weight",
    row: str = "each row: what this token looks at",
) -> None:
    """Weights or scores `(T, T)` as a grid of colours with a scale; what a mask hides is hatched.

    The columns stand for `keys`, where they are other tokens `(L, S)`. Of more than 32 tokens those
    with the largest `score` are shown, and the title says so. The scale goes from 0 to `top`; where
    that is None it is as long as the numbers need, with 0 in its middle if some are negative.
    `outlined` are rows to put a frame round; `of` and `row` are what scale and rows are called.
    """
    score = weights if score is None else score
    rows, columns = strongest_block(score, MOST_ROWS, MOST_ROWS)
    shown = weights[np.ix_(rows, columns)]
    least, end = signed_end(weights) if top is None else (0.0, top)
    image = axes.imshow(shown, cmap=_cmap(least), vmin=least, vmax=end, aspect="equal")
    n = max(len(rows), len(columns))
    size = max(5.5, min(10.0, 130 / n))
    over = tokens if keys is None else keys
    names = drawable([over[j] for j in columns]), drawable([tokens[i] for i in rows])
    # first, since the labels above are other objects than those below
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_xticks(range(len(columns)), names[0], rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), names[1])
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        _plain(label, size)
    _bounded(axes)
    _cells(axes, shown, None if hidden is None else hidden[np.ix_(rows, columns)], end, n)
    for i in outlined:
        if i in rows:
            _frame(axes, rows.index(i), len(columns))
    figure = axes.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.set_label(_scale_name(of, top), fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_edgecolor(ARROW)
    most = max(len(tokens), len(over))
    note = "" if n == most else f"\nthe {n} of {most} tokens with the largest weights"
    _plain(axes.set_title(drawable([title])[0] + note, pad=10), 11)
    axes.set_ylabel(row, fontsize=9)


def draw_shift(
    axes: Axes,
    original: Any,
    contextual: Any,
    tokens: Sequence[str],
    *,
    alone: Sequence[str] | None = None,
) -> None:
    """Arrows from before to after, with labels that do not overlap.

    `alone` names the points before, where they are not to be called by `tokens`.
    """
    plane = fit_plane(original, contextual, call="plot_shift")
    before, after = plane.original, plane.contextual
    if len(tokens) != len(before):
        raise ValueError(
            f"plot_shift: there are {len(before)} vectors and {len(tokens)} tokens: give one each"
        )
    named = named_points(before, after, tokens)
    faint = np.ones(len(tokens), dtype=bool)
    faint[named] = False
    for i, (start, end) in enumerate(zip(before, after, strict=True)):
        axes.annotate(
            "",
            xy=(end[0], end[1]),
            xytext=(start[0], start[1]),
            arrowprops={
                "arrowstyle": "-" if faint[i] else "-|>",
                "color": FAINT if faint[i] else ARROW,
                "lw": 0.5 if faint[i] else 1.0,
                "shrinkA": 3,
                "shrinkB": 4,
            },
            zorder=0 if faint[i] else 1,
        )
    for points, color, meaning in (
        (before, BEFORE, "before: the word alone"),
        (after, AFTER, "after: in its sentence"),
    ):
        x, y = points.T
        axes.scatter(x[~faint], y[~faint], s=26, color=color, zorder=3, label=meaning)
        if faint.any():
            axes.scatter(x[faint], y[faint], s=6, color=color, alpha=0.4, zorder=2)
    if faint.any():
        axes.set_title(f"named: {len(named)} of {len(tokens)}", fontsize=9, loc="left", pad=28)
    for axis, name, share in zip("xy", ("PC 1", "PC 2"), plane.explained, strict=True):
        label = f"{name} ({share:.0%} of the variance; each set centred first)"
        getattr(axes, f"set_{axis}label")(label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.margins(0.14)
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9, frameon=False)
    place_labels(axes, before, after, tokens, alone or tokens)


def place_labels(
    axes: Axes, before: Array, after: Array, tokens: Sequence[str], alone: Sequence[str]
) -> list[Text]:
    """Name the points, each label where it overlaps no label and as few points as may be.

    Greedy: a label goes to the nearest free place round its point, with a thin line where that is
    far. The end of the arrows that lies wider comes first. Points that coincide and have one name
    are named once.
    """
    from matplotlib.patheffects import withStroke

    figure = axes.get_figure(root=True)
    assert figure is not None
    for _ in range(2):  # the layout has to stand before anything is measured, and settles in two
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
    axes.autoscale(False)  # nothing drawn from here on may move the points
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # Agg's, see _figure_class
    to_pixels = axes.transData
    along = np.linspace(0, 1, 24)[:, None, None]  # points on the arrows, both ends among them
    points = to_pixels.transform((before + along * (after - before)).reshape(-1, 2))
    area = axes.get_window_extent(renderer)
    named = named_points(before, after, tokens)
    ends = [(before, BEFORE, alone), (after, AFTER, tokens)]
    ends.sort(key=lambda end: -float(end[0].std()))  # the end that lies wider is easier to read
    wanted = []
    for place, color, names in ends:
        near = np.round(place / (np.ptp(place) or 1), 4).tolist()  # equal but for rounding
        spots = {(names[i], *near[i]): i for i in reversed(named)}  # one name a spot
        wanted += [(place[i], color, names[i]) for i in sorted(spots.values())]
    taken: list[tuple[float, float, float, float]] = []
    labels = []
    pixel = figure.dpi / 72
    for point, color, token in wanted:
        text = axes.text(point[0], point[1], drawable([token])[0], color=color, zorder=4)
        _plain(text, 9)
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
        box = text.get_window_extent(renderer)
        width, height = box.width + 2 * pixel, box.height + 1 * pixel
        x, y = to_pixels.transform(point)
        best = _free_place(x, y, width, height, pixel, taken, points, area.bounds)
        if best is None:
            text.remove()
            continue
        box_ends = (best[0], best[1], best[0] + width, best[1] + height)
        taken.append(box_ends)
        nearest = np.clip((x, y), box_ends[:2], box_ends[2:])
        if math.dist((x, y), nearest) > 14 * pixel:  # too far to be told without a line
            line = to_pixels.inverted().transform([(x, y), nearest])
            axes.plot(*line.T, color=color, linewidth=0.5, alpha=0.6, zorder=2)
        corner = to_pixels.inverted().transform((best[0] + pixel, best[1]))
        text.set_position((corner[0], corner[1]))
        text.set_verticalalignment("bottom")
        text.set_horizontalalignment("left")
        labels.append(text)
    return labels


def named_points(before: Array, after: Array, tokens: Sequence[str]) -> list[int]:
    """Which points to name: all up to 20, else those that moved furthest, each word once."""
    order = np.argsort(-np.linalg.norm(after - before, axis=1), kind="stable").tolist()
    if len(order) > MOST_LABELS:
        first: dict[str, int] = {}
        for i in order:
            first.setdefault(tokens[i], i)
        order = list(first.values())[:MOST_LABELS]
    return sorted(order)


def drawable(texts: Sequence[str]) -> list[str]:
    r"""Tokens as a figure can draw them: a box for what no installed font has.

    >>> drawable(["river", "a\nb"])
    ['river', 'a□b']
    """
    known = [_glyphs(path) for _, path in _fonts("".join(texts))]
    return [
        "".join(
            mark if mark.isprintable() and any(ord(mark) in font for font in known) else "□"
            for mark in text
        )
        for text in texts
    ]


def write_png(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to a PNG file, whole or not at all."""
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=_DPI)


def _figure(width: float, height: float) -> Figure:
    need("matplotlib", "plot")
    figure = _figure_class()(figsize=(width, height), dpi=_DPI, layout="constrained")
    figure.set_facecolor("white")
    return figure


@lru_cache(maxsize=1)
def _figure_class() -> type[Figure]:
    """A figure that a notebook shows without pyplot, drawn by Agg wherever it is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            FigureCanvasAgg(self)

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return Picture


def _plain(text: Text, size: float) -> None:
    """Set a size and the fonts that know these letters; `$` is a letter and not mathematics."""
    text.set_parse_math(False)
    text.set_fontsize(size)
    text.set_fontfamily([name for name, _ in _fonts(text.get_text())])


@lru_cache(maxsize=1024)
def _fonts(text: str) -> tuple[tuple[str, str], ...]:
    """The standard font, then one installed font after the other that adds letters to it."""
    from matplotlib import font_manager

    standard = str(font_manager.findfont("DejaVu Sans"))
    fonts = [("DejaVu Sans", standard)]
    missing = {ord(mark) for mark in text} - _glyphs(standard)
    if missing:
        for entry in sorted(font_manager.fontManager.ttflist, key=_reluctance):
            found = missing & _glyphs(entry.fname)
            if found and entry.style == "normal":
                fonts.append((entry.name, str(entry.fname)))
                missing -= found
            if not missing:
                break
    return tuple(fonts)


def _reluctance(entry: Any) -> tuple[bool, str]:
    """By name, but a font that draws every character as some box comes last."""
    return "last resort" in entry.name.lower(), entry.name


@lru_cache(maxsize=256)
def _glyphs(path: str) -> frozenset[int]:
    """The characters that a font file draws."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # colour fonts and collections that the library cannot read
        return frozenset()


@lru_cache(maxsize=2)
def _cmap(least: float) -> Colormap:
    """The scale from the white of a figure on; for a scale that begins below 0, both ways."""
    from matplotlib.colors import LinearSegmentedColormap

    theme = THEMES["light"]
    stops = [*(theme.less[:0:-1] if least < 0 else ()), *theme.more]
    return LinearSegmentedColormap.from_list("qkv", stops, N=2001)


def _scale_name(of: str, top: float | None) -> str:
    return of if top in (None, 1.0) else f"{of}, stretched"


def _bounded(axes: Axes) -> None:
    """A thin line round a grid, whose empty cells are as white as the figure."""
    for spine in axes.spines.values():
        spine.set_color(ARROW)
        spine.set_linewidth(0.6)


def _cells(axes: Axes, shown: Array, hidden: Array | None, top: float, n: int) -> None:
    """Hatch what is hidden; write the numbers where there is room for them."""
    from matplotlib.patches import Rectangle

    for i, j in np.ndindex(*shown.shape):
        if hidden is not None and hidden[i, j]:
            axes.add_patch(
                Rectangle(
                    (j - 0.5, i - 0.5), 1, 1, facecolor="white", edgecolor="#b5b5b5",
                    hatch="////" if n <= 16 else "//", linewidth=0,
                )
            )  # fmt: skip
        elif n <= 14:
            text = axes.text(j, i, f"{shown[i, j]:.2f}", ha="center", va="center")
            text.set_fontsize(max(5.5, min(9.0, 88 / n)))
            text.set_color(ink(shade(float(shown[i, j]) / top)))


def _frame(axes: Axes, row: int, columns: int) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle(
            (-0.5, row - 0.5), columns, 1, fill=False, edgecolor=INK, linewidth=1.6, clip_on=False
        )
    )


def _free_place(
    x: float,
    y: float,
    width: float,
    height: float,
    pixel: float,
    taken: Sequence[tuple[float, float, float, float]],
    points: Array,
    area: tuple[float, float, float, float],
) -> tuple[float, float] | None:
    """The lower left corner of the nearest free box round a point; None where there is none.

    A box must not touch a label, and near the point it must not cover a point either.
    """
    left, bottom, right, high = area[0], area[1], area[0] + area[2], area[1] + area[3]
    for ring in range(100):
        radius = (5 + 4 * ring) * pixel
        for step in range(16):
            # right, left, above, below first: sixteenths of a turn in that order
            angle = 2 * math.pi * (0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 5, 11, 13)[step] / 16
            towards_x, towards_y = math.cos(angle), math.sin(angle)
            x0 = x + radius * towards_x + (towards_x - 1) / 2 * width
            y0 = y + radius * towards_y + (towards_y - 1) / 2 * height
            x1, y1 = x0 + width, y0 + height
            if x0 < left or y0 < bottom or x1 > right or y1 > high:
                continue
            if any(x0 < b[2] and b[0] < x1 and y0 < b[3] and b[1] < y1 for b in taken):
                continue
            margin = 2 * pixel
            inside = (
                (points[:, 0] > x0 - margin)
                & (points[:, 0] < x1 + margin)
                & (points[:, 1] > y0 - margin)
                & (points[:, 1] < y1 + margin)
            )
            if inside.any() and ring < 12:
                continue
            return x0, y0
    return None
