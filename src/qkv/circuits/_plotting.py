"""Draw the results of `qkv.circuits`: `plot`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, value_error
from qkv.arrays import Array, quote
from qkv.circuits._plot_reader import Axis, Drawing, name_axes, read, read_mapping
from qkv.circuits._plot_view import PlotView, graph_view, in_rows, is_graph
from qkv.circuits._scanning import HeadScan, Scan
from qkv.see.analysis.measures import strongest
from qkv.see.draw import panels
from qkv.see.draw.colours import THEMES, scale_end, signed_end
from qkv.see.draw.panels import PICTURE, TERMINAL, ChartLine, Column, Panel, Passage
from qkv.see.page.payload import check_theme

MOST_BARS, MOST_MAPS = 48, 48
Scale = tuple[float, float]  # The numbers at both ends of a colour scale.
_SHARES = ("weight", "mean weight", "probability")  # Numbers with a colour scale from 0 to 1.
_WHOLE = {"embed", "heads", "mlp", "bias"}  # The parts whose contributions sum to the logit.


@public_call("plot")
def plot(
    result: Any,
    *,
    kind: str = "auto",
    axes: Sequence[str] | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
    of: str = "number",
    theme: str = "auto",
    stretch: bool = False,
) -> PlotView:
    """Draw a result of `qkv.circuits`.

    The axes of the result determine the picture:

    - One axis: a bar for each number.
    - Two axes: a heat map of the numbers.
    - Three axes: a small heat map for each index of the first axis, and a large heat map for the
      index with the largest effect (for `rollout`, the last layer).
    - Four axes: the axes of layers and heads are joined; the result is drawn as for three axes.
    - Logits (`logit_lens`): the most probable token of each position, with its probability.
    - Vectors (`integrated_gradients`): a number for each token, the sum of its vector.
    - A dict (`head_scores`, `attribute_logits`) or a `HeadScan`: all of its results.
    - A `Scan`: its page of cards (`Scan.cards`).
    - A graph (`edges`, `discover`): nodes in layers from bottom to top, and edges whose widths show
      their scores. Only the 150 strongest edges are drawn; the view says how many edges the graph
      has.

    The colour scale of weights and probabilities runs from 0 to 1. The scales of all other numbers
    run from 0 to the largest number, with one exception: for `patch` and `attribution_patch` with
    `normalize=False`, the scale starts at the metric of the corrupted text. Values below the start
    of a scale are red.

    `kind` chooses a different picture:

    - `kind="lines"`: a line for each index of the first axis and for each entry of a dict; the last
      axis (layers, steps, positions) runs from left to right. Around a mean over pairs, a band
      shows one standard deviation.
    - `kind="scatter"`: a named point for each index of two results, `{"one": a, "other": b}`, or
      for each complex number, such as an eigenvalue.
    - `kind="tokens"`: the labels of the last axis as text, coloured by value: blue above 0, red
      below 0.
    - `kind="top"`: for each row, the labels of the last axis with the 10 largest numbers, such as
      the top tokens of each direction.

    Args:
        result: a result of `qkv.circuits`, an `xarray.DataArray`, an array with `axes=`, or a dict
            of such results, which are drawn side by side.
        kind: "auto", "lines", "scatter", "tokens" or "top".
        axes: a name for each axis of an array without names, such as ("layer", "head").
        words: labels for the indices of these axes, keyed by the name of the axis.
        of: the meaning of the numbers of an array with `axes=`, such as "weight".
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        stretch: whether the colour scale of weights ends at the largest weight instead of at 1.

    Returns:
        A view for notebooks and terminals, with export methods such as `to_html` and `to_png`.

    Raises:
        TypeError: `result` has an unsupported type, or is an array without named axes.
        ValueError: `result` is empty; `kind` or `theme` is unknown, or does not fit the result;
            `axes` or `words` do not fit the array; or an edge joins a node that is missing from the
            graph.

    >>> import qkv
    >>> from qkv import circuits
    >>> view = circuits.plot(circuits.copying_scores(qkv.load("books-decoder")))
    >>> view.to_dict()["results"][0]["axes"]
    ['layer', 'head']
    """
    check_theme(theme)
    if axes is not None:
        result = name_axes(result, axes, words, of)
    if kind != "auto" and (is_graph(result) or isinstance(result, Scan)):
        name = type(result).__name__
        raise value_error(
            f"`kind` is {quote(kind)}, but a {name} has only one kind of plot; omit `kind`"
        )
    if is_graph(result):
        return replace(graph_view(result), theme=theme)
    if isinstance(result, Scan):
        return result.cards(theme=theme)
    if isinstance(result, HeadScan):
        result = result.scores
    raw, many = kind != "auto", isinstance(result, Mapping)
    parts = read_mapping(result, raw=raw) if many else [read(result, raw=raw)]
    if kind != "scatter" and any(np.iscomplexobj(part.values) for part in parts):
        raise value_error(
            "the numbers of `result` are complex; pass kind='scatter', or pass the absolute values"
        )
    facts = [part.sentence for part in parts if part.values.ndim and len(parts) > 1]
    facts += [part.note for part in parts if part.note]
    said = parts[0].sentence if len(parts) == 1 else _together(parts)
    numbers = {"results": [part.to_dict() for part in parts]}
    if raw:
        rows, more = draw_kind(kind, parts)
        facts += more
    else:
        rows = _rows(parts, stretch)
    return PlotView(said, facts, rows, numbers, theme=theme, stretch=stretch)


def _together(parts: Sequence[Drawing]) -> str:
    """Return a sentence about several results: the sum of all contributions, or names and axes."""
    if {part.title for part in parts} >= _WHOLE and parts[0].of == "contribution":
        # the neurons' contributions are part of the MLPs' contributions
        numbers = np.array([part.values.sum() for part in parts if part.title != "neurons"])
        return f"The contributions sum to {panels.number_format(numbers)(numbers.sum())}."
    axes = " and ".join(axis.kind for axis in parts[0].axes)
    return ", ".join(part.title for part in parts) + (f", by {axes}." if axes else ".")


def _rows(parts: Sequence[Drawing], stretch: bool) -> list[list[panels.Panel]]:
    """Return rows of panels.

    Results with at most one axis become bars, and one chart contains the bars of all such results
    of the same `kind`.
    """
    scales = {}
    for kind in dict.fromkeys(part.kind for part in parts):
        values = np.concatenate([part.values.ravel() for part in parts if part.kind == kind])
        meaning, ground = kind
        share = meaning in _SHARES and not (values < 0).any()
        scales[kind] = (0.0, scale_end([values], stretch)) if share else signed_end(values, ground)
    maps: list[panels.Panel] = []
    rows: list[list[panels.Panel]] = []
    for part in parts:
        if part.values.ndim == 2:
            maps.append(_heat_map(part, scales[part.kind]))
        elif part.values.ndim > 2:
            rows += _small_maps(part, scales[part.kind])
    rows = [*in_rows(maps, 3), *rows]
    for kind, scale in scales.items():
        flat = [part for part in parts if part.values.ndim < 2 and part.kind == kind]
        if flat:
            rows.append(_bars(flat, scale, alone=len(parts) == 1))
    return rows


def _heat_map(part: Drawing, scale: Scale, **options: Any) -> panels.HeatMap:
    rows, columns = part.axes
    return panels.HeatMap(
        title=part.title,
        explained=f"rows: {rows.kind}, columns: {columns.kind}",
        values=part.values,
        rows=rows.names,
        columns=columns.names,
        top=scale[1] if part.of in _SHARES and scale[0] == 0 else None,
        ground=part.ground,
        scale=scale,
        of=part.of,
        missing="no number",
        words=None if part.tokens is None else part.tokens.tolist(),
        **options,
    )


def _small_maps(part: Drawing, scale: Scale) -> list[list[panels.Panel]]:
    """Return a small heat map for each index of the first axis, and a large map for one index."""
    count = len(part.values)
    maps = [part.at(number) for number in range(count)]
    # the last layer's matrix covers the whole model
    is_rollout = [axis.name for axis in part.axes[:2]] == ["layer", "query"]
    chosen = maps[count - 1 if is_rollout else part.strongest[0]]
    large = replace(chosen, title=f"{part.title}: {chosen.title}")
    best = strongest(np.array([sizes.max() for sizes in part.sizes]), MOST_MAPS)
    tiles: list[panels.Panel] = [
        _heat_map(replace(maps[number], tokens=None), scale, compact=True, shown_in=panels.PICTURE)
        for number in best
    ]
    form = panels.number_format(part.values)
    table = panels.Table(
        title=f"Strongest in each {part.axes[0].kind}",
        names=[maps[number].title for number in best],
        columns=[
            panels.Column(part.of, [form(float(maps[n].values[maps[n].strongest])) for n in best]),
            panels.Column("at", [maps[n].label(maps[n].strongest) for n in best], left=True),
        ],
    )
    said = "The small maps have the same rows, columns and colours as the large map."
    if len(best) < count:
        said += f" Shown: the {len(best)} of {count} maps with the largest numbers."
    return [
        [_heat_map(large, scale)],
        *in_rows(tiles, 6),
        [table, panels.Prose(text=said, shown_in=panels.PICTURE)],
    ]


def _bars(parts: Sequence[Drawing], scale: Scale, *, alone: bool) -> list[panels.Panel]:
    """Return a bar chart of all numbers in `parts`; each part's array has at most one axis."""
    values = np.concatenate([part.values.ravel() for part in parts])
    names = [
        name if alone else f"{part.title} {name}".strip()
        for part in parts
        for name in (part.axes[0].names if part.axes else [""])
    ]
    sizes = np.concatenate([part.sizes.ravel() for part in parts])
    best = strongest(sizes, MOST_BARS)
    first = parts[0]
    bars = panels.Bars(
        title=first.title if alone else first.of,
        explained=first.of if alone else "",
        names=[names[number] for number in best],
        values=[float(values[number]) for number in best],
        form=panels.number_spec(values),
        top=scale[1] - first.ground,
        ground=first.ground,
    )
    if len(best) == len(values):
        return [bars]
    return [bars, panels.Prose(text=f"Shown: the {len(best)} largest of {len(values)} numbers.")]


MOST_LINES, MOST_LABELS, MOST_PASSAGES, MOST_WORDS = 6, 24, 24, 10
_MOST_ROWS = 24  # the maximum number of rows of a table in a terminal
Drawn = tuple[list[list[Panel]], list[str]]  # rows of panels, and sentences about them


def draw_kind(kind: str, parts: Sequence[Drawing]) -> Drawn:
    """Draw a picture of this kind; return its rows of panels, and sentences about them."""
    if kind not in KINDS:
        raise value_error(f"`kind` is {quote(kind)}; choose among auto, {', '.join(KINDS)}")
    return KINDS[kind](parts)


def _draw_lines(parts: Sequence[Drawing]) -> Drawn:
    """Draw a line for each index of the first axis, over the last axis."""
    across = _same_axis(parts, "lines")
    lines: list[tuple[str, Array, Array | None]] = []
    for part in parts:
        spread = _spread_of(part)
        rows = [()] if part.values.ndim == 1 else [(n,) for n in range(len(part.values))]
        for row in rows:
            names = [part.title] * (len(parts) > 1)
            names += [axis.label(n) for axis, n in zip(part.axes[:-1], row, strict=True)]
            lines.append(
                (", ".join(names), part.values[row], None if spread is None else spread[row])
            )
    sizes = np.array([np.nan_to_num(np.ptp(values), posinf=0.0) for _, values, _ in lines])
    drawn = [lines[number] for number in sorted(strongest(sizes, MOST_LINES))]
    ends = [values + sign * (0 if s is None else s) for _, values, s in drawn for sign in (-1, 1)]
    finite = np.concatenate(ends)[np.isfinite(np.concatenate(ends))]
    if not finite.size:
        raise value_error("`result` has no finite number to draw; pass finite numbers")
    first = parts[0]
    chart = panels.Lines(
        title=first.title if len(parts) == 1 else _meaning(parts),
        explained=_meaning(parts),
        lines=[
            ChartLine(
                list(enumerate(values.tolist())),
                name,
                THEMES["light"].lines[number],
                spread=() if spread is None else spread.tolist(),
            )
            for number, (name, values, spread) in enumerate(drawn)
        ],
        names=across.names,
        ends=(float(finite.min()), float(finite.max())),
        shown_in=PICTURE,
    )
    form = panels.number_format(finite)
    shown = strongest(np.max(np.abs([values for _, values, _ in drawn]), 0), _MOST_ROWS)
    table = panels.Table(
        title=chart.title,
        explained=_meaning(parts),
        corner=across.kind,
        names=[across.names[n] for n in sorted(shown)],
        columns=[
            Column(name or first.of, [form(float(values[n])) for n in sorted(shown)])
            for name, values, _ in drawn
        ],
        note=_left_out(len(shown), len(across.names), f"numbers along the axis {across.kind!r}"),
        shown_in=TERMINAL,
    )
    widest = "lines, those with the widest range"
    facts = [_left_out(len(drawn), len(lines), widest)] * (len(drawn) < len(lines))
    if any(spread is not None for _, _, spread in drawn):
        pairs = [part.pairs for part in parts if part.pairs is not None and len(part.pairs) > 1]
        over = " and ".join(sorted({f"{len(each):,} {each.axes[0]}s" for each in pairs}))
        facts.append(f"Shaded: the mean ± one standard deviation over {over}.")
    return [[chart], [table]], facts


def _spread_of(part: Drawing) -> Array | None:
    """Return the standard deviation over the pairs of a mean; None without pairs."""
    if part.pairs is None or len(part.pairs) < 2:
        return None
    spread = np.asarray(part.pairs, np.float64).std(0)
    return spread if spread.shape == part.values.shape else None


def _draw_scatter(parts: Sequence[Drawing]) -> Drawn:
    """Draw a point for each complex number, or for each pair of numbers of two results."""
    first = parts[0]
    if len(parts) == 1 and np.iscomplexobj(first.values):
        points = np.stack([first.values.real, first.values.imag], -1).reshape(-1, 2)
        axes = (f"{first.of}: real part", "imaginary part")
    elif len(parts) == 2 and parts[0].values.shape == parts[1].values.shape:
        points = np.stack([part.values.ravel() for part in parts], -1)
        axes = (parts[0].title, parts[1].title)
    else:
        shapes = " and ".join(f"{part.title} {part.values.shape}" for part in parts)
        raise value_error(
            f"a scatter plot shows two results of the same shape, not {shapes}; "
            'pass {"one": result, "other": result}, or complex numbers'
        )
    names = [_short_name(first, index) for index in np.ndindex(first.values.shape)]
    finite = np.isfinite(points).all(-1)
    points, names = (
        points[finite],
        [name for name, there in zip(names, finite, strict=True) if there],
    )
    if not names:
        raise value_error("`result` has no finite number to draw; pass finite numbers")
    with np.errstate(invalid="ignore", divide="ignore"):
        away = np.nan_to_num(np.abs(points - np.median(points, 0)) / np.ptp(points, 0), posinf=0.0)
    named = strongest(away.max(-1), MOST_LABELS)
    panel = panels.Points(
        title=first.title if len(parts) == 1 else _meaning(parts),
        points=points,
        names=names,
        named=named,
        axis_names=axes,
        equal=len(parts) == 1,
    )
    form = panels.number_format(points)
    table = panels.Table(
        title="The points furthest from the middle",
        names=[names[n] for n in named],
        columns=[Column(axes[k], [form(float(points[n, k])) for n in named]) for k in (0, 1)],
    )
    facts = [f"Named: {len(named)} of {len(names)} points, those furthest from the middle."]
    facts = facts * (len(named) < len(names))
    if len(first.axes) > 1 and not any(axis.words for axis in first.axes):
        facts.insert(0, f"Names: {'.'.join(axis.kind for axis in first.axes)}.")
    if len(parts) == 2 and len(names) > 2 and (np.ptp(points, 0) > 0).all():
        facts.append(f"Pearson's correlation: {np.corrcoef(points.T)[0, 1]:.3f}.")
    return [[panel], [table]], facts


def _short_name(part: Drawing, index: Sequence[int]) -> str:
    """Name an index along the first axes: "3.2" for layer 3 and head 2, "token 4", or its label."""
    places = list(zip(part.axes, index, strict=False))
    if len(places) > 1 and not any(axis.words for axis, _ in places):
        return ".".join(str(axis.numbers[n]) for axis, n in places)
    return ", ".join(axis.names[n] if axis.words else axis.label(n) for axis, n in places)


def _draw_tokens(parts: Sequence[Drawing]) -> Drawn:
    """Draw the labels of the last axis as a text, each coloured by its number."""
    top, passages = _farthest(parts), []
    for part in parts:
        for name, values in _rows_of(part, len(parts) > 1):
            shares = np.nan_to_num(values / top, posinf=0.0, neginf=0.0).tolist()
            marked = int(np.argmax(np.abs(shares)))
            passages.append(Passage(name, list(part.axes[-1].names), shares, marked))
    text = f"{_meaning(parts)}; blue: above 0, red: below 0, strongest colour: {top:.3g}"
    return _passages(passages, parts, text)


def _draw_top(parts: Sequence[Drawing]) -> Drawn:
    """List the labels with the largest numbers along the last axis, for each row."""
    top, passages = _farthest(parts), []
    form = panels.number_format(np.array([top]))
    for part in parts:
        for name, values in _rows_of(part, len(parts) > 1):
            best = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")[:MOST_WORDS]
            words = [f"{part.axes[-1].names[n]} {form(float(values[n]))}" for n in best]
            passages.append(Passage(name, words, (values[best] / top).tolist(), 0))
    axis = parts[0].axes[-1]
    most = f"the {MOST_WORDS} largest along" if len(axis.numbers) > MOST_WORDS else "along"
    text = f"{_meaning(parts)}: {most} the axis {axis.kind!r}, largest first"
    return _passages(passages, parts, text)


def _farthest(parts: Sequence[Drawing]) -> float:
    """Return the finite number with the largest absolute value; 1 if all are 0."""
    return max(map(abs, signed_end(np.concatenate([part.values.ravel() for part in parts]))))


def _rows_of(part: Drawing, named: bool) -> list[tuple[str, Array]]:
    """Return the name and the numbers of each row, along the last axis."""
    if not part.axes:
        raise value_error(f"{part.title} is one number; pass a result with an axis")
    rows = []
    for index in np.ndindex(part.values.shape[:-1]):
        names = [_short_name(part, index)] if index else []
        rows.append((", ".join([part.title] * named + names), part.values[index]))
    return rows


def _meaning(parts: Sequence[Drawing]) -> str:
    """Return the distinct meanings of the numbers."""
    return ", ".join(dict.fromkeys(part.of for part in parts))


def _passages(passages: list[Passage], parts: Sequence[Drawing], explained: str) -> Drawn:
    shown = passages[:MOST_PASSAGES]
    title = parts[0].title if len(parts) == 1 else _meaning(parts)
    facts = [_left_out(len(shown), len(passages), "rows")] * (len(shown) < len(passages))
    return [[panels.Passages(title=title, explained=explained, passages=shown)]], facts


def _same_axis(parts: Sequence[Drawing], kind: str) -> Axis:
    """Return the last axis, which all parts share."""
    if any(not 1 <= part.values.ndim <= 2 for part in parts):
        wrong = next(part for part in parts if not 1 <= part.values.ndim <= 2)
        raise value_error(
            f"{kind} need one or two axes, but {wrong.title} has {wrong.values.ndim}; "
            "choose one index of each further axis, or average over these axes"
        )
    axes = [part.axes[-1] for part in parts]
    if len({(axis.name, len(axis.numbers)) for axis in axes}) > 1:
        sizes = ", ".join(f"{axis.kind} ({len(axis.numbers)})" for axis in axes)
        raise value_error(
            f"{kind} of several results need the same axis, but their axes are "
            f"{sizes}; pass one result per call"
        )
    return axes[0]


def _left_out(shown: int, count: int, unit: str) -> str:
    return "" if shown == count else f"Shown: {shown} of {count:,} {unit}."


KINDS: Mapping[str, Callable[[Sequence[Drawing]], Drawn]] = {
    "lines": _draw_lines,
    "scatter": _draw_scatter,
    "tokens": _draw_tokens,
    "top": _draw_top,
}
