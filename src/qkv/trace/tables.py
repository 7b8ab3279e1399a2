"""A trace as other tools take it: a dataset of xarray, a table of pandas, HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.extras import need
from qkv.trace.activations import WORDS
from qkv.trace.names import axes, parse

_EXTRA = "tables"
_SHOWN = 40  # tokens in a notebook


def dataset(
    arrays: Mapping[str, Array], tokens: Sequence[Sequence[str]], about: Mapping[str, Any]
) -> Any:
    """An `xarray.Dataset` with a variable for each array, which is not copied.

    Args:
        arrays: by name.
        tokens: of each text.
        about: its attributes.
    """
    xarray = need("xarray", _EXTRA)
    sizes: dict[str, int] = {}
    variables = {}
    for name, array in arrays.items():
        found = []
        for axis, size in zip(axes(name, array.shape), array.shape, strict=True):
            fits = sizes.setdefault(axis, size) == size
            found.append(axis if fits else f"{axis}_{size}")  # of a layer that is unlike the first
        variables[name] = (tuple(found), array)
    longest = max(map(len, tokens), default=0)
    words = np.array([[*one, *[""] * (longest - len(one))] for one in tokens], dtype=object)
    coordinates: dict[str, Any] = {
        f"{axis}_text": (("text", axis), words.astype(str))
        for axis in WORDS
        if sizes.get("text") == len(tokens) and sizes.get(axis) == longest
    }
    if sizes.get("text") == len(tokens):
        coordinates["length"] = ("text", [len(one) for one in tokens])
    return xarray.Dataset(variables, coords=coordinates, attrs=dict(about))


def frame(
    rows: Iterable[tuple[int, str, Array]], tokens: Sequence[Sequence[str]], *, value: str
) -> Any:
    """A `pandas.DataFrame` with a row for each number.

    Args:
        rows: the number of a text, the full name of an array, and that text's part of it, (1, ...)
            without padding.
        tokens: of each text.
        value: what the column of the numbers is called.
    """
    pandas = need("pandas", _EXTRA)
    columns: dict[str, list[Array]] = {}
    for text, full, array in rows:
        layer = parse(full).layer
        shape = array.shape
        found: dict[str, Any] = {"text": np.full(array.size, text)}
        found |= {} if layer is None else {"layer": np.full(array.size, layer)}
        places: tuple[Array, ...] = np.indices(shape, sparse=True)
        for axis, place in zip(axes(full, shape)[1:], places[1:], strict=True):
            found[axis] = np.broadcast_to(place, shape).ravel()
        words = np.array(tokens[text], dtype=object)
        for axis in [one for one in WORDS if one in found]:
            if found[axis].size == 0 or found[axis].max() < len(words):
                found[f"{axis}_text"] = words[found[axis]]
        for name, column in (found | {value: array.ravel()}).items():
            columns.setdefault(name, []).append(column)
    return pandas.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})


def html(
    title: str, tokens: Sequence[Sequence[str]], arrays: Mapping[str, Array], prefix: str = ""
) -> str:
    """A heading, the first tokens and a table of the arrays, those of all layers in one row."""
    rows: dict[tuple[Any, ...], list[int]] = {}
    for name, array in arrays.items():
        _, layer, local = parse(name)
        rows.setdefault((local, layer is None, array.shape, array.dtype), []).append(layer or 0)
    lines = []
    for (local, alone, shape, dtype), layers in rows.items():
        name = local if alone else f"blocks.{_span(layers)}.{local}"
        cells = (prefix + name, "(" + ", ".join(map(str, shape)) + ")", str(dtype))
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    shown = "".join(f"<p><code>{escape(_first(one))}</code></p>" for one in tokens[:3])
    more = f"<p>and {len(tokens) - 3} more</p>" if len(tokens) > 3 else ""
    head = "<tr><th>name</th><th>shape</th><th>type</th></tr>"
    return f"<p>{escape(title)}</p>{shown}{more}<table>{head}{''.join(lines)}</table>"


def _first(tokens: Sequence[str]) -> str:
    """The first tokens of a text."""
    return " ".join(tokens[:_SHOWN]) + " …" * (len(tokens) > _SHOWN)


def _span(layers: Sequence[int]) -> str:
    """Layers as few words: 3, 0 to 5, or each of them."""
    if len(layers) > 1 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{{{layers[0]}..{layers[-1]}}}"
    return f"{{{','.join(map(str, layers))}}}" if len(layers) > 1 else str(layers[0])
