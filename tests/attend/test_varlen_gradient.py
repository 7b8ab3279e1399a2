"""varlen_attention_grad: packed rows get the gradients that each sequence gets alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import qkv

from .support import BFLOAT16, numbers
from .test_gradient import terms

F16, F32, F64 = (np.dtype(f"f{size}") for size in (2, 4, 8))
QUERIES, KEYS = [3, 1, 0, 40, 2, 2, 7], [4, 6, 2, 33, 0, 0, 7]
PER_HEAD = ("sinks", "alibi_slopes")


def packed(
    queries: list[int] = QUERIES,
    keys: list[int] = KEYS,
    heads: int = 4,
    kv_heads: int = 2,
    dtype: Any = F32,
    d: int = 6,
    dv: int = 5,
) -> tuple[np.ndarray, ...]:
    """Query, key, value, grad_out, and where sequences begin."""
    starts, key_starts = (np.cumsum([0, *lengths]) for lengths in (queries, keys))
    return (
        numbers((starts[-1], heads, d), 0, dtype),
        numbers((key_starts[-1], kv_heads, d), 1, dtype),
        numbers((key_starts[-1], kv_heads, dv), 2, dtype),
        numbers((starts[-1], heads, dv), 3, dtype),
        starts,
        key_starts,
    )


def one_by_one(
    query: Any, key: Any, value: Any, grad_out: Any, starts: Any, key_starts: Any, **options: Any
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """What `attention_grad` gives each sequence in float64, and how large its terms are."""
    arrays = [x.astype(F64) for x in (query, key, value, grad_out)]
    found: dict[str, Any] = {
        name: np.zeros(x.shape) for name, x in zip(("query", "key", "value"), arrays, strict=False)
    }
    found |= {name: np.zeros(np.shape(options[name])) for name in PER_HEAD if name in options}
    largest = dict.fromkeys(found, 0.0)
    offset = options.pop("q_offset", None)
    for n, ((a, b), (c, d)) in enumerate(zip(pairwise(starts), pairwise(key_starts), strict=True)):
        q, k, v, above = (
            x[part].swapaxes(0, 1)
            for x, part in zip(arrays, (slice(a, b), *[slice(c, d)] * 2, slice(a, b)), strict=True)
        )
        at = offset if offset is None or np.ndim(offset) == 0 else int(offset[n])
        here = qkv.attention_grad(q, k, v, above, q_offset=at, **options)
        found["query"][a:b] = here.query.swapaxes(0, 1)
        found["key"][c:d] = here.key.swapaxes(0, 1)
        found["value"][c:d] = here.value.swapaxes(0, 1)
        for name in PER_HEAD:
            if name in options:
                found[name] += getattr(here, name)
        weights, change = terms((q, k, v), above, options | {"q_offset": at})
        reach = max(b - a, d - c, 1) + (0 if at is None or isinstance(at, str) else abs(at))
        for name, size in (
            ("query", change.sum(-1).max(initial=0) * 10),
            ("key", change.sum((-1, -2)).max(initial=0) * 10),
            ("value", weights.sum(-2).max(initial=0) * 10),
        ):
            largest[name] = max(largest[name], size)
        for name in PER_HEAD:
            if name in options:
                largest[name] += change.sum() * reach
    return found, largest


def agree(arrays: tuple[np.ndarray, ...], **options: Any) -> qkv.AttentionGradient:
    """Compare with each sequence alone, with and without a saved forward pass."""
    dtype = arrays[0].dtype.newbyteorder("=")
    truth, largest = one_by_one(*arrays, **options)
    query, key, value, _, *starts = arrays
    forward = qkv.varlen_attention(query, key, value, *starts, **options, return_lse=True)
    for saved in (None, forward):
        found = qkv.varlen_attention_grad(*arrays, forward=saved, **options)
        assert found.bias is None
        bound = {F16: 1e-3, F32: 2e-6, BFLOAT16: 8e-3, F64: 1e-13}[dtype]
        for name in ("query", "key", "value", *PER_HEAD):
            ours = getattr(found, name)
            if name not in truth:
                assert ours is None
                continue
            per_head = np.dtype(F64 if dtype == F64 else F32)
            assert ours.dtype == (per_head if name in PER_HEAD else dtype), name
            assert ours.shape == truth[name].shape, name
            error = np.abs(ours.astype(F64) - truth[name]).max(initial=0)
            assert error <= bound * max(1, largest[name]), (name, error, largest[name])
    return found


def test_sequences_of_every_length() -> None:
    agree(packed(), scale=0.7)


@pytest.mark.parametrize("dtype", [F16, BFLOAT16, F32, F64])
def test_all_types(dtype: Any) -> None:
    agree(packed(dtype=dtype), is_causal=True, q_offset="end", sinks=np.ones(4))
