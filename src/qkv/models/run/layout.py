"""Where the places that a run computes together stand among those that its caller sees."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.trace.activations import activation, parse


class Layout(NamedTuple):
    """The texts that are run together, and which of their places a caller sees.

    Attributes:
        texts: which they are, of all texts of the call in their order.
        lengths: (B,), how many tokens of each are run; None where all places are tokens.
        first: (B,), how many tokens of each were run before; None for none.
        spans: (B, T), the columns that are computed, where the caller has others beside them.
        seen: (B, T), which of the columns are tokens.
        step: the step of `generate` that runs them; None elsewhere.
        other: of the text that a decoder looks at.

    >>> layout = columns(np.array([[False, True, True]]), np.array([[False, True, True]]))
    >>> layout.shown(np.array([[5, 7]]), "hook_embed"), layout.place(0, 2), layout.place(0, 0)
    (array([[0, 5, 7]]), 1, None)
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
        """Whether these places follow others that were run before."""
        return self.first is not None and bool(self.first.any())

    def shown(self, whole: Array, name: str) -> Array:
        """A copy of what was computed as the caller sees it, 0 (scores: -inf) in padding."""
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
        """The other way round."""
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
        """What is no token along an axis as 0, scores -inf."""
        assert self.seen is not None
        fill = activation(name).fill
        found: Array = np.where(_along(self.seen, axis, shown.ndim), shown, fill)
        return found.astype(shown.dtype, copy=False)

    def place(self, row: int, column: int) -> int | None:
        """The place at which a column is computed, if it is."""
        if self.spans is None:
            return column
        return int(self.spans[row, :column].sum()) if self.spans[row, column] else None

    def positions(self, shown: Array, name: str) -> Array:
        """(B, T), where the tokens of an array that a caller sees stand; -1 for padding.

        Of weights and scores they are those of the queries.
        """
        axis, layout = self._axes(name)[0]
        columns = np.arange(shown.shape[axis])
        if layout.seen is not None:
            return np.where(layout.seen, columns, -1)
        first = np.zeros(len(shown), np.int64) if layout.first is None else layout.first
        found = first[:, None] + columns
        if layout.lengths is None:
            return found
        return np.where(columns < layout.lengths[:, None], found, -1)

    def _axes(self, name: str) -> list[tuple[int, Layout]]:
        """The axes of an array that count places, and whose those are."""
        other = self.other or Layout(())
        one, crosses = activation(name), parse(name).crosses
        whose = {"token": other if crosses and one.of_keys else self, "query": self}
        whose["key"] = other if crosses else self
        return [(n, whose[axis]) for n, axis in enumerate(one.axes) if axis in whose]


def layout_of(texts: Sequence[int], batch: Sequence[Sized]) -> Layout:
    """Of a batch that is run end to end, whose texts have these numbers."""
    return Layout(texts, np.array([len(text) for text in batch], np.int64))


def columns(seen: Array, spans: Array) -> Layout:
    """Of texts with padding on any side, (B, T): their tokens, and what of it is computed."""
    texts, lengths = range(len(seen)), spans.sum(1)
    from_left = not (spans[:, 1:] & ~spans[:, :-1]).any()
    if from_left and (seen == spans).all() and spans.any(0).all():
        return Layout(texts, lengths)
    return Layout(texts, lengths, spans=spans, seen=seen)


def _along(index: Array, axis: int, ndim: int) -> Array:
    """(B, n) so that it goes along the first and this axis of an array."""
    shape = [1] * ndim
    shape[0], shape[axis] = index.shape
    return index.reshape(shape)
