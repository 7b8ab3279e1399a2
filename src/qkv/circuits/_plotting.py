"""Draw the results of `qkv.circuits`: `plot`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, value_error
from qkv.arrays import quote
from qkv.circuits._plot_kinds import draw_kind
from qkv.circuits._plot_reader import Drawing, name_axes, read, read_mapping
from qkv.circuits._plot_view import PlotView, graph_view, in_rows, is_graph
from qkv.circuits._scanning import HeadScan, Scan
from qkv.see.analysis.measures import strongest
from qkv.see.draw import panels
from qkv.see.draw.colours import scale_end, signed_end
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
