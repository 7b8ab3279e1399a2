"""Tests that compare a mixture of gated MLPs with plain loops over numbers."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkv.layers import GatedExperts
from qkv.layers.experts import gated_expert_shapes

from .support import Array, dot, numbers

DIM, HIDDEN, COUNT = 3, 5, 4


def drawn(dtype: Any = np.float64) -> dict[str, Array]:
    shapes = dict(gated_expert_shapes(DIM, HIDDEN, COUNT))
    return {
        name: numbers(*shape, seed=seed, dtype=dtype)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def one_row(row: Any, given: dict[str, Array], top_k: int, normalized: bool) -> Any:
    scores = dot(row, given["router_proj.weight"])
    chosen = sorted(range(COUNT), key=lambda e: -scores[e])[:top_k]
    total = math.fsum(math.exp(scores[e]) for e in (chosen if normalized else range(COUNT)))
    out = np.zeros(DIM)
    for e in chosen:
        gates = dot(row, given[f"experts.{e}.gate_proj.weight"])
        ups = dot(row, given[f"experts.{e}.up_proj.weight"])
        hidden = [g / (1 + math.exp(-g)) * up for g, up in zip(gates, ups, strict=True)]
        found = dot(hidden, given[f"experts.{e}.down_proj.weight"])
        out += np.array(found) * math.exp(scores[e]) / total
    return out


@pytest.mark.parametrize("top_k", [1, 2, COUNT])
@pytest.mark.parametrize("normalized", [True, False])
def test_output_equals_a_row_by_row_reference(top_k: int, normalized: bool) -> None:
    given, x = drawn(), numbers(2, 6, DIM, seed=9)
    expected = np.empty_like(x)
    for place in np.ndindex(2, 6):
        expected[place] = one_row(x[place], given, top_k, normalized)
    found = GatedExperts(given, top_k=top_k, normalized=normalized)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_types(dtype: Any) -> None:
    given = drawn(dtype)
    x = numbers(7, DIM, seed=1, dtype=dtype)
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    expected = GatedExperts(wide, top_k=2)(x.astype(np.float64))
    found = GatedExperts(given, top_k=2)(x)
    assert found.dtype == dtype
    close = 1e-5 if dtype == np.float32 else 2e-2
    np.testing.assert_allclose(found.astype(np.float64), expected, close, close)


@pytest.mark.parametrize("change", ["router_proj.weight", "experts.2.up_proj.weight"])
def test_parameters_that_do_not_fit(change: str) -> None:
    given = drawn()
    del given[change]
    with pytest.raises(ValueError, match=rf"^GatedExperts: .*{change}"):
        GatedExperts(given, top_k=1)
    given = drawn()
    given[change] = given[change][:-1]
    with pytest.raises(ValueError, match=rf"^GatedExperts: .*{change}"):
        GatedExperts(given, top_k=1)


def test_top_k_above_the_number_of_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="top_k is 5, but there are 4 experts"):
        GatedExperts(drawn(), top_k=5)
