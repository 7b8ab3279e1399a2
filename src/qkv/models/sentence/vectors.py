"""What is done with vectors once they are computed: fewer bits for each number, and how alike."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, is_float
from qkv.models.network.pooling import to_length_one
from qkv.models.run.truncation import callers
from qkv.ops.linear import multiply

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
FEW = 100  # vectors whose least and largest say little of others


def check_precision(precision: Any, *, call: str, output_value: Any) -> None:
    """An error where there is no such precision, or where it is not for what is asked for."""
    if precision not in PRECISIONS:
        raise ValueError(f"{call}: precision is {precision!r}: choose {' or '.join(PRECISIONS)}")
    if precision != "float32" and output_value != "sentence_embedding":
        raise ValueError(
            f"{call}: precision {precision} is for sentence vectors and output_value is "
            f"{output_value}: leave it out"
        )


def quantized(vectors: Array, precision: str, *, call: str) -> Array:
    """Vectors (n, D) of floats in fewer bits, as sentence-transformers writes them.

    "int8" and "uint8" have a step in place of each number, of the 256 from the least to the largest
    that it has among these vectors: (n, D). "binary" and "ubinary" have a bit, 1 above 0, eight in
    a byte, the first the highest: (n, ceil(D / 8)), of int8 (128 less) and uint8. "float32" leaves
    them as they are.

    Raises:
        ValueError: there is one vector, and its numbers have no least and largest.

    >>> vectors = np.array([[0.5, -1.0], [0.7, 3.0], [0.6, 1.1]], np.float32)
    >>> quantized(vectors, "ubinary", call="encode").tolist()
    [[128], [192], [192]]
    """
    if precision == "float32":
        return vectors
    if precision.endswith("binary"):
        bits = np.packbits(vectors > 0, axis=1)
        return bits if precision == "ubinary" else (bits ^ 0x80).view(np.int8)
    if len(vectors) == 1:
        raise ValueError(
            f"{call}: precision is {precision} and there is one vector, which has no range to "
            "divide into steps: give several texts, or take float32 or binary"
        )
    if 1 < len(vectors) < FEW:
        warnings.warn(
            f"{call}: the steps of {precision} are divided by {len(vectors)} vectors: give "
            f"{FEW} or more, as those of other calls have other steps",
            UserWarning,
            stacklevel=callers(),
        )
    steps = np.zeros(vectors.shape, np.uint8)
    if len(vectors):
        least, largest = vectors.min(0), vectors.max(0)
        step = (largest - least) / vectors.dtype.type(255)
        step[step == 0] = 1  # one that is the same in all vectors is at step 0
        steps[...] = np.clip(np.floor((vectors - least) / step), 0, 255)
    return steps if precision == "uint8" else (steps ^ 0x80).view(np.int8)


def as_tensors(found: Any, torch: Any, *, joined: bool) -> Any:
    """What `encode` gives as tensors of torch: vectors (n, D) as one, or as a list of them."""
    if isinstance(found, list):
        return [as_tensors(one, torch, joined=True) for one in found]
    if isinstance(found, dict):
        return {name: torch.from_numpy(array) for name, array in found.items()}
    tensor = torch.from_numpy(found)
    return tensor if joined else list(tensor)


def as_given(found: Array, *given: Any) -> Any:
    """An array as a tensor of torch where one of what is given is one, or a list of such.

    >>> as_given(np.zeros(2), [[0.5]])
    array([0., 0.])
    """
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    first = [one[0] if isinstance(one, list) and one else one for one in given]
    if torch is None or not any(isinstance(one, torch.Tensor) for one in first):
        return found
    return torch.from_numpy(found)


def _distances(a: Array, b: Array, distance: Callable[[Array], Array]) -> Array:
    """From each row of `a` to each of `b`, (n, m), by the distance of their differences (m, D)."""
    found = np.empty((len(a), len(b)), a.dtype)
    for number, row in enumerate(a):  # one at a time: all the differences would be (n, m, D)
        found[number] = distance(b - row)
    return found


def _manhattan(rows: Array) -> Array:
    found: Array = np.abs(rows).sum(1)
    return found


def _euclidean(rows: Array) -> Array:
    return np.asarray(np.sqrt(np.square(rows).sum(1)))


# For vectors (n, D) and (m, D), (n, m): the larger, the more alike.
_EACH: Mapping[str, Callable[[Array, Array], Array]] = {
    "cosine": lambda a, b: multiply(to_length_one(a), to_length_one(b).T),
    "dot": lambda a, b: multiply(a, b.T),
    "euclidean": lambda a, b: -_distances(a, b, _euclidean),
    "manhattan": lambda a, b: -_distances(a, b, _manhattan),
}
# For vectors (n, D) and (n, D), (n,).
_PAIRWISE: Mapping[str, Callable[[Array, Array], Array]] = {
    "cosine": lambda a, b: np.asarray((to_length_one(a) * to_length_one(b)).sum(1)),
    "dot": lambda a, b: np.asarray((a * b).sum(1)),
    "euclidean": lambda a, b: -_euclidean(a - b),
    "manhattan": lambda a, b: -_manhattan(a - b),
}


def similarity(a: Any, b: Any, how: str) -> Array:
    """How alike each vector of `a` (n, D) is to each of `b` (m, D): (n, m).

    >>> similarity([[3.0, 4.0]], [[3.0, 4.0], [-3.0, -4.0]], "cosine").round(6).tolist()
    [[1.0, -1.0]]
    """
    first, second = _read(a, b, "similarity")
    return _EACH[how](first, second)


def similarity_pairwise(a: Any, b: Any, how: str) -> Array:
    """How alike each vector of `a` (n, D) is to that of `b` (n, D) in its place: (n,).

    >>> similarity_pairwise([[3.0, 4.0]], [[0.0, 0.0]], "euclidean").tolist()
    [-5.0]
    """
    first, second = _read(a, b, "similarity_pairwise")
    if len(first) != len(second):
        raise ValueError(
            f"similarity_pairwise: there are {len(first)} vectors and {len(second)}: give as many "
            "of one as of the other, or call similarity for each with each"
        )
    return _PAIRWISE[how](first, second)


def _read(a: Any, b: Any, call: str) -> tuple[Array, Array]:
    """Both as (n, D) and (m, D) of one float type, float32 where they are of integers."""
    both = [as_array(x, call=call, name=name) for x, name in ((a, "a"), (b, "b"))]
    both = [x[None] if x.ndim == 1 else x for x in both]
    for x, name in zip(both, "ab", strict=True):
        if x.dtype.kind not in "iu" and not is_float(x.dtype):
            raise TypeError(f"{call}: {name} is {x.dtype}: give vectors of numbers")
    if any(x.ndim != 2 for x in both) or both[0].shape[1] != both[1].shape[1]:
        raise ValueError(
            f"{call}: a is {both[0].shape} and b is {both[1].shape}: give (n, D) and (m, D)"
        )
    wide = np.float64 if any(x.dtype == np.float64 for x in both) else np.float32
    first, second = (x.astype(wide, copy=False) for x in both)
    return first, second
