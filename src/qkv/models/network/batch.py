"""Batches: texts or images that a network runs at once, packed without padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from qkv.arrays import Array
from qkv.layers.attention.forward import Positions
from qkv.layers.base import starts_of
from qkv.models.network._embedding import Embedding, EmbeddingSaved
from qkv.text import Tokenized
from qkv.trace import Recorder
from qkv.trace.activations import activation, parse
from qkv.trace.recorder import pad_rows, texts_and_positions


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
    >>> layout.to_caller(np.array([[5, 7]]), "hook_embed")
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

    def to_caller(self, whole: Array, name: str) -> Array:
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

    def to_network(self, array: Array, name: str) -> Array:
        """Return a caller's array without the columns that the network skips."""
        out = array
        for axis, layout in self._axes(name):
            if layout.spans is not None:
                if activation(name).is_weights:
                    out = layout.without_padding(out, axis, name)
                order = np.argsort(~layout.spans, axis=1, kind="stable")
                at = order[:, : int(layout.spans.sum(1).max(initial=0))]
                out = np.take_along_axis(out, _along(at, axis, out.ndim), axis)
        return out

    def without_padding(self, array: Array, axis: int, name: str) -> Array:
        """Return a copy of an array in which padding is 0, or -inf if the array holds scores."""
        assert self.seen is not None
        fill = activation(name).fill
        filled: Array = np.where(_along(self.seen, axis, array.ndim), array, fill)
        return filled.astype(array.dtype, copy=False)

    def computed_position(self, row: int, column: int) -> int | None:
        """Convert the index of a column in a caller's array to an index in the network's array.

        Return None if the network skips this column.
        """
        if self.spans is None:
            return column
        return int(self.spans[row, :column].sum()) if self.spans[row, column] else None

    def positions(self, array: Array, name: str) -> Array:
        """Return the position of each token (B, T) in a caller's array; padding has position -1.

        If the array holds weights or scores, return the position of each query.
        """
        axis, layout = self._axes(name)[0]
        columns = np.arange(array.shape[axis])
        if layout.seen is not None:
            return np.where(layout.seen, columns, -1)
        first = np.zeros(len(array), np.int64) if layout.first is None else layout.first
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


class Batch(Sequence[Tokenized]):
    """Texts that a network runs together; their tokens are packed, one text after another.

    Args:
        texts: the tokens of each text.
        numbers: the index of each text among all texts of the call; 0, 1, ... by default.
        single: whether the user gave one text rather than a list of texts.
        step: the number of the step in `generate`; None in other calls.

    Attributes:
        texts: the tokens of each text; () if only packed ids are known.
        segments: (total,) the segment of each token, for a model with a table of segments.
        rotary: the positions for rotary attention; by default, positions count from 0 in each text.
        keys: a mask of the keys that all layers see, (B, 1, 1, T); None if they see all keys.

    >>> texts = [Tokenized(np.array(ids), [""] * len(ids), [], []) for ids in ([3, 5], [4])]
    >>> batch = Batch(texts)
    >>> batch.ids, batch.cu, batch[1:].numbers
    (array([3, 5, 4]), array([0, 2, 3]), range(1, 2))
    """

    segments: Array | None = None
    rotary: Positions | None = None
    keys: Array | None = None
    _positions: Array | None = None

    def __init__(
        self,
        texts: Sequence[Tokenized],
        numbers: Sequence[int] | None = None,
        *,
        single: bool = False,
        step: int | None = None,
    ) -> None:
        self.texts, self.single, self.step = texts, single, step
        self.numbers = range(len(texts)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Tokenized]:
        return iter(self.texts)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return type(self)(self.texts[which], self.numbers[which], step=self.step)
        return self.texts[which]

    def replace_texts(self, texts: Sequence[Tokenized]) -> Self:
        """Return a batch with different texts in place of this batch's texts."""
        return type(self)(texts, self.numbers, single=self.single, step=self.step)

    @cached_property
    def ids(self) -> Array:
        """The token ids of all texts, (total,)."""
        return np.concatenate([text.ids for text in self.texts])

    @cached_property
    def cu(self) -> Array:
        """The index of each text's first row, followed by the number of rows, (B + 1,)."""
        return starts_of(map(len, self.texts))

    @cached_property
    def lengths(self) -> Array:
        """The number of tokens in each text, (B,)."""
        return np.diff(self.cu)

    @property
    def tokens(self) -> int:
        """The number of tokens in all texts."""
        return int(self.cu[-1])

    @property
    def longest(self) -> int:
        """The number of tokens in the longest text."""
        return int(self.lengths.max(initial=0))

    @property
    def layout(self) -> Layout:
        """The texts and their lengths, for edits."""
        return Layout(self.numbers, self.lengths, step=self.step)

    def positions(self, embedding: Embedding) -> Array:
        """Return the position of each token in its text, (total,)."""
        if self._positions is not None:
            return self._positions
        return embedding.packed_positions(self.ids, self.cu)

    def embed(
        self, embedding: Embedding, record: Recorder | None
    ) -> tuple[Array, EmbeddingSaved | None]:
        """Return the input of the first layer (total, D), and the values for `backward`."""
        return embedding(self.ids, self.positions(embedding), record, self.segments)


class PackedIds(Batch):
    """Packed token ids.

    Args:
        ids: (total,) token ids.
        cu: (B + 1,) the index of each text's first row, followed by the number of rows.
        positions: (total,) the position of each token in its text; by default, the embedding
            counts the tokens.
        segments: as in `Batch`.
        numbers: as in `Batch`.
    """

    def __init__(
        self,
        ids: Array,
        cu: Array,
        positions: Array | None = None,
        *,
        segments: Array | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        super().__init__((), range(len(cu) - 1) if numbers is None else numbers)
        self.ids, self.cu, self._positions, self.segments = ids, cu, positions, segments

    @classmethod
    def of(cls, texts: Sequence[Array], **others: Any) -> Self:
        """Pack texts, given the ids (T,) of each text."""
        return cls(np.concatenate(texts), starts_of(map(len, texts)), **others)


class Columns(PackedIds):
    """Token ids in columns, some of which are masked or padding.

    As in transformers, dynamic scaling of rotary positions depends on the longest text of the
    batch.

    Args:
        ids: (B, T) token ids.
        mask: (B, T), True for a token; at least one entry is True.
        spans: (B, T), True for the columns to compute, as `Transformer.spans` returns them.
        positions: (B, T), the positions of the tokens; see `token_positions` for the default.
    """

    def __init__(self, ids: Array, mask: Array, spans: Array, positions: Array | None) -> None:
        cu = starts_of(spans.sum(1))
        at = None if positions is None else positions[spans]
        super().__init__(np.where(mask, ids, 0)[spans].astype(np.int64), cu, at)
        self._ids, self._mask, self._spans = ids, mask, spans
        rotated = texts_and_positions(cu)[1] if at is None else at
        self.rotary = Positions(rotated, 1 + int(rotated.max()))
        if (mask != spans).any():
            self.keys = ~pad_rows(~mask[spans], cu)[:, None, None]

    @property
    def layout(self) -> Layout:
        """The texts and their columns, for edits."""
        return columns(self._mask, self._spans)

    def positions(self, embedding: Embedding) -> Array:
        """Return the position of each computed column, (total,)."""
        if self._positions is not None:
            return self._positions
        return embedding.token_positions(self._ids, self._spans, self._mask)

    @property
    def tokens(self) -> int:
        """The number of unmasked tokens."""
        return int(self._mask.sum())

    def drop_masked(self, rows: Array) -> Array:
        """Return the rows of unmasked tokens, given the rows (total, D) of all computed columns."""
        return rows[self._mask[self._spans]]


class Vectors(PackedIds):
    """Vectors (B, T, D) that enter a layer, in place of token ids."""

    def __init__(self, vectors: Array) -> None:
        texts, length, dim = vectors.shape
        self._vectors = vectors.reshape(-1, dim)
        super().__init__(np.zeros(0, np.int64), length * np.arange(texts + 1))

    def embed(
        self, embedding: Embedding, record: Recorder | None
    ) -> tuple[Array, EmbeddingSaved | None]:
        """Return the vectors (total, D)."""
        return self._vectors, None


@dataclass(frozen=True, eq=False)
class ImageTokens(Tokenized):
    """An image as tokens; `ids` holds the index of each token.

    Attributes:
        pixels: the pixel values, (C, H, W).
    """

    pixels: Array


class Images(Batch):
    """Images that a network runs together, each an `ImageTokens`; their tokens are patches."""

    @cached_property
    def ids(self) -> Array:
        """The pixel values of all images, (B, C, H, W)."""
        return np.stack([image.pixels for image in self if isinstance(image, ImageTokens)])
