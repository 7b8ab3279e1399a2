"""Divide texts into batches, and join the results of the batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, Arrays, is_whole_number, whole_number
from qkv.models.run.inputs import as_ids
from qkv.text import Tokenized
from qkv.text.tokenizer import check_no_mapping
from qkv.trace.activations import WORDS, activation, axes, parse

POSITIONS = 1024  # The default maximum of positions, including padding, in a batch.


class Layout(NamedTuple):
    """The texts of a batch, and the columns of `input_ids` that the network processes.

    The arguments and results of a call have one column for each column of `input_ids`. The network
    skips columns of padding, so the network's arrays hold only columns that it processes.

    Attributes:
        texts: the index of each text among all texts of the call.
        lengths: (B,), the number of tokens per text in this run; None if all positions are tokens.
        first: (B,), the number of tokens per text in earlier runs; None if this is the first run.
        spans: (B, T), True at columns that the network processes; None if it processes all columns.
        seen: (B, T), True at columns that are tokens.
        step: the number of the step in `generate`; None in other calls.
        other: for a decoder's text, the layout of the encoder's text.

    >>> layout = columns(np.array([[False, True, True]]), np.array([[False, True, True]]))
    >>> layout.shown(np.array([[5, 7]]), "hook_embed")
    array([[0, 5, 7]])
    >>> layout.computed_position(0, 2), layout.computed_position(0, 0)
    (1, None)
    """

    texts: Sequence[int]
    lengths: Array | None = None
    first: Array | None = None
    spans: Array | None = None
    seen: Array | None = None
    step: int | None = None
    other: "Layout | None" = None

    @property
    def is_later(self) -> bool:
        """Whether an earlier run has already computed the first tokens of these texts."""
        return self.first is not None and bool(self.first.any())

    def shown(self, whole: Array, name: str) -> Array:
        """Convert a computed array to the caller's columns, which include columns for padding.

        Columns for padding contain 0, or -inf if the array holds scores.
        """
        out = whole.copy()
        for axis, layout in self._axes(name):
            if layout.lengths is not None and axis == 1:
                out[np.arange(out.shape[1]) >= layout.lengths[:, None]] = 0
            if layout.spans is not None:
                at = np.maximum(np.cumsum(layout.spans, axis=1) - 1, 0)
                out = np.take_along_axis(out, _along(at, axis, out.ndim), axis)
                out = layout.without_padding(out, axis, name)
        return out

    def computed(self, shown: Array, name: str) -> Array:
        """Return a caller's array without the columns that the network skips."""
        out = shown
        for axis, layout in self._axes(name):
            if layout.spans is not None:
                if activation(name).is_weights:
                    out = layout.without_padding(out, axis, name)
                order = np.argsort(~layout.spans, axis=1, kind="stable")
                at = order[:, : int(layout.spans.sum(1).max(initial=0))]
                out = np.take_along_axis(out, _along(at, axis, out.ndim), axis)
        return out

    def without_padding(self, shown: Array, axis: int, name: str) -> Array:
        """Return a copy of an array in which padding is 0, or -inf if the array holds scores."""
        assert self.seen is not None
        fill = activation(name).fill
        filled: Array = np.where(_along(self.seen, axis, shown.ndim), shown, fill)
        return filled.astype(shown.dtype, copy=False)

    def computed_position(self, row: int, column: int) -> int | None:
        """Convert the index of a column in a caller's array to an index in the network's array.

        The network's array omits the columns that the network skips. If the network skips the given
        column, return None.
        """
        if self.spans is None:
            return column
        return int(self.spans[row, :column].sum()) if self.spans[row, column] else None

    def positions(self, shown: Array, name: str) -> Array:
        """Return the position of each token (B, T) in a caller's array; padding has position -1.

        If the array holds weights or scores, return the position of each query.
        """
        axis, layout = self._axes(name)[0]
        columns = np.arange(shown.shape[axis])
        if layout.seen is not None:
            return np.where(layout.seen, columns, -1)
        first = np.zeros(len(shown), np.int64) if layout.first is None else layout.first
        positions = first[:, None] + columns
        if layout.lengths is None:
            return positions
        return np.where(columns < layout.lengths[:, None], positions, -1)

    def _axes(self, name: str) -> "list[tuple[int, Layout]]":
        """Return the index and the layout of each axis that counts tokens, queries or keys."""
        other = self.other or Layout(())
        one, crosses = activation(name), parse(name).crosses
        whose = {"token": other if crosses and one.of_keys else self, "query": self}
        whose["key"] = other if crosses else self
        return [(n, whose[axis]) for n, axis in enumerate(one.axes) if axis in whose]


def layout_of(texts: Sequence[int], batch: Sequence[Sized]) -> Layout:
    """Return the layout of packed texts; `texts` holds the index of each text."""
    return Layout(texts, np.array([len(text) for text in batch], np.int64))


def columns(seen: Array, spans: Array) -> Layout:
    """Return the layout of padded texts, from two masks (B, T).

    `seen` is True for tokens, and `spans` is True for columns that the network computes.
    """
    texts, lengths = range(len(seen)), spans.sum(1)
    from_left = not (spans[:, 1:] & ~spans[:, :-1]).any()
    if from_left and (seen == spans).all() and spans.any(0).all():
        return Layout(texts, lengths)
    return Layout(texts, lengths, spans=spans, seen=seen)


def _along(index: Array, axis: int, ndim: int) -> Array:
    """Reshape an array (B, n) for broadcasting: axis 0 stays, and axis 1 becomes axis `axis`."""
    shape = [1] * ndim
    shape[0], shape[axis] = index.shape
    return index.reshape(shape)


def parts(batch: Sequence[Tokenized], batch_size: int | None) -> list[range]:
    """Return the range of texts in each batch.

    A batch has `batch_size` texts. If `batch_size` is None, a batch has at most `POSITIONS`
    positions.

    >>> texts = [Tokenized(np.zeros(n, int), [""] * n, [], []) for n in (500, 500, 500, 10)]
    >>> parts(texts, None), parts(texts, 3)
    ([range(0, 2), range(2, 4)], [range(0, 3), range(3, 4)])
    """
    most = POSITIONS if batch_size is None else np.inf
    ranges, first, longest = [], 0, 0
    for number, text in enumerate(batch):
        longest = max(longest, len(text))
        count = number + 1 - first
        if count > 1 and (longest * count > most or count > (batch_size or count)):
            ranges.append(range(first, number))
            first, longest = number, len(text)
    return [*ranges, range(first, len(batch))]


class Joined:
    """Joins the arrays of several batches of texts.

    Args:
        texts: B, the number of texts.
        longest: T, the number of tokens in the longest text.

    Attributes:
        arrays: the joined arrays (B, T, ...), keyed by name. Padding is 0, or -inf in scores.

    >>> joined = Joined(2, 3)
    >>> joined.add(0, {"hook_embed": np.ones((1, 3, 1))})
    >>> joined.add(1, {"hook_embed": np.full((1, 2, 1), 2.0)})
    >>> joined.arrays["hook_embed"][..., 0].tolist()
    [[1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    """

    def __init__(self, texts: int, longest: int) -> None:
        self.arrays: dict[str, Array] = {}
        self._texts, self._longest = texts, longest
        self._same: dict[str, str] = {}  # Maps each alias to the name of the stored array.

    def add(self, first: int, arrays: Arrays) -> None:
        """Add the arrays of a batch; `first` is the index of the batch's first text."""
        if not self.arrays:
            self._begin(arrays)
        for name, array in arrays.items():
            if name not in self._same:
                cells = (slice(first, first + len(array)), *map(slice, array.shape[1:]))
                self.arrays[name][cells] = array

    def _begin(self, arrays: Arrays) -> None:
        firsts: dict[int, str] = {}
        for name, array in arrays.items():
            other = firsts.setdefault(id(array), name)
            if other != name:
                self._same[name], self.arrays[name] = other, self.arrays[other]
                continue
            named = zip(axes(name, array.shape), array.shape, strict=True)
            shape = [self._longest if axis in WORDS else size for axis, size in named]
            shape[0] = self._texts
            fill = activation(name).fill
            self.arrays[name] = (
                np.full(shape, fill, array.dtype) if fill else np.zeros(shape, array.dtype)
            )


def joined(
    batch: Sequence[Tokenized], batch_size: int | None, run: Callable[[range], dict[str, Array]]
) -> dict[str, Array]:
    """Call `run` for each batch (a range of texts), and join the arrays that `run` returns."""
    which = parts(batch, batch_size)
    if len(which) == 1:
        return run(which[0])
    whole = Joined(len(batch), max(map(len, batch)))
    for part in which:
        whole.add(part.start, run(part))
    return whole.arrays


def batches(texts: Any, batch_size: Any) -> Iterator[Any]:
    """Yield lists of `batch_size` texts, in order; if `texts` is an array, yield arrays.

    Raises:
        TypeError: `texts` is a single text, or not iterable.
        ValueError: `batch_size` is below 1.
    """
    call = "trace_stream"
    size = whole_number(batch_size, call=call, name="batch_size", least=1)
    check_no_mapping(texts, call=call)
    texts = as_ids(texts)
    listed = isinstance(texts, list | tuple | np.ndarray) and len(texts) > 0
    if isinstance(texts, str | bytes | bytearray) or (listed and is_whole_number(texts[0])):
        raise TypeError(f"{call}: `texts` is one text: give a list of texts, or call trace(text)")
    if not isinstance(texts, Iterable):
        raise TypeError(f"{call}: `texts` is {type(texts).__name__}: give a list of strings")
    if isinstance(texts, np.ndarray):
        return (texts[first : first + size] for first in range(0, len(texts), size))
    rest = map(_no_number, count(), texts)
    return iter(lambda: list(islice(rest, size)), [])


def _no_number(number: int, text: Any) -> Any:
    """Return `text`, or raise a TypeError if it is a number.

    A number means that the caller gave the ids of a single text instead of a list of texts.
    """
    if is_whole_number(text):
        raise TypeError(
            f"trace_stream: text {number} is {type(text).__name__}: give strings, or (T,) integers"
        )
    return text
