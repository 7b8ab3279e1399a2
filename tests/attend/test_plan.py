"""Tests that results stay the same if calls of the same shapes share a cached plan."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.attend.arguments import plan_of

from . import loops
from .support import assert_out, numbers, qkv_arrays

CASES = {
    "near": {},
    "far": {"query": 60.0},  # scores that are too large for exp without a shift
    "one head far": {"query": np.array([1.0, 60.0])[:, None, None]},
    "sums too large": {"value": 1e38},
    "long": {"L": 70, "S": 300},
    "one query": {"L": 1, "S": 40},
}


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(
            *(case, dtype),
            marks=pytest.mark.attack if (case, dtype) == ("long", np.float64) else [],
        )
        for case in CASES
        for dtype in (np.float32, np.float64)
    ],
)
def test_key_lengths_without_padding_do_not_change_the_bits(case: str, dtype: type) -> None:
    sizes = {name: size for name, size in CASES[case].items() if name in ("L", "S")}
    query, key, value = qkv_arrays(d=16, dv=8, dtype=dtype, **sizes)
    query = (query * CASES[case].get("query", 1)).astype(dtype)
    value = (value * CASES[case].get("value", 1)).astype(dtype)
    out, lse = qkv.attention(query, key, value, return_lse=True)
    # No key is padding, so `key_lengths` must not change the result.
    limited, limited_lse = qkv.attention(
        query, key, value, key_lengths=key.shape[-2], return_lse=True
    )
    assert (out == limited).all()
    assert (lse == limited_lse).all()
    assert lse.dtype == limited_lse.dtype
    assert_out(out, loops.attention(query, key, value), np.dtype(dtype))


def test_a_plain_call_leaves_its_inputs_and_earlier_results_alone() -> None:
    # The next call of the thread reuses the scratch buffers.
    given = [numbers((2, 40, 8), seed) for seed in range(3)]
    kept = [array.copy() for array in given]
    first = qkv.attention(*given)
    before = first.copy()
    qkv.attention(*(array[::-1] * 3 for array in given))
    assert (first == before).all()
    assert all((array == copy).all() for array, copy in zip(given, kept, strict=True))


def test_a_plan_is_made_once_for_the_same_shapes_and_types() -> None:
    plan_of.cache_clear()
    for seed in range(3):
        query, key, value = (numbers((2, 5, 8), seed + n).astype(np.float32) for n in range(3))
        qkv.attention(query, key, value)
        qkv.attention(query, key, value, is_causal=True, scale=0.1 * (seed + 1), softcap=5.0)
        qkv.attention(query, key, value, np.ones((5, 5), bool), window=(seed, 0))
    assert plan_of.cache_info().misses == 1
    qkv.attention(query, key[:, :4], value[:, :4])
    qkv.attention(*(x.astype(np.float64) for x in (query, key, value)))
    assert plan_of.cache_info().misses == 3


def test_plans_are_bounded() -> None:
    most = plan_of.cache_info().maxsize
    assert most is not None
    query = np.ones((1, 1), np.float32)
    for keys in range(most + 10):
        key = np.ones((keys, 1), np.float32)
        qkv.attention(query, key, key)
    assert plan_of.cache_info().currsize == most


def test_a_refused_call_is_refused_each_time_and_not_cached() -> None:
    query, key, value = qkv_arrays(L=3, S=4)
    kept = plan_of.cache_info().currsize
    for _ in range(3):
        with pytest.raises(ValueError, match=r"^attention: query has size \d+ and key has size"):
            qkv.attention(query[..., :-1], key, value)
    assert plan_of.cache_info().currsize == kept


def test_the_error_names_the_call_that_was_made() -> None:
    query, key, value = qkv_arrays(L=3, S=4)
    for call in (qkv.attention, qkv.summarize_attention, qkv.trace_attention):
        with pytest.raises(ValueError, match=f"^{call.__name__}: key has 4 rows and value has 3"):
            call(query, key, value[..., :-1, :])


@pytest.mark.parametrize(
    ("good", "bad", "error"),
    [
        ({"is_causal": True}, {"is_causal": 1}, "is_causal is 1"),
        ({"is_causal": False}, {"is_causal": 0.0}, "is_causal is 0.0"),
        ({"window": (1, 0)}, {"window": (True, 0)}, "a side of `window` is True"),
        ({"window": (1, 0)}, {"window": (1.0, 0)}, "a side of `window` is float"),
        ({"q_offset": 1}, {"q_offset": True}, "q_offset is bool"),
        ({"q_offset": 1}, {"q_offset": 1.0}, "q_offset is float64"),
        ({"softcap": 1.0}, {"softcap": True}, "softcap is True"),
        ({"softcap": 1.0}, {"softcap": float("nan")}, "softcap is nan"),
        ({"scale": 1}, {"scale": True}, "scale is True"),
        ({"scale": 1.0}, {"scale": np.float32("nan")}, "scale is nan"),
        ({"key_lengths": 1}, {"key_lengths": True}, "key_lengths is bool"),
        ({"key_lengths": 4}, {"key_lengths": 5}, "key_lengths contains 5"),
        ({"attn_mask": np.ones((4, 4), bool)}, {"attn_mask": np.ones((4, 4), int)}, "int64"),
    ],
)
def test_equal_numbers_of_wrong_types_are_still_refused(
    good: dict[str, Any], bad: dict[str, Any], error: str
) -> None:
    arrays = qkv_arrays(L=4, S=4)
    for _ in range(2):  # the second call finds a cached plan
        qkv.attention(*arrays, **good)
        with pytest.raises((TypeError, ValueError), match=error):
            qkv.attention(*arrays, **bad)


class Whole(int):
    """A user's subclass of int."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"is_causal": True}, {"is_causal": np.True_}),
        ({"q_offset": 1, "is_causal": True}, {"q_offset": Whole(1), "is_causal": True}),
        ({"q_offset": 1, "is_causal": True}, {"q_offset": np.uint8(1), "is_causal": True}),
        ({"window": (1, 0)}, {"window": [Whole(1), np.int8(0)]}),
        ({"scale": 1}, {"scale": np.float32(1)}),
        ({"scale": 1.0}, {"scale": np.ones(())}),
        ({"softcap": 2}, {"softcap": np.float16(2)}),
        ({"key_lengths": 3}, {"key_lengths": Whole(3)}),
    ],
)
def test_equal_numbers_of_accepted_types_give_the_same_bits(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    arrays = qkv_arrays(L=4, S=4)
    assert (qkv.attention(*arrays, **one) == qkv.attention(*arrays, **other)).all()


def test_threads_may_plan_at_once() -> None:
    plan_of.cache_clear()
    arrays = [x.astype(np.float32) for x in qkv_arrays(L=5, S=5)]
    expected = [qkv.attention(*(x[..., :n, :] for x in arrays)) for n in range(1, 6)]
    plan_of.cache_clear()
    wrong: list[int] = []

    def work() -> None:
        for n in [*range(1, 6)] * 20:
            if (qkv.attention(*(x[..., :n, :] for x in arrays)) != expected[n - 1]).any():
                wrong.append(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
