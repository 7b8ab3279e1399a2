"""Tests of 2,000 random calls with all arguments; the calls are the same in each run.

The best backend computes every call, and the other backends take turns.
"""

import warnings
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.ops.kernel import BACKENDS

from . import exact
from .drawn import Case, draw
from .loops import Loops
from .support import (
    ON_ONE_BACKEND,
    accumulator,
    assert_near,
    assert_out,
    assert_weights,
    each_backend,
    tolerances,
)
from .test_summary import assert_summary

pytestmark = pytest.mark.attack

COUNT, AT_ONCE = 2000, 50


@ON_ONE_BACKEND
@pytest.mark.parametrize("start", range(0, COUNT, AT_ONCE))
def test_random_settings(start: int) -> None:
    for seed in range(start, start + AT_ONCE):
        case = draw(seed)
        before = _bytes(case)
        expected = exact.attention(*case.arrays, **case.options)
        others = BACKENDS[1:]
        turn = seed % max(1, len(others))
        for backend in each_backend((BACKENDS[0], *others[turn : turn + 1])):
            try:
                _agree(case, seed, expected)
            except Exception as error:
                error.add_note(f"{backend}: {_described(case, seed)}")
                raise
            same = _bytes(case) == before
            assert same, f"{backend} wrote to an input: {_described(case, seed)}"


def _agree(case: Case, seed: int, expected: exact.Exact) -> None:
    """Make the call with one choice of outputs, and compare the outputs with `expected`."""
    dtype = case.arrays[0].dtype.newbyteorder("=")
    ways: list[dict[str, Any]] = [
        {"return_lse": True},
        {"return_lse": True},
        {"return_lse": True, "out": _padded(expected.out.shape, dtype)},
        {"return_weights": True, "return_lse": True},
        {"top_k": 1 + seed % 11},
    ]
    way = ways[seed % len(ways)]
    with warnings.catch_warnings():
        # Visible infinities may cause NumPy's warnings.
        warnings.simplefilter("ignore", RuntimeWarning)
        if "top_k" in way:
            given = qkv.summarize_attention(*case.arrays, **case.options, **way)
            out, lse = given.out, given.lse
        else:
            given = qkv.attention(*case.arrays, **case.options, **way)
            out, lse = given[0], given[-1]
    certain = expected.loops
    assert out.shape == certain.out.shape
    assert lse.shape == certain.lse.shape
    assert_out(_settled(out, certain.out, expected.out), certain, dtype)
    _assert_lse(_settled(lse, certain.lse, expected.rows), certain, dtype)
    if "return_weights" in way:
        weights = _settled(given[1], certain.weights, expected.rows[..., None])
        assert_weights(weights, certain, dtype)
    if "out" in way:
        assert out is way["out"]
        edges = np.delete(out.base, np.s_[1:-1], axis=-1)
        assert (edges == 7).all(), "the call wrote to memory next to out"
    if "top_k" in way and (expected.rows == exact.NEAR).all():
        assert_summary(given, certain, dtype, way["top_k"])


def _assert_lse(lse: Any, expected: Loops, dtype: np.dtype) -> None:
    """Compare log-sum-exps, and allow for the rounding of the largest score, as for weights.

    A score near 0 may be the sum of products near 1e4.
    """
    assert lse.dtype == accumulator(dtype)
    rounding = np.finfo(lse.dtype).eps * expected.largest_score
    size = np.where(np.isfinite(expected.lse), np.maximum(1, np.abs(expected.lse)), 1)
    assert_near(lse, expected.lse, tolerances(expected, dtype)[2] * size + rounding, "lse")


def _settled(actual: Any, expected: Any, certainty: Any) -> Any:
    return exact.settled(actual, expected, certainty).astype(actual.dtype)


def _padded(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array for the result, inside a larger array of sevens."""
    return np.full((*shape[:-1], shape[-1] + 2), 7, dtype)[..., 1:-1]


def _bytes(case: Case) -> list[bytes]:
    return [x.tobytes() for x in (*case.arrays, *case.options.values()) if hasattr(x, "tobytes")]


def _described(case: Case, seed: int) -> str:
    """Describe a call in an error; `draw(seed)` makes the call again."""

    def show(x: Any) -> str:
        return f"{x.dtype}{x.shape}" if isinstance(x, np.ndarray) else repr(x)

    given = ", ".join(f"{name}={show(x)}" for name, x in case.options.items())
    return f"draw({seed}): {', '.join(map(show, case.arrays))}; {given}"
