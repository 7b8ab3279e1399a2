"""One plane to see two sets of vectors in: PCA fitted on both, each centred first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, as_array

MOST_LABELS = 20  # names beside points


class Plane(NamedTuple):
    """Where the vectors fall in the plane.

    Attributes:
        original: `(n, 2)`, the first set.
        contextual: `(n, 2)`, the second set.
        explained: `(2,)`, the share of the variance that lies along each axis.
        axes: `(2, D)`, the two directions, each of length 1.
    """

    original: Array
    contextual: Array
    explained: Array
    axes: Array


def fit_plane(
    original: Any, contextual: Any, *, unit: bool = False, call: str = "fit_plane"
) -> Plane:
    """The two directions along which both sets together vary most.

    Each set is centred on its own mean first, so that the plane shows how the vectors lie among
    each other and not how far one set as a whole stands from the other. The number of largest size
    in each direction is positive, so that the same vectors always give the same picture. Computed
    in float64 with NumPy's singular value decomposition.

    Args:
        original: `(n, D)`, numbers that are all finite.
        contextual: `(n, D)`, the same vectors afterwards.
        unit: whether each vector is scaled to length 1 first, so that directions alone count, as
            they do for a cosine.
        call: what errors name.

    >>> plane = fit_plane([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0]], [[0.0, 5.0, 0.0], [4.0, 5.0, 0.0]])
    >>> plane.contextual.tolist(), plane.explained.tolist()
    ([[-2.0, 0.0], [2.0, 0.0]], [1.0, 0.0])
    """
    before, after = (
        _vectors(part, name, call, unit)
        for part, name in ((original, "original"), (contextual, "contextual"))
    )
    if before.shape != after.shape:
        raise ValueError(
            f"{call}: original is {before.shape} and contextual {after.shape}: "
            "both must hold the same number of vectors of the same size"
        )
    if unit:
        before, after = unit_vectors(before), unit_vectors(after)
    n, size = before.shape
    scale = max(np.abs(before).max(), np.abs(after).max())
    before, after = before - before.mean(axis=0), after - after.mean(axis=0)
    together = np.concatenate([before, after])  # (2n, D)
    _, lengths, directions = np.linalg.svd(together, full_matrices=False)
    axes, variance = np.zeros((2, size)), np.zeros(2)
    found = min(2, len(directions))
    shares = (lengths / (lengths[0] or 1)) ** 2
    axes[:found], variance[:found] = directions[:found], shares[:found] / (shares.sum() or 1)
    largest = np.abs(axes).argmax(axis=1)
    axes *= np.where(axes[[0, 1], largest] < 0, -1.0, 1.0)[:, None]
    # what centring leaves of equal vectors is rounding, and no direction
    if lengths[0] <= _ROUNDING * scale * np.sqrt(together.size):
        return Plane(np.zeros((n, 2)), np.zeros((n, 2)), np.zeros(2), np.zeros((2, size)))
    return Plane(before @ axes.T, after @ axes.T, variance, axes)


_ROUNDING = 1e-14


def unit_vectors(vectors: Array) -> Array:
    """Vectors `(n, D)` scaled to length 1, in float64; one of zeros stays as it is.

    >>> unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    vectors = vectors.astype(np.float64)
    for norm in (np.inf, 2):  # the largest number first: no square overflows
        sizes = np.linalg.norm(vectors, norm, axis=1, keepdims=True)
        vectors = np.divide(vectors, sizes, out=np.zeros_like(vectors), where=sizes != 0)
    return vectors


def _vectors(x: Any, name: str, call: str, unit: bool) -> Array:
    array = as_array(x, call=call, name=name)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"{call}: {name} is {array.shape}: pass one vector a row, (n, D), at least one"
        )
    array = array.astype(np.float64)
    if not (np.isfinite(array).all() if unit else has_plane(array)):
        raise ValueError(f"{call}: {name} {NO_PLANE}")
    return array


NO_PLANE = "holds NaN or infinity: a plane needs finite numbers, of sizes up to 1e150"


def has_plane(vectors: Array) -> bool:
    """Whether all numbers are finite, and of sizes whose squares can be summed."""
    return float(np.abs(vectors).max(initial=0.0)) <= 1e150  # not where one is NaN


def named_points(before: Array, after: Array, tokens: Sequence[str]) -> list[int]:
    """Which points to name: all up to 20, else those that moved furthest, each word once."""
    order = np.argsort(-np.linalg.norm(after - before, axis=1), kind="stable").tolist()
    if len(order) > MOST_LABELS:
        first: dict[str, int] = {}
        for i in order:
            first.setdefault(tokens[i], i)
        order = list(first.values())[:MOST_LABELS]
    return sorted(order)
