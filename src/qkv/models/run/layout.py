"""Map the positions that a batch computes to the positions that the caller sees."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.trace.activations import activation, parse


class Layout(NamedTuple):
    """The texts of a batch, and the positions that the caller sees.

    Attributes:
        texts: the index of each text among all texts of the call.
        lengths: (B,), the number of tokens in each text that are run; None if all positions are
            tokens.
        first: (B,), the number of tokens in each text that were run before; None if none were.
        spans: (B, T), the columns that are computed; None if all are.
        seen: (B, T), the columns that are tokens.
        step: the step of `generate`; None in other calls.
        other: the layout of the text that a decoder reads.

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
    other: Layout | None = None

    @property
    def is_later(self) -> bool:
        """Whether earlier positions of these texts were run before."""
        return self.first is not None and bool(self.first.any())

    def shown(self, whole: Array, name: str) -> Array:
        """Return a copy of a computed array as the caller sees it, 0 (scores: -inf) in padding."""
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
        """Return the array for the computation, given the array that the caller sees."""
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
        """Return an array with 0 (scores: -inf) at columns that are padding."""
        assert self.seen is not None
        fill = activation(name).fill
        filled: Array = np.where(_along(self.seen, axis, shown.ndim), shown, fill)
        return filled.astype(shown.dtype, copy=False)

    def computed_position(self, row: int, column: int) -> int | None:
        """Return the position at which a column of a text is computed; None if it is not."""
        if self.spans is None:
            return column
        return int(self.spans[row, :column].sum()) if self.spans[row, column] else None

    def positions(self, shown: Array, name: str) -> Array:
        """Return the position of each token of an array that a caller sees, (B, T); -1 in padding.

        For weights and scores they are the positions of the queries.
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

    def _axes(self, name: str) -> list[tuple[int, Layout]]:
        """Return the axes of an array that count positions, and the layout of each axis."""
        other = self.other or Layout(())
        one, crosses = activation(name), parse(name).crosses
        whose = {"token": other if crosses and one.of_keys else self, "query": self}
        whose["key"] = other if crosses else self
        return [(n, whose[axis]) for n, axis in enumerate(one.axes) if axis in whose]


def layout_of(texts: Sequence[int], batch: Sequence[Sized]) -> Layout:
    """Return the layout of packed texts with these indices."""
    return Layout(texts, np.array([len(text) for text in batch], np.int64))


def columns(seen: Array, spans: Array) -> Layout:
    """Return the layout of texts with padding on any side, (B, T): tokens, and computed columns."""
    texts, lengths = range(len(seen)), spans.sum(1)
    from_left = not (spans[:, 1:] & ~spans[:, :-1]).any()
    if from_left and (seen == spans).all() and spans.any(0).all():
        return Layout(texts, lengths)
    return Layout(texts, lengths, spans=spans, seen=seen)


def _along(index: Array, axis: int, ndim: int) -> Array:
    """Return (B, n) shaped to index the first and this axis of an array."""
    shape = [1] * ndim
    shape[0], shape[axis] = index.shape
    return index.reshape(shape)
