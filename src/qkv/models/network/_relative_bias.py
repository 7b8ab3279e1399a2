"""Attention biases that depend on the distance from a query to a key."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from qkv.arrays import Array, compute_type
from qkv.layers.attention import Norm, Relative
from qkv.layers.base import part_back


@dataclass(frozen=True)
class Buckets:
    """Buckets of distances; distances in a bucket share one learned bias per head.

    Attributes:
        count: the number of buckets.
        furthest: this distance and all longer distances share the last bucket.
        both_ways: whether keys before and after a query have different buckets. If `both_ways` is
            False, all keys after the query share the first bucket.

    Source:
        Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified
        Text-to-Text Transformer", section 2.1.

    >>> Buckets(8, 16).of(np.array([-20, -1, 0, 1, 2, 20]))
    array([3, 1, 0, 5, 6, 7])
    """

    count: int
    furthest: int
    both_ways: bool = True

    def of(self, distance: Array) -> Array:
        """Return the bucket of each distance `key position - query position`."""
        count = self.count // 2 if self.both_ways else self.count
        after = np.where(distance > 0, count, 0) if self.both_ways else 0
        away = np.abs(distance) if self.both_ways else np.maximum(-distance, 0)
        # the first `near` distances have one bucket each; the other buckets grow geometrically
        near = count // 2
        # use float32 as in training, because rounding can move a distance to the next bucket
        ratio = np.log(np.maximum(away, near).astype(np.float32) / np.float32(near))
        steps = ratio / np.float32(math.log(self.furthest / near)) * np.float32(count - near)
        far = np.minimum(near + steps.astype(np.int64), count - 1)
        buckets: Array = after + np.where(away < near, away, far)
        return buckets

    def with_table(self, table: Array) -> "RelativeBias":
        """Return the relative bias with these buckets; `table` (count, Hq) holds their biases."""
        return RelativeBias(self, table)


@dataclass(frozen=True)
class RelativeBias:
    """A table with the learned bias of each bucket and head."""

    buckets: Buckets
    table: Array  # (count, Hq)

    def __call__(self, length: int, keys: int, q_offset: int = 0) -> Array:
        """Return the bias (1, Hq, L, S) of each query and key; query 0 is at position `q_offset`.

        To save memory, only one number per head and distance is stored, and the result is a view of
        these numbers.

        >>> bias = Buckets(4, 8).with_table(np.array([[0.0], [1.0], [2.0], [3.0]]))
        >>> bias(2, 4)[0, 0]
        array([[0., 3., 3., 3.],
               [1., 0., 3., 3.]])
        """
        distance = np.arange(1 - length, keys) - q_offset
        biases = np.ascontiguousarray(self.table[self.buckets.of(distance)].T)  # (Hq, L + S - 1)
        return sliding_window_view(biases, keys, axis=-1)[None, :, ::-1]

    def backward(self, grad: Array, length: int, keys: int, q_offset: int = 0) -> Array:
        """Return the gradient for the table (count, Hq), given the bias's gradient (..., Hq, L, S).

        >>> bias = Buckets(4, 8).with_table(np.zeros((4, 1)))
        >>> bias.backward(np.ones((1, 1, 2, 4)), 2, 4).ravel()
        array([2., 1., 0., 5.])
        """
        distance = np.arange(keys) - np.arange(length)[:, None] - q_offset  # (L, S)
        buckets = self.buckets.of(distance).ravel()
        heads = grad.sum(tuple(range(grad.ndim - 3))).reshape(grad.shape[-3], -1)  # (Hq, L * S)
        sums = [np.bincount(buckets, head, len(self.table)) for head in heads]
        return np.stack(sums, -1).astype(grad.dtype)


@dataclass(frozen=True)
class Disentangled:
    """Scores between tokens and relative positions, as in DeBERTa.

    Attributes:
        span: half the number of rows in the table of relative positions; all longer distances share
            the first row or the last row.
        furthest: if distances share rows, the distance with the last row; None if each distance up
            to `span` has its own row.
        projections: maps "q" or "k" to the projection that is applied to the rows before they are
            multiplied with the queries or the keys, such as {"q": "pos_k_proj"}. If tokens and
            positions share a projection, its name is "k_proj" or "q_proj".
        scale: the factor by which the scores are multiplied.
        norm: whether the rows are normalised.

    Source:
        He et al. 2021, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", section 3.1;
        He et al. 2023, "DeBERTaV3", on shared projections. The rows are those of `transformers`.

    >>> Disentangled(8, 20, {}, 1.0).of(np.array([-15, -4, 0, 1, 4, 5, 8, 15, 40]))
    array([ 1,  4,  8,  9, 12, 13, 14, 15, 15])
    """

    span: int
    furthest: int | None
    projections: Mapping[str, str]
    scale: float
    norm: bool = False

    def of(self, distance: Array) -> Array:
        """Return the row of each distance `query position - key position`."""
        if self.furthest is not None:
            near = self.span // 2
            # use float32 as in transformers, because rounding can move a distance to the next row
            away = np.maximum(np.abs(distance), near).astype(np.float32) / np.float32(near)
            steps = np.log(away) / np.log(np.float32((self.furthest - 1) / near))
            far = np.ceil(steps * np.float32(near - 1)).astype(np.int64) + near
            distance = np.where(np.abs(distance) <= near, distance, np.sign(distance) * far)
        rows: Array = np.clip(distance + self.span, 0, 2 * self.span - 1)
        return rows

    def with_table(self, table: Array, norm: Norm | None) -> "RelativeTable":
        """Return these relative positions with their table (2 * span, D) and its norm."""
        return RelativeTable(self, table, norm)


@dataclass(frozen=True)
class RelativeTable:
    """A table with the vectors of relative positions."""

    design: Disentangled
    table: Array  # (2 * span, D)
    norm: Norm | None

    def __call__(self, length: int) -> Relative:
        """Return the relative positions of texts of at most `length` tokens."""
        index, used = self._index(length)
        rows = self.table[used].astype(compute_type(self.table.dtype), copy=False)
        rows = rows if self.norm is None else self.norm.run(rows)[0]
        return Relative(rows, index, self.design.projections, self.design.scale)

    def backward(self, grad: Array, length: int) -> dict[str, Array]:
        """Return the gradients for table and norm, given the gradient (n, D) for the rows."""
        gradients: dict[str, Array] = {}
        _, used = self._index(length)
        if self.norm is not None:
            _, saved = self.norm.run(self.table[used])
            grad = part_back(self.norm, grad, saved, "rel_norm", gradients).x
        gradients["rel_embed.weight"] = np.zeros_like(self.table)
        gradients["rel_embed.weight"][used] = grad
        return gradients

    def _index(self, length: int) -> tuple[Array, slice]:
        """Return an index (T, T) into a slice of rows for each query and key, and the slice."""
        at = np.arange(length)
        index = self.design.of(at[:, None] - at)
        first, end = int(index.min(initial=2 * self.design.span)), int(index.max(initial=0)) + 1
        return index - first, slice(first, end)
