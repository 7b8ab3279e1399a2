"""Tests of head sizes near the kernel's limit for queries and keys; values have no limit."""

from typing import Any

import numpy as np
import pytest

import qkv

from .support import FLOATS, agree, numbers, qkv_arrays
from .test_summary import agree_with_summary
from .test_varlen import agree_with_varlen, packed

pytestmark = pytest.mark.attack

SIZES = [(255, 7), (256, 300), (257, 256), (300, 33), (1, 1000), (64, 300)]
LENGTHS = [2, 20]  # few queries, as in decoding, and a block of queries


@pytest.mark.parametrize(("d", "dv"), SIZES)
@pytest.mark.parametrize("L", LENGTHS)
def test_attention_of_any_size(L: int, d: int, dv: int) -> None:
    agree(*qkv_arrays((), heads=2, kv_heads=1, L=L, S=37, d=d, dv=dv))
    mask = numbers((L, 9), 5)
    agree(*qkv_arrays((), L=L, S=9, d=d, dv=dv), mask, is_causal=True, q_offset="end")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("d", [255, 256, 257])
def test_attention_of_any_size_and_type(d: int, dtype: Any) -> None:
    for L in LENGTHS:
        agree(*qkv_arrays((), heads=1, L=L, S=9, d=d, dv=12, dtype=dtype))


@pytest.mark.parametrize(("d", "dv"), SIZES)
def test_packed_rows_of_any_size(d: int, dv: int) -> None:
    agree_with_varlen(*packed([2, 20, 0], [5, 20, 3], heads=2, kv_heads=1, d=d, dv=dv))


@pytest.mark.parametrize(("d", "dv"), SIZES)
@pytest.mark.parametrize("L", LENGTHS)
def test_a_summary_of_any_size(L: int, d: int, dv: int) -> None:
    agree_with_summary(*qkv_arrays((), heads=2, kv_heads=1, L=L, S=37, d=d, dv=dv))


@pytest.mark.parametrize("d", [255, 256, 257, 300])
def test_many_queries_and_keys_of_any_size(d: int) -> None:
    query, key = numbers((2, 500, d), 0), numbers((2, 600, d), 1)
    value = numbers((2, 600, 300), 2)
    scores = query.astype(np.float64) @ key.swapaxes(-1, -2) / np.sqrt(d)
    weights = np.exp(scores)
    truth = weights / weights.sum(axis=-1, keepdims=True) @ value
    allowed = (2e-6 + 2.0**-23 * np.abs(scores).max()) * np.abs(value).max()
    assert np.abs(qkv.attention(query, key, value) - truth).max() <= allowed
