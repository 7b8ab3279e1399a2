"""Functions that cut arrays into random chunks and compare results with the formula.

The allowed errors are twice the tolerances of `attend.support.tolerances`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask.array as da
import numpy as np
import pytest

from attend.drawn import Case
from attend.loops import Array, Loops
from attend.support import accumulator, assert_near, tolerances
from qkv.ops.kernel import BACKENDS


@contextmanager
def a_backend(seed: int) -> Iterator[str]:
    """Set one of the backends that this machine can run, chosen by the seed, and yield its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_BACKEND", name := BACKENDS[seed % len(BACKENDS)])
        yield name


def pieces(rng: np.random.Generator, size: int, most: int = 4) -> tuple[int, ...]:
    """Return random chunk sizes that sum to `size`, occasionally with empty chunks."""
    cuts = rng.integers(0 if rng.random() < 0.1 else min(1, size), size + 1, rng.integers(most))
    return tuple(int(n) for n in np.diff([0, *np.sort(cuts), size]) if n or rng.random() < 0.1) or (
        size,
    )


def cut(rng: np.random.Generator, array: Array, most: int = 4) -> Any:
    """Return a dask array of the same numbers in random chunks."""
    return da.from_array(array, chunks=tuple(pieces(rng, size, most) for size in array.shape))


def cut_case(rng: np.random.Generator, case: Case) -> tuple[list[Any], dict[str, Any]]:
    """Cut query, key and value of a case, and some of its array options, into dask arrays."""
    options = dict(case.options)
    for name in ("attn_mask", "bias", "sinks", "alibi_slopes"):
        if name in options and rng.random() < 0.7:
            options[name] = cut(rng, np.asarray(options[name]))
    return [cut(rng, x) for x in case.arrays], options


def assert_results(
    out: Array, weights: Array, lse: Array, expected: Loops, dtype: np.dtype[Any]
) -> None:
    """Check output, weights and log-sum-exp at twice their tolerances."""
    allowed, weight, relative = (2 * x for x in tolerances(expected, dtype))
    assert out.dtype == dtype
    assert weights.dtype == lse.dtype == accumulator(dtype)
    assert_near(out, expected.out, allowed, "out")
    assert (out[~expected.visible.any(axis=-1)] == 0).all(), "a query that sees nothing is 0"

    size = np.where(np.isfinite(expected.lse), np.maximum(1, np.abs(expected.lse)), 1)
    rounding = np.finfo(lse.dtype).eps * expected.largest_score
    assert_near(lse, expected.lse, relative * size + rounding, "lse")

    # in a row whose log-sum-exp is NaN, the weights of masked keys are not specified
    sound = ~np.isnan(expected.lse)[..., None] | expected.visible
    assert weights.shape == expected.weights.shape
    shown = np.where(sound, weights, 0)
    assert_near(shown, expected.weights, weight, "weights")
    assert (shown[~expected.visible] == 0).all(), "a hidden cell has weight 0"
