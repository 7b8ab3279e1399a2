"""Inputs for the tests of attention, and the comparison with the loops at the promised accuracy."""

from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import qkv
from qkv.ops.kernel import BACKENDS

from . import loops

Array = NDArray[Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)]
# The error of rounding to nearest, relative.
HALF_ROUNDING = {np.dtype(np.float16): 2.0**-11, BFLOAT16: 2.0**-8}

# For what is the same on every backend: a judge of the tests, processes that choose their own, and
# float64, which is NumPy's on all of them.
ON_ONE_BACKEND = pytest.mark.usefixtures("best_backend_alone")


def each_backend(backends: Sequence[str] = BACKENDS) -> Iterator[str]:
    """Each backend in turn, inside of a test whose judge takes far longer than what it judges."""
    with pytest.MonkeyPatch.context() as patch:
        for backend in backends:
            patch.setenv("QKV_BACKEND", backend)
            yield backend


def numbers(shape: Any, seed: int = 0, dtype: Any = np.float32, size: float = 1.0) -> Array:
    """Normal numbers of this shape."""
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(dtype)


def qkv_arrays(
    lead: tuple[int, ...] = (2,),
    heads: int = 2,
    kv_heads: int | None = None,
    L: int = 5,
    S: int = 7,
    d: int = 4,
    dv: int = 3,
    dtype: Any = np.float32,
    seed: int = 0,
) -> tuple[Array, Array, Array]:
    """Query (*lead, heads, L, d), key (*lead, kv_heads, S, d), value (*lead, kv_heads, S, dv)."""
    kv_heads = heads if kv_heads is None else kv_heads
    return (
        numbers((*lead, heads, L, d), seed, dtype),
        numbers((*lead, kv_heads, S, d), seed + 1, dtype),
        numbers((*lead, kv_heads, S, dv), seed + 2, dtype),
    )


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of weights and log-sum-exp for inputs of this type."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def tolerances(expected: loops.Loops, dtype: np.dtype[Any]) -> tuple[float, float, float]:
    """Allowed |error| of an output, a weight and a log-sum-exp (that one relative, at least 1)."""
    if dtype == np.float64:
        weight = 1e-13 + 2.0**-52 * expected.largest_score
        return weight * expected.largest_value, weight, 1e-13
    weight = 2e-6 + 2.0**-23 * expected.largest_score
    rounding = HALF_ROUNDING.get(dtype, 0.0)
    return (weight + rounding) * expected.largest_value, weight, 2e-6


def assert_near(actual: Array, expected: Array, tolerance: Any, what: str) -> None:
    """Same places of NaN and infinity, and |difference| <= tolerance elsewhere."""
    actual = np.asarray(actual).astype(np.float64)
    assert actual.shape == expected.shape, what
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite], err_msg=what)
    difference = np.where(finite, np.abs(actual - np.where(finite, expected, 0.0)), 0.0)
    worst = difference - tolerance
    assert not np.isnan(difference).any(), f"{what}: NaN where {expected[np.isnan(difference)]}"
    assert (worst <= 0).all(), f"{what}: off by {difference.max()}, allowed {np.max(tolerance)}"


def assert_out(out: Array, expected: loops.Loops, dtype: np.dtype[Any]) -> None:
    assert type(out) is np.ndarray
    assert out.dtype == dtype
    assert out.dtype.isnative
    assert_near(out, expected.out, tolerances(expected, dtype)[0], "out")
    blind = ~expected.visible.any(axis=-1)
    assert (out[blind] == 0).all(), "a query that sees nothing has output 0"


def assert_lse(lse: Array, expected: loops.Loops, dtype: np.dtype[Any]) -> None:
    assert type(lse) is np.ndarray
    assert lse.dtype == accumulator(dtype)
    assert lse.dtype.isnative
    size = np.where(np.isfinite(expected.lse), np.maximum(1, np.abs(expected.lse)), 1)
    # a score that is the small sum of large products has their rounding, in every order of adding
    rounding = 0 if dtype == np.float64 else 2.0**-24 * expected.largest_score
    assert_near(lse, expected.lse, tolerances(expected, dtype)[2] * size + rounding, "lse")


def assert_weights(weights: Array, expected: loops.Loops, dtype: np.dtype[Any]) -> None:
    assert type(weights) is np.ndarray
    assert weights.dtype == accumulator(dtype)
    assert weights.dtype.isnative
    # What a hidden cell of a NaN row holds is nobody's promise.
    sound = ~np.isnan(expected.lse)[..., None] | expected.visible
    assert weights.shape == expected.weights.shape
    masked = np.where(sound, weights, 0)
    assert_near(masked, expected.weights, tolerances(expected, dtype)[1], "weights")
    assert (masked[~expected.visible] == 0).all(), "a hidden cell has weight 0"


def agree(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> loops.Loops:
    """Call attention in each way of returning, compare with the loops, give what the loops gave."""
    expected = loops.attention(query, key, value, attn_mask, **options)
    dtype = np.asarray(query).dtype.newbyteorder("=")
    call = (query, key, value, attn_mask)

    out = qkv.attention(*call, **options)
    assert_out(out, expected, dtype)

    out, lse = qkv.attention(*call, **options, return_lse=True)
    assert_out(out, expected, dtype)
    assert_lse(lse, expected, dtype)

    out, weights = qkv.attention(*call, **options, return_weights=True)
    assert_out(out, expected, dtype)
    assert_weights(weights, expected, dtype)

    out, weights, lse = qkv.attention(*call, **options, return_weights=True, return_lse=True)
    assert_out(out, expected, dtype)
    assert_weights(weights, expected, dtype)
    assert_lse(lse, expected, dtype)
    return expected
