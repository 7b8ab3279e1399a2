"""Quantise and compare vectors, and convert them to torch tensors."""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qkv._argument_errors import type_error, value_error
from qkv.arrays import Array, as_array, is_float
from qkv.models.network.pooling import to_length_one
from qkv.models.run.truncation import callers
from qkv.ops.linear import multiply

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
# Rounding fewer vectors than this to "int8" or "uint8" causes a warning. The quantisation steps
# divide the range of the numbers in these vectors, and the vectors of other texts may have numbers
# outside this range.
FEW = 100


def check_precision(precision: Any, *, output_value: Any) -> None:
    """Raise a ValueError if the precision is unknown, or does not apply to the output."""
    if precision not in PRECISIONS:
        raise value_error(f"precision is {precision!r}: choose {' or '.join(PRECISIONS)}")
    if precision != "float32" and output_value != "sentence_embedding":
        raise value_error(
            f"precision {precision} is for sentence vectors, but output_value is "
            f"{output_value}: omit precision"
        )


def quantize(vectors: Array, precision: str) -> Array:
    """Return float vectors (n, D) in fewer bits, in the format of sentence-transformers.

    For "int8" and "uint8", the range from the smallest to the largest number of each dimension is
    divided into 256 quantisation steps. Each number is replaced with the index of its quantisation
    step, so the shape of the result is (n, D). "binary" and "ubinary" replace each number with a
    bit, which is 1 if the number is positive. Eight bits form a byte, the highest bit first. The
    result has shape (n, ceil(D / 8)). For "uint8" and "ubinary", the dtype is uint8. For "int8" and
    "binary", 128 is subtracted from each index or byte, and the dtype is int8. "float32" returns
    the vectors unchanged.

    Raises:
        ValueError: "int8" or "uint8" is given for a single vector; both need the range of several
            vectors.

    >>> vectors = np.array([[0.5, -1.0], [0.7, 3.0], [0.6, 1.1]], np.float32)
    >>> quantize(vectors, "ubinary").tolist()
    [[128], [192], [192]]
    """
    if precision == "float32":
        return vectors
    if precision.endswith("binary"):
        bits = np.packbits(vectors > 0, axis=1)
        return bits if precision == "ubinary" else (bits ^ 0x80).view(np.int8)
    if len(vectors) == 1:
        raise value_error(
            f"precision is {precision}, but a single vector has no range to "
            "divide into steps; pass several texts, or use float32 or binary"
        )
    if 1 < len(vectors) < FEW:
        warnings.warn(
            f"the steps of {precision} come from the range of {len(vectors)} vectors, and "
            f"may not suit other texts; pass at least {FEW} texts in one call",
            UserWarning,
            stacklevel=callers(),
        )
    steps = np.zeros(vectors.shape, np.uint8)
    if len(vectors):
        least, largest = vectors.min(0), vectors.max(0)
        step = (largest - least) / vectors.dtype.type(255)
        step[step == 0] = 1  # avoids a division by 0 if a dimension is constant
        steps[...] = np.clip(np.floor((vectors - least) / step), 0, 255)
    return steps if precision == "uint8" else (steps ^ 0x80).view(np.int8)


def as_tensors(output: Any, torch: Any, *, joined: bool) -> Any:
    """Return the output of `encode` as one torch tensor, or as a list of tensors."""
    if isinstance(output, list):
        return [as_tensors(item, torch, joined=True) for item in output]
    if isinstance(output, dict):
        return {name: torch.from_numpy(array) for name, array in output.items()}
    tensor = torch.from_numpy(output)
    return tensor if joined else list(tensor)


def as_given(array: Array, *inputs: Any) -> Any:
    """Convert `array` to a torch tensor if one of `inputs` is a torch tensor or a list of them.

    >>> as_given(np.zeros(2), [[0.5]])
    array([0., 0.])
    """
    torch = sys.modules.get("torch")  # if torch is not imported, no input is a tensor
    first = [value[0] if isinstance(value, list) and value else value for value in inputs]
    if torch is None or not any(isinstance(value, torch.Tensor) for value in first):
        return array
    return torch.from_numpy(array)


def _distances(a: Array, b: Array, distance: Callable[[Array], Array]) -> Array:
    """Return the distance from each row of `a` to each row of `b`, (n, m)."""
    distances = np.empty((len(a), len(b)), a.dtype)
    for number, row in enumerate(a):  # one row at a time, to avoid an (n, m, D) array
        distances[number] = distance(b - row)
    return distances


def _manhattan(rows: Array) -> Array:
    return np.asarray(np.abs(rows).sum(1))


def _euclidean(rows: Array) -> Array:
    return np.asarray(np.sqrt(np.square(rows).sum(1)))


# Functions from vectors (n, D) and (m, D) to similarities (n, m); larger means more similar.
_EACH: Mapping[str, Callable[[Array, Array], Array]] = {
    "cosine": lambda a, b: multiply(to_length_one(a), to_length_one(b).T),
    "dot": lambda a, b: multiply(a, b.T),
    "euclidean": lambda a, b: -_distances(a, b, _euclidean),
    "manhattan": lambda a, b: -_distances(a, b, _manhattan),
}
# Each function compares row i of the first array (n, D) with row i of the second (n, D), and
# returns the similarities (n,).
_PAIRWISE: Mapping[str, Callable[[Array, Array], Array]] = {
    "cosine": lambda a, b: np.asarray((to_length_one(a) * to_length_one(b)).sum(1)),
    "dot": lambda a, b: np.asarray((a * b).sum(1)),
    "euclidean": lambda a, b: -_euclidean(a - b),
    "manhattan": lambda a, b: -_manhattan(a - b),
}


def similarity(a: Any, b: Any, how: str) -> Array:
    """Return the similarity (n, m) of each vector of `a` (n, D) to each vector of `b` (m, D).

    >>> similarity([[3.0, 4.0]], [[3.0, 4.0], [-3.0, -4.0]], "cosine").round(6).tolist()
    [[1.0, -1.0]]
    """
    first, second = _read(a, b)
    return _EACH[how](first, second)


def similarity_pairwise(a: Any, b: Any, how: str) -> Array:
    """Return the similarity (n,) of row i of `a` (n, D) to row i of `b` (n, D), for each i.

    >>> similarity_pairwise([[3.0, 4.0]], [[0.0, 0.0]], "euclidean").tolist()
    [-5.0]
    """
    first, second = _read(a, b)
    if len(first) != len(second):
        raise value_error(
            f"the inputs have {len(first)} and {len(second)} vectors; pass "
            "the same number of each, or call similarity for every pair"
        )
    return _PAIRWISE[how](first, second)


def _read(a: Any, b: Any) -> tuple[Array, Array]:
    """Convert `a` to (n, D) and `b` to (m, D), with one float type; integers become float32."""
    both = [as_array(x, name=name) for x, name in ((a, "a"), (b, "b"))]
    both = [x[None] if x.ndim == 1 else x for x in both]
    for x, name in zip(both, "ab", strict=True):
        if x.dtype.kind not in "iu" and not is_float(x.dtype):
            raise type_error(f"{name} is {x.dtype}; pass vectors of numbers")
    if any(x.ndim != 2 for x in both) or both[0].shape[1] != both[1].shape[1]:
        shapes = f"a has shape {both[0].shape} and b has shape {both[1].shape}"
        raise value_error(f"{shapes}; pass (n, D) and (m, D)")
    wide = np.float64 if any(x.dtype == np.float64 for x in both) else np.float32
    first, second = (x.astype(wide, copy=False) for x in both)
    return first, second
