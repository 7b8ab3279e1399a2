"""Attention biases that depend on the distance from a query to a key."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from qkv.arrays import Array


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
