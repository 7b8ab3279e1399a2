"""Tests of every pair of arguments, and of random combinations of all arguments."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import qkv

from .cases import Case, cases
from .support import (
    ON_ONE_BACKEND,
    agree,
    assert_near,
    each_backend,
    numbers,
    qkv_arrays,
    tolerances,
)

pytestmark = pytest.mark.attack

ARGUMENTS = {
    "bool mask": {"attn_mask": np.random.default_rng(0).random((2, 1, 5, 7)) < 0.7},
    "float mask": {"attn_mask": np.where(numbers((5, 7), 1) < -1, -np.inf, numbers((5, 7), 2))},
    "bias": {"bias": np.where(numbers((2, 5, 7), 3) < -1, -np.inf, numbers((2, 5, 7), 4))},
    "causal": {"is_causal": True},
    "window": {"window": (3, 1)},
    "alibi": {"alibi_slopes": np.array([0.5, -0.25])},
    "offset end": {"q_offset": "end"},
    "offset per row": {"q_offset": np.array([-1, 3])},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": np.array([[0.5, 1.0], [2.0, -1.0]])},
    "scale": {"scale": -1.5},
    "query_lengths": {"query_lengths": np.array([5, 2])},
    "key_lengths": {"key_lengths": np.array([3, 6])},
}


PAIRS = [
    (one, two)
    for one, two in combinations(ARGUMENTS, 2)
    if not ARGUMENTS[one].keys() & ARGUMENTS[two].keys()
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_arguments_together(first: str, second: str) -> None:
    one, two = ARGUMENTS[first], ARGUMENTS[second]
    agree(*qkv_arrays(), **{"q_offset": 1} | one | two)


# The calls are small: hypothesis spends most of the time on drawing them.
thorough = settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])


@ON_ONE_BACKEND
@given(cases())
@thorough
def test_everything_at_random(case: Case) -> None:
    for _ in each_backend():
        agree(*case.arrays, **case.options)


@ON_ONE_BACKEND
@given(cases(long=True))
@settings(thorough, max_examples=40)
def test_everything_at_random_in_several_blocks(case: Case) -> None:
    for _ in each_backend():
        agree(*case.arrays, **case.options)


@ON_ONE_BACKEND
@given(cases())
@settings(thorough, max_examples=150)
def test_out_at_random(case: Case) -> None:
    query, key, value = case.arrays
    for _ in each_backend():
        expected = qkv.attention(query, key, value, **case.options)
        out = np.full(expected.shape, 7).astype(expected.dtype)
        assert qkv.attention(query, key, value, **case.options, out=out) is out
        np.testing.assert_array_equal(out.astype(float), expected.astype(float))


@ON_ONE_BACKEND  # the formula computes traces, whichever backend is set
@given(cases())
@settings(thorough, max_examples=150)
def test_a_trace_at_random(case: Case) -> None:
    from .test_trace_attention import agree_with_trace

    agree_with_trace(case)


@ON_ONE_BACKEND
@given(cases())
@settings(thorough, max_examples=150)
def test_a_summary_at_random(case: Case) -> None:
    from .test_summary import agree_with_summary

    for _ in each_backend():
        agree_with_summary(*case.arrays, **case.options, top_k=3)


@ON_ONE_BACKEND
@given(cases())
@settings(thorough, max_examples=100)
def test_two_halves_merged_at_random(case: Case) -> None:
    from . import loops

    query, key, value = case.arrays
    options = dict(case.options)
    expected = loops.attention(query, key, value, **options)
    # A mask selects the keys of each half. Both calls get all keys, each at its own position, so
    # options that depend on positions stay valid.
    S = key.shape[-2]
    if options.get("attn_mask") is not None:
        return
    sinks = options.pop("sinks", None)
    near = np.arange(S) % 2 == 0
    for _ in each_backend():
        parts = [
            qkv.attention(query, key, value, half, **options, sinks=own, return_lse=True)
            for half, own in ((near, None), (~near, sinks))
        ]
        out, lse = qkv.merge_attention(*parts[0], *parts[1])
        dtype = query.dtype.newbyteorder("=")
        tolerance, _, relative = tolerances(expected, dtype)
        assert_near(out, expected.out, 3 * tolerance, "out")
        size = np.where(np.isfinite(expected.lse), np.maximum(1, np.abs(expected.lse)), 1)
        assert_near(lse, expected.lse, 3 * relative * size, "lse")
