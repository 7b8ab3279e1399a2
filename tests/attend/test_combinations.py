"""Tests of every pair of arguments; of traces and merged halves with random arguments."""

from itertools import combinations

import numpy as np
import pytest

import qkv
from rows import failing

from . import exact, loops
from .drawn import Case, draw
from .support import (
    ON_ONE_BACKEND,
    agree,
    assert_near,
    each_backend,
    numbers,
    qkv_arrays,
    tolerances,
)
from .test_trace_attention import agree_with_trace

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
    agree(*qkv_arrays(kv_heads=1), **{"q_offset": 1} | one | two)


@ON_ONE_BACKEND
@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 150), marks=pytest.mark.attack)]
)
def test_traces_and_merged_halves_at_random(seeds: range) -> None:
    for seed in seeds:
        case = draw(40_000 + seed, kinds=("small",), cells=300)
        with failing(seed), np.errstate(all="ignore"):
            expected = exact.attention(*case.arrays, **case.options)
            small = max(np.abs(x).max(initial=0) for x in case.arrays) < 100
            if small and (expected.out == exact.NEAR).all():
                agree_with_trace(case)
                if "attn_mask" not in case.options:
                    agree_with_halves(case, expected.loops)


def agree_with_halves(case: Case, expected: loops.Loops) -> None:
    """Merge two calls with all keys: a mask selects the keys of each half."""
    options = dict(case.options)
    sinks = options.pop("sinks", None)
    near = np.arange(case.arrays[1].shape[-2]) % 2 == 0
    for _ in each_backend():
        parts = [
            qkv.attention(*case.arrays, half, **options, sinks=own, return_lse=True)
            for half, own in ((near, None), (~near, sinks))
        ]
        out, lse = qkv.merge_attention(*parts[0], *parts[1])
        tolerance, _, relative = tolerances(expected, out.dtype)
        assert_near(out, expected.out, 3 * tolerance, "out")
        size = np.where(np.isfinite(expected.lse), np.maximum(1, np.abs(expected.lse)), 1)
        assert_near(lse, expected.lse, 3 * relative * size, "lse")
