"""Export traces as files, as tables of xarray and pandas, and as HTML."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, value_error
from qkv.arrays import Array, Arrays
from qkv.extras import need
from qkv.files import StrPath, ordinary, replacing
from qkv.trace.activations import WORDS, parse

Unpack = Callable[[Arrays, Mapping[str, Any]], Any]
AxesOf = Callable[[str], tuple[str, ...]]


def write_trace(path: StrPath, kind: str, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Write named arrays and JSON values to a file, which appears only when it is complete."""
    from safetensors.numpy import save

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with replacing(path) as file:
        file.write(save(whole, {kind: json.dumps(about)}))


def read_trace(path: StrPath, kinds: Mapping[str, Unpack], *, what: str) -> Any:
    """Read a file that `write_trace` wrote.

    Args:
        path: the file.
        kinds: for each kind of trace, the function that makes the trace from arrays and JSON.
        what: a description of the expected kinds, for errors.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged or has an unexpected kind.
    """
    from safetensors import SafetensorError, safe_open

    if not ordinary(path).is_file():
        raise invalid(FileNotFoundError, f"there is no file {path}")
    broken = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            kind = next((kind for kind in kinds if kind in about), next(iter(kinds)))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (file is not a dict)
        return kinds[kind](arrays, json.loads(about[kind]))
    except (SafetensorError, *broken) as error:
        raise value_error(f"{path} is not {what} that qkv saved: {error!r:.200}") from error


_EXTRA = "tables"
_SHOWN = 40  # the maximum number of tokens that a notebook shows


def dataset(
    arrays: Arrays, axes: AxesOf, tokens: Sequence[Sequence[str]], about: Mapping[str, Any]
) -> Any:
    """Return an `xarray.Dataset` with a variable for each array; arrays are not copied.

    Args:
        arrays: the arrays by name.
        axes: a function that takes the name of an array and returns the names of its axes.
        tokens: the tokens of each text.
        about: the attributes of the dataset.
    """
    xarray = need("xarray", _EXTRA)
    full = arrays.get("hook_full_embed")  # earlier embeddings may not have size D
    sizes: dict[str, int] = {} if full is None else {"D": full.shape[-1]}
    variables = {}
    for name, array in arrays.items():
        # A second axis named "token" with another size, such as 7, is renamed to "token_7".
        named = [
            axis if sizes.setdefault(axis, size) == size else f"{axis}_{size}"
            for axis, size in zip(axes(name), array.shape, strict=True)
        ]
        variables[name] = (tuple(named), array)
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
    rows: Iterable[tuple[int, str, Array]], axes: AxesOf, tokens: Sequence[Sequence[str]]
) -> Any:
    """Return a `pandas.DataFrame` with a row for each element of the arrays.

    Args:
        rows: tuples `(text, name, array)`: the number of a text, the full name of an activation,
            and the activation's array (1, ...) for the text, without padding.
        axes: as in `dataset`.
        tokens: the tokens of each text.
    """
    pandas = need("pandas", _EXTRA)
    columns: dict[str, list[Array]] = {}
    for text, full, array in rows:
        layer = parse(full).layer
        shape = array.shape
        labels: dict[str, Any] = {"text": np.full(array.size, text)}
        labels |= {} if layer is None else {"layer": np.full(array.size, layer)}
        indices: tuple[Array, ...] = np.indices(shape, sparse=True)
        for axis, index in zip(axes(full)[1:], indices[1:], strict=True):
            labels[axis] = np.broadcast_to(index, shape).ravel()
        words = np.array(tokens[text], dtype=object)
        for axis in [axis for axis in WORDS if axis in labels]:
            if labels[axis].size == 0 or labels[axis].max() < len(words):
                labels[f"{axis}_text"] = words[labels[axis]]
        for name, column in (labels | {"value": array.ravel()}).items():
            columns.setdefault(name, []).append(column)
    return pandas.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})


def html(title: str, tokens: Sequence[Sequence[str]], arrays: Arrays) -> str:
    """Return HTML: a heading, the first tokens, and a table with a row for each activation."""
    rows: dict[tuple[Any, ...], list[int]] = {}
    for name, array in arrays.items():
        _, layer, local = parse(name)
        rows.setdefault((local, layer is None, array.shape, array.dtype), []).append(layer or 0)
    lines = []
    for (local, alone, shape, dtype), layers in rows.items():
        name = local if alone else f"blocks.{_span(layers)}.{local}"
        cells = (name, "(" + ", ".join(map(str, shape)) + ")", str(dtype))
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    first = [" ".join(text[:_SHOWN]) + " …" * (len(text) > _SHOWN) for text in tokens[:3]]
    texts = "".join(f"<p><code>{escape(text)}</code></p>" for text in first)
    more = f"<p>and {len(tokens) - 3} more</p>" if len(tokens) > 3 else ""
    head = "<tr><th>name</th><th>shape</th><th>type</th></tr>"
    return f"<p>{escape(title)}</p>{texts}{more}<table>{head}{''.join(lines)}</table>"


def _span(layers: Sequence[int]) -> str:
    """Abbreviate layer numbers, for example as 3, {0..5} or {0,2}."""
    if len(layers) > 1 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{{{layers[0]}..{layers[-1]}}}"
    return f"{{{','.join(map(str, layers))}}}" if len(layers) > 1 else str(layers[0])
