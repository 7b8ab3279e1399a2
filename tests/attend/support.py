"""Inputs of the tests of attention, and comparisons with `loops.py` within the tolerances."""

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
# The largest relative error of rounding to the nearest number.
HALF_ROUNDING = {np.dtype(np.float16): 2.0**-11, BFLOAT16: 2.0**-8}

# For tests whose result does not depend on the backend: tests of test helpers, tests whose
# subprocesses choose a backend, and tests of float64, which NumPy computes with every backend.
ON_ONE_BACKEND = pytest.mark.usefixtures("best_backend_alone")


def each_backend(backends: Sequence[str] = BACKENDS) -> Iterator[str]:
    """Select each backend in turn, in a test whose expected results take long to compute."""
    with pytest.MonkeyPatch.context() as patch:
        for backend in backends:
            patch.setenv("QKV_BACKEND", backend)
            yield backend


def numbers(shape: Any, seed: int = 0, dtype: Any = np.float32, size: float = 1.0) -> Array:
    """Draw an array of normal numbers."""
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
    """Draw query (*lead, heads, L, d) and key and value (*lead, kv_heads, S, d or dv)."""
    kv_heads = heads if kv_heads is None else kv_heads
    return (
        numbers((*lead, heads, L, d), seed, dtype),
        numbers((*lead, kv_heads, S, d), seed + 1, dtype),
        numbers((*lead, kv_heads, S, dv), seed + 2, dtype),
    )


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of weights and log-sum-exps for inputs of this type."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def tolerances(expected: loops.Loops, dtype: np.dtype[Any]) -> tuple[float, float, float]:
    """Return the allowed errors of outputs, weights (absolute) and log-sum-exps (relative)."""
    if dtype == np.float64:
        weight = 1e-13 + 2.0**-52 * expected.largest_score
        return weight * expected.largest_value, weight, 1e-13
    weight = 2e-6 + 2.0**-23 * expected.largest_score
    rounding = HALF_ROUNDING.get(dtype, 0.0)
    return (weight + rounding) * expected.largest_value, weight, 2e-6


def assert_near(actual: Array, expected: Array, tolerance: Any, what: str) -> None:
    """Assert the same NaN and infinities, and |difference| <= tolerance for all other numbers."""
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
    assert (out[blind] == 0).all(), "a query that sees no key has the output 0"


def assert_lse(lse: Array, expected: loops.Loops, dtype: np.dtype[Any]) -> None:
    assert type(lse) is np.ndarray
    assert lse.dtype == accumulator(dtype)
    assert lse.dtype.isnative
    size = np.where(np.isfinite(expected.lse), np.maximum(1, np.abs(expected.lse)), 1)
    # A small score may be the sum of large products, and then has their rounding errors.
    rounding = 0 if dtype == np.float64 else 2.0**-24 * expected.largest_score
    assert_near(lse, expected.lse, tolerances(expected, dtype)[2] * size + rounding, "lse")


def assert_weights(weights: Array, expected: loops.Loops, dtype: np.dtype[Any]) -> None:
    assert type(weights) is np.ndarray
    assert weights.dtype == accumulator(dtype)
    assert weights.dtype.isnative
    # The contract does not define the weights of masked keys in a row of NaN.
    sound = ~np.isnan(expected.lse)[..., None] | expected.visible
    assert weights.shape == expected.weights.shape
    masked = np.where(sound, weights, 0)
    assert_near(masked, expected.weights, tolerances(expected, dtype)[1], "weights")
    assert (masked[~expected.visible] == 0).all(), "a masked key has the weight 0"


def agree(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> loops.Loops:
    """Compare all results of attention with the results of the loops; return the loops' results."""
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
