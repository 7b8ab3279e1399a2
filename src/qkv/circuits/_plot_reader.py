"""Read results of `qkv.circuits` and other arrays for a drawing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import type_error, value_error
from qkv.arrays import Array, quote
from qkv.circuits.results import Result
from qkv.see.draw import panels
from qkv.text.tokenized import marks_blanks, plain_tokens


class Axis(NamedTuple):
    """An axis of a drawing, with a number and an optional word for each index."""

    name: str
    numbers: list[Any]
    words: Sequence[str] | None = None

    @property
    def kind(self) -> str:
        """The kind of the indices, for example "kv head"."""
        return self.name.replace("_", " ")

    @property
    def names(self) -> Sequence[str]:
        """The labels of the indices in a picture."""
        if self.words is not None:
            return self.words
        counted = self.name.endswith(("layer", "head"))
        return [
            f"{self.kind} {number}" if counted and isinstance(number, int) else str(number)
            for number in self.numbers
        ]

    def label(self, index: int) -> str:
        """Describe an index in words, for example "layer 3" or "token 4 (the)"."""
        counted = f"{self.kind} {self.numbers[index]}"
        if self.words is None:
            return counted
        return self.words[index] if self.name == "layer" else f"{counted} ({self.words[index]})"


@dataclass(frozen=True, eq=False)
class Drawing:
    """Numbers to draw, and their axes."""

    values: Array
    axes: tuple[Axis, ...]
    of: str
    title: str
    ground: float = 0.0
    tokens: Array | None = None  # a token for each number, or None
    note: str = ""
    pairs: Result | None = None  # the numbers of each pair or text, if `values` is a mean over them

    @property
    def kind(self) -> tuple[str, float]:
        """The meaning of the numbers, and the number for "no effect".

        Drawings of the same kind share a colour scale.
        """
        return self.of, self.ground

    @property
    def sizes(self) -> Array:
        """The distance of each number from `ground`; 0 for infinite numbers and NaN."""
        far = np.abs(self.values - self.ground)
        return np.where(np.isfinite(far), far, 0.0)

    @property
    def strongest(self) -> tuple[int, ...]:
        """The index of the number with the largest distance from `ground` (usually 0)."""
        return tuple(map(int, np.unravel_index(int(self.sizes.argmax()), self.values.shape)))

    @property
    def sentence(self) -> str:
        """The headline: the number furthest from `ground`, or the last number that has a token."""
        if not np.isfinite(self.values).any():
            return f"{self.title}: no number is finite."
        form = panels.number_format(self.values)
        if self.tokens is not None:
            last = tuple(size - 1 for size in self.values.shape)
            value = form(float(self.values[last]))
            token = f"{self.tokens[last]} with {self.of} {value}"
            return f"{self.title}: {token}, {self.label(last)}."
        index, meaning = self.strongest, self.of
        meaning += f", no effect: {form(self.ground)}" if self.ground else ""
        at = f"strongest at {self.label(index)}, " if index else ""
        value = self.values[index]
        if self.values.size > 1 and (self.values == value).all():
            at = f"all {self.values.size:,} numbers are "
        if np.iscomplexobj(value):
            value, meaning = abs(value), f"absolute value, {meaning}"
        return f"{self.title}: {at}{form(float(value))} ({meaning})."

    def label(self, index: Sequence[int]) -> str:
        """Describe an index along all axes: layer 3, head 2, token 4 (the)."""
        return ", ".join(axis.label(number) for axis, number in zip(self.axes, index, strict=True))

    def at(self, index: int) -> "Drawing":
        """Return the numbers at an index of the first axis."""
        tokens, title = self.tokens, self.axes[0].label(index)
        tokens = None if tokens is None else tokens[index]
        values, axes = self.values[index], self.axes[1:]
        return replace(self, values=values, axes=axes, title=title, tokens=tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and words of the drawing."""
        about: dict[str, Any] = {"title": self.title, "of": self.of, "values": self.values}
        if np.iscomplexobj(self.values):
            about |= {"values": self.values.real, "imaginary": self.values.imag}
        about |= {"axes": [x.name for x in self.axes], "places": [x.names for x in self.axes]}
        return about if self.tokens is None else about | {"tokens": self.tokens.tolist()}


def read_mapping(results: Mapping[Any, Any], *, raw: bool = False) -> list[Drawing]:
    """Read each entry of a dict. Plain numbers get the label of the first `Result` in the dict."""
    meaning = next((one.of for one in results.values() if isinstance(one, Result)), "number")
    parts = [
        Drawing(np.asarray(float(value)), (), meaning, str(name))
        if np.ndim(value) == 0
        else replace(read(value, raw=raw), title=str(name))
        for name, value in results.items()
    ]
    if not parts:
        raise value_error("`result` is an empty dict; pass a dict with results")
    return parts


def name_axes(
    values: Any, axes: Sequence[str], words: Mapping[str, Sequence[str]] | None, of: str
) -> Any:
    """Return an array, or each array of a dict, as a `Result` with these axes and labels."""
    if isinstance(values, Mapping):
        return {name: name_axes(one, axes, words, of) for name, one in values.items()}
    array = np.asarray(values)
    names = (axes,) if isinstance(axes, str) else tuple(axes)
    if len(names) != array.ndim:
        raise value_error(
            f"`axes` names {len(names)} axes, {', '.join(names)}, but the array has shape "
            f"{array.shape}; "
            f"pass {array.ndim} names"
        )
    sizes = dict(zip(names, array.shape, strict=True))
    for axis, labels in (words or {}).items():
        if len(labels) != sizes.get(axis):
            raise value_error(
                f"`words` has {len(labels)} labels for the axis {quote(axis)}, but the array has "
                f"shape {array.shape} with the axes {', '.join(names)}; pass a label for each index"
            )
    return Result(array, names, of=of, title="Array", words=words)


def read(result: Any, *, raw: bool = False) -> Drawing:
    """Read one result; unless `raw`, reduce logits to tokens, and join axes for heat maps."""
    if hasattr(result, "dims") and hasattr(result, "dtype"):
        part = _read_xarray(result)
    elif isinstance(result, Result) and result.axes:
        sizes = zip(result.axes, result.shape, strict=True)
        axes = tuple(
            Axis(name, [*result.places.get(name, range(n))], result.words.get(name))
            for name, n in sizes
        )
        values, about = np.asarray(result), (result.of, result.title, result.ground)
        part = Drawing(values, axes, *about, pairs=result.pairs)
    else:
        kind = type(result).__name__
        if isinstance(result, np.ndarray):
            kind += f" {result.shape}, without named axes"
        raise type_error(
            f"`result` is {kind}; pass a result of qkv.circuits, an xarray.DataArray, or `axes=` "
            "with a name for each axis"
        )
    if part.values.size == 0:
        raise value_error(
            f"`result` has shape {part.values.shape}, so it is empty; pass a result with numbers"
        )
    if np.iscomplexobj(part.values):
        return part
    if raw:
        return replace(part, values=part.values.astype(np.float64))
    last = part.axes[-1].name if part.axes else ""
    # The softmax needs the logits of all tokens, but a DataArray may lack some of them.
    if last == "V" and part.of == "logit" and isinstance(result, Result):
        return _keep_likeliest(part)
    values = part.values.astype(np.float64)
    if last == "D":
        note = f"Each number is the sum over the {values.shape[-1]} numbers of a vector."
        return replace(part, values=values.sum(-1), axes=part.axes[:-1], note=note)
    return _merge_axes(replace(part, values=values))


def _read_xarray(array: Any) -> Drawing:
    """Read a DataArray, its axis names and its index numbers."""
    if array.dtype.kind not in "fiub":
        raise type_error(f"`result` is a DataArray of {array.dtype}; pass a DataArray of numbers")
    axes = []
    for name in map(str, array.dims):
        words = array.coords.get(f"{name}_text")
        labels = None if words is None or words.dims != (name,) else list(map(str, words.values))
        axes.append(Axis(name, array[name].values.tolist(), labels))
    meaning, title = array.attrs.get("of", "number"), str(array.name or "Result")
    return Drawing(array.values, tuple(axes), meaning, title, array.attrs.get("ground", 0.0))


def _keep_likeliest(part: Drawing) -> Drawing:
    """Return the most probable token of each position from logits (..., T, V)."""
    best = part.values.argmax(-1)
    probabilities = np.empty(best.shape)
    for index in np.ndindex(best.shape[:-1]):
        logits = part.values[index].astype(np.float64)  # (T, V), for one layer
        with np.errstate(invalid="ignore"):
            exponentials = np.exp(logits - logits.max(-1, keepdims=True))
            probabilities[index] = 1 / exponentials.sum(-1)
    words = np.array(part.axes[-1].names, object)
    # a token that continues a word begins with "##", as in `Model.predict`
    before = ["Ġ", "a"] if marks_blanks(part.axes[-1].names) else []
    plain = {
        word: plain_tokens([*before, word], [False] * (len(before) + 1))[-1]
        for word in {*words[best].flat}
    }
    tokens = np.vectorize(plain.get, otypes=[object])(words[best])
    note = "Each cell: the most probable token, and its probability."
    values, axes = probabilities, part.axes[:-1]
    return replace(part, values=values, axes=axes, of="probability", tokens=tokens, note=note)


def _merge_axes(part: Drawing) -> Drawing:
    """Merge axes until at most three remain.

    First, an axis of layers is merged with the following axis of heads: the label "3.2" means head
    2 of layer 3. If more than three axes still remain, the first two axes are merged.
    """
    axes, index = list(part.axes), 0
    while len(part.axes) > 3 and index + 1 < len(axes):
        one, other = axes[index : index + 2]
        if one.name.endswith("layer") and other.name.endswith("head"):
            numbers = [f"{layer}.{head}" for layer in one.numbers for head in other.numbers]
            axes[index : index + 2] = [Axis(other.name, numbers)]
        index += 1
    while len(axes) > 3:
        one, other = axes[:2]
        both = [f"{first}, {second}" for first in one.names for second in other.names]
        axes[:2] = [Axis(f"{one.name}, {other.name}", both)]
    shape = [len(axis.numbers) for axis in axes]
    return replace(part, values=part.values.reshape(shape), axes=tuple(axes))
