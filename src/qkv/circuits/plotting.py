"""What the calls of `qkv.circuits` return, as a view: `plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.circuits.plot_view import PlotView, graph_view, is_graph
from qkv.circuits.results import Result
from qkv.circuits.scanning import HeadScan, Scan
from qkv.see.analysis.measures import strongest
from qkv.see.draw.colours import scale_end, signed_end
from qkv.see.draw.panels import (
    PICTURE,
    Bars,
    Column,
    HeatMap,
    Panel,
    Prose,
    Table,
    number_format,
    number_spec,
)
from qkv.see.page.payload import check_theme
from qkv.text.tokenized import marks_blanks, plain_tokens

MOST_BARS, MOST_MAPS = 48, 48
_SHARES = ("weight", "mean weight", "probability")  # from 0 to 1, and so is their scale
_Kind = tuple[str, float]


def plot(result: Any, *, theme: str = "auto", stretch: bool = False) -> PlotView:
    """Draw what a call of `qkv.circuits` returns.

    The axes of a result decide what is drawn:

    - One axis: a bar for each number.
    - Two axes: a heat map of the numbers, each rounded once.
    - Three axes: a small heat map for each place along the first, and one of them large: the one
      with the strongest number, or the last layer of `rollout`. Of four axes each layer and its
      heads become one.
    - Logits (`logit_lens`): the most probable token of each place, with its probability.
    - Vectors (`integrated_gradients`): their sums, one number for each token.
    - A dict (`head_scores`, `attribute_logits`) or a `HeadScan`: each of its results.
    - A `Scan`: its page of cards (`Scan.cards`).
    - A graph (`edges`, `discover`): nodes in layers that go upwards, and edges as wide as their
      scores. Of more than 150 edges the strongest are drawn, and the view says how many there are.

    Weights and probabilities have a scale from 0 to 1. Other numbers have a scale as long as they
    need; it leaves the ground at 0 or, for `patch` without `normalize`, at the metric of the
    corrupted text, and values below the ground are red.

    Args:
        result: what the call returned; or an `xarray.DataArray`, such as a slice of
            `result.to_xarray()`, or a difference.
        theme: of the page: "light", "dark", or "auto" for that of the site or system around it.
        stretch: whether scales of weights end at the largest weight, and not at 1.

    Returns:
        A view: a notebook and a terminal show it, and `to_html`, `to_png`, `to_svg` and `to_dict`
        write it.

    Raises:
        TypeError: `result` is of another kind, or an array whose axes have no names.
        ValueError: `result` is empty, `theme` is unknown, or an edge joins a node that the graph
            does not have.

    >>> import qkv
    >>> from qkv import circuits
    >>> view = circuits.plot(circuits.copying_scores(qkv.load("books-decoder")))
    >>> view.to_dict()["results"][0]["axes"]
    ['layer', 'head']
    """
    check_theme(theme, "plot")
    if is_graph(result):
        return replace(graph_view(result), theme=theme)
    if isinstance(result, Scan):
        return result.cards(theme=theme)
    if isinstance(result, HeadScan):
        result = result.scores
    parts = _of_mapping(result) if isinstance(result, Mapping) else [_read(result)]
    facts = [part.sentence for part in parts if part.values.ndim and len(parts) > 1]
    facts += [part.note for part in parts if part.note]
    said = parts[0].sentence if len(parts) == 1 else _together(parts)
    return PlotView(
        said,
        facts,
        _rows(parts, _scales(parts, stretch)),
        {"results": [part.to_dict() for part in parts]},
        theme=theme,
        stretch=stretch,
    )


class _Axis(NamedTuple):
    """An axis of numbers to draw, with the number and perhaps the word of each place along it."""

    name: str
    numbers: list[Any]
    words: Sequence[str] | None = None

    @property
    def kind(self) -> str:
        """What a place along it is."""
        return self.name.replace("_", " ")

    @property
    def names(self) -> Sequence[str]:
        """What stands beside each place in a picture."""
        if self.words is not None:
            return self.words
        counted = self.name.endswith(("layer", "head"))
        return [
            f"{self.kind} {number}" if counted and isinstance(number, int) else str(number)
            for number in self.numbers
        ]

    def said(self, place: int) -> str:
        """A place in words: layer 3, token 4 (the)."""
        counted = f"{self.kind} {self.numbers[place]}"
        if self.words is None:
            return counted
        return self.words[place] if self.name == "layer" else f"{counted} ({self.words[place]})"


@dataclass(frozen=True, eq=False)
class _Part:
    """Numbers to draw, and their axes."""

    values: Array
    axes: tuple[_Axis, ...]
    of: str
    title: str
    ground: float = 0.0
    tokens: Array | None = None  # as `values`, where each number is that of a token
    note: str = ""

    @property
    def kind(self) -> _Kind:
        """What its numbers are, and which of them means no effect: parts of one kind compare."""
        return self.of, self.ground

    @property
    def sizes(self) -> Array:
        """How far each number is from the ground; 0 for one that is not finite."""
        far = np.abs(self.values - self.ground)
        return np.where(np.isfinite(far), far, 0.0)

    @property
    def strongest(self) -> tuple[int, ...]:
        """Where the number stands that is furthest from the ground."""
        found = np.unravel_index(int(self.sizes.argmax()), self.values.shape)
        return tuple(int(place) for place in found)

    @property
    def sentence(self) -> str:
        """The strongest number and where it stands, in words."""
        if not np.isfinite(self.values).any():
            return f"{self.title}: no number is finite."
        form = number_format(self.values)
        if self.tokens is not None:
            last = tuple(size - 1 for size in self.values.shape)
            value = form(float(self.values[last]))
            token = f"{self.tokens[last]} with {self.of} {value}"
            return f"{self.title}: {token}, {self.place(last)}."
        place, of = self.strongest, self.of
        of += f", no effect: {form(self.ground)}" if self.ground else ""
        at = f"strongest at {self.place(place)}, " if place else ""
        return f"{self.title}: {at}{form(float(self.values[place]))} ({of})."

    def place(self, index: Sequence[int]) -> str:
        """A place in words: layer 3, head 2, token 4 (the)."""
        return ", ".join(axis.said(place) for axis, place in zip(self.axes, index, strict=True))

    def at(self, place: int) -> _Part:
        """The numbers at a place along the first axis."""
        return replace(
            self,
            values=self.values[place],
            axes=self.axes[1:],
            title=self.axes[0].said(place),
            tokens=None if self.tokens is None else self.tokens[place],
        )

    def to_dict(self) -> dict[str, Any]:
        """What is drawn, as numbers and words."""
        found = {
            "title": self.title,
            "of": self.of,
            "axes": [axis.name for axis in self.axes],
            "places": [axis.names for axis in self.axes],
            "values": self.values,
        }
        return found if self.tokens is None else found | {"tokens": self.tokens.tolist()}


def _of_mapping(results: Mapping[Any, Any]) -> list[_Part]:
    """Each entry; one that is a number is of what the results beside it are of."""
    of = next((one.of for one in results.values() if isinstance(one, Result)), "number")
    parts = []
    for name, one in results.items():
        if isinstance(one, float | int | np.number):
            parts.append(_Part(np.asarray(float(one)), (), of, str(name)))
        else:
            parts.append(replace(_read(one), title=str(name)))
    if not parts:
        raise ValueError("plot: result is an empty dict: give one that holds results")
    return parts


def _read(result: Any) -> _Part:
    """One result, as it is drawn."""
    if hasattr(result, "dims") and hasattr(result, "dtype"):
        part = _from_xarray(result)
    elif isinstance(result, Result) and result.axes:
        axes = (
            _Axis(name, [*range(size)], result.words.get(name))
            for name, size in zip(result.axes, result.shape, strict=True)
        )
        values = np.asarray(result)
        part = _Part(values, tuple(axes), result.of, result.title, result.ground)
    else:
        kind = type(result).__name__
        if isinstance(result, np.ndarray):
            kind += f" {result.shape}, whose axes have no names"
        raise TypeError(
            f"plot: result is {kind}: give what a call of qkv.circuits returns, or an "
            "xarray.DataArray, such as a slice of result.to_xarray()"
        )
    if part.values.size == 0:
        raise ValueError(f"plot: result is empty, {part.values.shape}: give one that has numbers")
    last = part.axes[-1].name if part.axes else ""
    # of a DataArray some words may be left out, so that its logits are no distribution
    if last == "V" and part.of == "logit" and isinstance(result, Result):
        return _likeliest(part)
    values = part.values.astype(np.float64)
    if last == "D":
        note = f"Each number is the sum over the {values.shape[-1]} parts of a vector."
        return replace(part, values=values.sum(-1), axes=part.axes[:-1], note=note)
    return _with_heads_of_all_layers(replace(part, values=values))


def _from_xarray(given: Any) -> _Part:
    """A DataArray, with the names and numbers of its places that it has kept."""
    if given.dtype.kind not in "fiub":
        raise TypeError(f"plot: result is a DataArray of {given.dtype}: give one of numbers")
    axes = []
    for name in map(str, given.dims):
        words = given.coords.get(f"{name}_text")
        own = None if words is None or words.dims != (name,) else list(map(str, words.values))
        axes.append(_Axis(name, given[name].values.tolist(), own))
    of, title = given.attrs.get("of", "number"), str(given.name or "Result")
    return _Part(given.values, tuple(axes), of, title, given.attrs.get("ground", 0.0))


def _likeliest(part: _Part) -> _Part:
    """Of logits (..., T, V) the most probable token of each place."""
    best = part.values.argmax(-1)
    chances = np.empty(best.shape)
    for index in np.ndindex(best.shape[:-1]):
        logits = part.values[index].astype(np.float64)  # (T, V), of one layer at a time
        with np.errstate(invalid="ignore"):
            chances[index] = 1 / np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)
    words = np.array(part.axes[-1].names, object)
    # "##" where a token continues the word before it, as `Model.predict` has it
    before = ["Ġ", "a"] if marks_blanks(part.axes[-1].names) else []
    front = len(before)
    plain = {
        word: plain_tokens([*before, word], [False] * (front + 1))[front]
        for word in {*words[best].flat}
    }
    return replace(
        part,
        values=chances,
        axes=part.axes[:-1],
        of="probability",
        tokens=np.vectorize(plain.get, otypes=[object])(words[best]),
        note="Each cell: the most probable token, and its probability.",
    )


def _with_heads_of_all_layers(part: _Part) -> _Part:
    """The same with each pair of layer and head as one axis, where there are four axes or more."""
    axes, place = list(part.axes), 0
    while len(part.axes) > 3 and place + 1 < len(axes):
        one, other = axes[place : place + 2]
        if one.name.endswith("layer") and other.name.endswith("head"):
            numbers = [f"{layer}.{head}" for layer in one.numbers for head in other.numbers]
            axes[place : place + 2] = [_Axis(other.name, numbers)]
        place += 1
    while len(axes) > 3:
        one, other = axes[:2]
        both = [f"{first}, {second}" for first in one.names for second in other.names]
        axes[:2] = [_Axis(f"{one.name}, {other.name}", both)]
    shape = [len(axis.numbers) for axis in axes]
    return replace(part, values=part.values.reshape(shape), axes=tuple(axes))


def _together(parts: Sequence[_Part]) -> str:
    """What several results are, in words."""
    if parts[0].of.startswith("share of"):
        numbers = np.array([part.values.sum() for part in parts])
        return f"The parts sum to {number_format(numbers)(numbers.sum())} ({parts[0].of})."
    axes = " and ".join(axis.kind for axis in parts[0].axes)
    return ", ".join(part.title for part in parts) + (f", by {axes}." if axes else ".")


def _scales(parts: Sequence[_Part], stretch: bool) -> dict[_Kind, tuple[float, float]]:
    """Both ends of the scale of all numbers of one kind."""
    found = {}
    for kind in dict.fromkeys(part.kind for part in parts):
        values = np.concatenate([part.values.ravel() for part in parts if part.kind == kind])
        of, ground = kind
        share = of in _SHARES and not (values < 0).any()
        found[kind] = (0.0, scale_end([values], stretch)) if share else signed_end(values, ground)
    return found


def _rows(parts: Sequence[_Part], scales: Mapping[_Kind, tuple[float, float]]) -> list[list[Panel]]:
    """The panels of all parts; numbers of one kind with one axis or none are bars together."""
    maps: list[Panel] = []
    rows: list[list[Panel]] = []
    for part in parts:
        if part.values.ndim == 2:
            maps.append(_heat_map(part, scales[part.kind]))
        elif part.values.ndim > 2:
            rows += _small_maps(part, scales[part.kind])
    rows = [*_lines_of(maps, 3), *rows]
    for kind, scale in scales.items():
        flat = [part for part in parts if part.values.ndim < 2 and part.kind == kind]
        if flat:
            rows.append(_bars(flat, scale, alone=len(parts) == 1))
    return rows


def _lines_of(panels: Sequence[Panel], most: int) -> list[list[Panel]]:
    """Panels in rows of at most so many."""
    return [list(panels[first : first + most]) for first in range(0, len(panels), most)]


def _heat_map(part: _Part, scale: tuple[float, float], **options: Any) -> HeatMap:
    rows, columns = part.axes
    return HeatMap(
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


def _small_maps(part: _Part, scale: tuple[float, float]) -> list[list[Panel]]:
    """A map for each place along the first axis, on one scale, and one of them large."""
    count = len(part.values)
    each = [part.at(number) for number in range(count)]
    # the last layer of a rollout is that of the whole model
    chosen = (
        count - 1
        if [axis.name for axis in part.axes[:2]] == ["layer", "query"]
        else part.strongest[0]
    )
    large = replace(each[chosen], title=f"{part.title}: {each[chosen].title}")
    most = [part.sizes[number].max() for number in range(count)]
    kept = strongest(np.array(most), MOST_MAPS)
    tiles: list[Panel] = [
        _heat_map(replace(each[number], tokens=None), scale, compact=True, shown_in=PICTURE)
        for number in kept
    ]
    form = number_format(part.values)
    table = Table(
        title=f"Strongest in each {part.axes[0].kind}",
        names=[each[number].title for number in kept],
        columns=[
            Column(part.of, [form(float(each[n].values[each[n].strongest])) for n in kept]),
            Column("at", [each[n].place(each[n].strongest) for n in kept], left=True),
        ],
    )
    said = "Small maps: the rows, columns and colours of the large one."
    if len(kept) < count:
        said += f" Shown: {len(kept)} of {count}, those of the largest numbers."
    return [
        [_heat_map(large, scale)],
        *_lines_of(tiles, 6),
        [table, Prose(text=said, shown_in=PICTURE)],
    ]


def _bars(parts: Sequence[_Part], scale: tuple[float, float], *, alone: bool) -> list[Panel]:
    """A bar for each number of parts that have one axis or none."""
    values = np.concatenate([part.values.ravel() for part in parts])
    names = [
        name if alone else f"{part.title} {name}".strip()
        for part in parts
        for name in (part.axes[0].names if part.axes else [""])
    ]
    sizes = np.concatenate([part.sizes.ravel() for part in parts])
    kept = strongest(sizes, MOST_BARS)
    first = parts[0]
    bars = Bars(
        title=first.title if alone else first.of,
        explained=first.of if alone else "",
        names=[names[number] for number in kept],
        values=[float(values[number]) for number in kept],
        form=number_spec(values),
        top=scale[1] - first.ground,
        ground=first.ground,
    )
    if len(kept) == len(values):
        return [bars]
    return [bars, Prose(text=f"Shown: {len(kept)} of {len(values)}, the largest numbers.")]
