"""Calls so plain that they skip the checks: they end in the same numbers as all others."""

from __future__ import annotations

import numpy as np
import pytest

import qkv

from . import loops
from .support import assert_out, numbers, qkv_arrays

CASES = {
    "near": {},
    "far": {"query": 60.0},  # scores beyond what is exponentiated as it is
    "one head far": {"query": np.array([1.0, 60.0])[:, None, None]},
    "sums too large": {"value": 1e38},
    "long": {"L": 70, "S": 300},
    "one query": {"L": 1, "S": 40},
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_a_plain_call_gives_the_bits_of_a_checked_one(case: str, dtype: type) -> None:
    sizes = {name: size for name, size in CASES[case].items() if name in ("L", "S")}
    query, key, value = qkv_arrays(d=16, dv=8, dtype=dtype, **sizes)
    query = (query * CASES[case].get("query", 1)).astype(dtype)
    value = (value * CASES[case].get("value", 1)).astype(dtype)
    out, lse = qkv.attention(query, key, value, return_lse=True)
    # a place for query 0 changes nothing here, but has to be checked
    checked, checked_lse = qkv.attention(query, key, value, q_offset=0, return_lse=True)
    assert (out == checked).all()
    assert (lse == checked_lse).all()
    assert lse.dtype == checked_lse.dtype
    assert_out(out, loops.attention(query, key, value), np.dtype(dtype))


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_what_is_not_finite_shows_in_a_plain_call(what: float) -> None:
    query, key, value = qkv_arrays(L=4, S=6, dv=2)
    value[0, 1, 3, 1] = what
    out = qkv.attention(query, key, value)
    assert np.isfinite(np.delete(out[0, 1], 1, axis=-1)).all()
    np.testing.assert_array_equal(out[0, 1, :, 1], what)
    assert np.isfinite(out[1]).all()


def test_a_plain_call_leaves_its_inputs_and_earlier_results_alone() -> None:
    # its room is used again by the next call of the thread
    given = [numbers((2, 40, 8), seed) for seed in range(3)]
    kept = [array.copy() for array in given]
    first = qkv.attention(*given)
    before = first.copy()
    qkv.attention(*(array[::-1] * 3 for array in given))
    assert (first == before).all()
    assert all((array == copy).all() for array, copy in zip(given, kept, strict=True))
