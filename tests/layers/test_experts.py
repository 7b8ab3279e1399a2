"""Tests that compare a mixture of experts with plain loops over numbers."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qkv.layers import MLP, Experts, GatedExperts
from qkv.layers.experts import gated_expert_shapes
from qkv.trace import Recorder
from rows import failing

from .support import Array, dot, numbers

DIM, HIDDEN, COUNT = 3, 5, 4


def drawn(dtype: Any = np.float64, gated: bool = False) -> dict[str, Array]:
    shapes = (
        dict(gated_expert_shapes(DIM, HIDDEN, COUNT))
        if gated
        else {
            "router_proj.weight": (DIM, COUNT),
            "router_proj.bias": (COUNT,),
            "experts.gate_up": (COUNT, DIM, 2 * HIDDEN),
            "experts.gate_up_bias": (COUNT, 2 * HIDDEN),
            "experts.down": (COUNT, HIDDEN, DIM),
            "experts.down_bias": (COUNT, DIM),
        }
    )
    return {
        name: numbers(*shape, seed=seed, dtype=dtype)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def one_row(row: Any, given: dict[str, Array], top_k: int, alpha: float, limit: float) -> Any:
    scores = dot(row, given["router_proj.weight"], given["router_proj.bias"])
    chosen = sorted(range(COUNT), key=lambda e: -scores[e])[:top_k]
    total = math.fsum(math.exp(scores[e]) for e in chosen)
    out = np.zeros(DIM)
    for e in chosen:
        both = dot(row, given["experts.gate_up"][e], given["experts.gate_up_bias"][e])
        hidden = []
        for gate, up in zip(both[0::2], both[1::2], strict=True):
            gate, up = min(gate, limit), max(-limit, min(up, limit))
            hidden.append((up + 1) * gate / (1 + math.exp(-alpha * gate)))
        found = dot(hidden, given["experts.down"][e], given["experts.down_bias"][e])
        out += np.array(found) * math.exp(scores[e]) / total
    return out


def one_gated_row(row: Any, given: dict[str, Array], top_k: int, normalized: bool) -> Any:
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
def test_gated_output_equals_a_row_by_row_reference(top_k: int, normalized: bool) -> None:
    given, x = drawn(gated=True), numbers(2, 6, DIM, seed=9)
    expected = np.empty_like(x)
    for place in np.ndindex(2, 6):
        expected[place] = one_gated_row(x[place], given, top_k, normalized)
    found = GatedExperts(given, top_k=top_k, normalized=normalized)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("top_k", [1, 2, COUNT])
@pytest.mark.parametrize(("alpha", "limit"), [(1.702, 7.0), (0.5, 0.3)])
def test_output_equals_a_row_by_row_reference(top_k: int, alpha: float, limit: float) -> None:
    given = drawn()
    x = numbers(2, 6, DIM, seed=9)
    before = x.copy()
    experts = Experts(given, top_k=top_k, alpha=alpha, limit=limit)
    expected = np.empty_like(x)
    for place in np.ndindex(2, 6):
        expected[place] = one_row(x[place], given, top_k, alpha, limit)
    np.testing.assert_allclose(experts(x), expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_array_equal(experts.forward(x), experts(x))
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_a_trace_has_the_routers_probabilities_and_choices(normalized: bool, packed: bool) -> None:
    given = drawn(gated=True)
    layer = GatedExperts(given, top_k=2, normalized=normalized)
    x = numbers(6, DIM, seed=9) if packed else numbers(2, 3, DIM, seed=9)
    record = Recorder(lambda name: True)
    out = layer(x, record=record)
    scores = np.exp(x @ given["router_proj.weight"])
    expected = scores / scores.sum(-1, keepdims=True)
    found = record.arrays["hook_expert_weights"]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    chosen = np.argsort(-expected, axis=-1)[..., :2]
    np.testing.assert_array_equal(record.arrays["hook_expert_indices"], chosen)
    last_two = np.arange(1.0, COUNT + 1) / 10 * np.ones_like(expected)  # not in the order of scores
    record = Recorder(lambda name: True, {"hook_expert_weights": lambda _: last_two})
    edited = layer(x, record=record)
    np.testing.assert_array_equal(record.arrays["hook_expert_indices"][..., 0], COUNT - 1)
    shares = np.array([0.4, 0.3]) / (0.7 if normalized else 1)
    names = [f"{name}_proj.weight" for name in ("gate", "up", "down")]
    one, other = (
        MLP.from_parameters({it: given[f"experts.{e}.{it}"] for it in names}, activation="silu")(x)
        for e in (3, 2)
    )
    np.testing.assert_allclose(edited, shares[0] * one + shares[1] * other, rtol=1e-12)
    assert np.abs(edited - out).max() > 1e-3


def test_default_alpha_and_limit_are_those_of_gpt_oss() -> None:
    x = 20 * numbers(4, DIM, seed=9)
    found = Experts(drawn(), top_k=2)(x)
    np.testing.assert_array_equal(found, Experts(drawn(), top_k=2, alpha=1.702, limit=7.0)(x))
    assert (found != Experts(drawn(), top_k=2, alpha=1.702, limit=8.0)(x)).any()


def test_ties_between_experts_select_the_first_ones() -> None:
    given = drawn()
    given["router_proj.weight"][:], given["router_proj.bias"][:] = 0, 0
    x = numbers(5, DIM)
    only_these = {name: array[..., :2] for name, array in given.items() if "router" in name}
    only_these |= {name: array[:2] for name, array in given.items() if "router" not in name}
    np.testing.assert_array_equal(Experts(given, top_k=2)(x), Experts(only_these, top_k=2)(x))


@pytest.mark.parametrize("kind", [Experts, GatedExperts])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_types(dtype: Any, kind: Any) -> None:
    given = drawn(dtype, kind is GatedExperts)
    x, residual = numbers(7, DIM, seed=1, dtype=dtype), numbers(7, DIM, seed=2, dtype=dtype)
    exact = kind({name: array.astype(np.float64) for name, array in given.items()}, top_k=2)
    expected = exact(x.astype(np.float64), residual=residual.astype(np.float64))
    found = kind(given, top_k=2)(x, residual=residual)
    assert found.dtype == dtype
    close = 1e-5 if dtype == np.float32 else 2e-2
    np.testing.assert_allclose(found.astype(np.float64), expected, close, close)
    wide = kind(given, top_k=2)(x, residual=residual.astype(np.float32))
    assert wide.dtype == np.float32
    np.testing.assert_allclose(wide, expected, close, close)


def test_whole_numbers_take_the_type_of_the_parameters() -> None:
    experts = Experts(drawn(np.float32), top_k=1)
    x = np.array([[1, -2, 3]])
    assert experts(x).dtype == np.float32
    np.testing.assert_allclose(experts(x), experts(x.astype(np.float64)), 1e-5, 1e-5)


def test_replaced_parameters_take_effect_at_once() -> None:
    experts, x = Experts(drawn(), top_k=2), numbers(4, DIM)
    experts(x)
    for name, array in drawn().items():
        experts.parameters[name] = array[..., ::-1].copy()
        np.testing.assert_array_equal(experts(x), Experts(experts.parameters, top_k=2)(x))


def test_no_rows() -> None:
    assert Experts(drawn(), top_k=2)(np.zeros((0, DIM))).shape == (0, DIM)


def test_a_nan_stays_in_its_row() -> None:
    x = numbers(4, DIM)
    clean = Experts(drawn(), top_k=2)(x)
    x[2, 1] = np.nan
    found = Experts(drawn(), top_k=2)(x)
    assert np.isnan(found[2]).all()
    np.testing.assert_allclose(found[[0, 1, 3]], clean[[0, 1, 3]], 1e-13)


@pytest.mark.parametrize("change", [*sorted(drawn()), "experts.2.up_proj.weight"])
def test_parameters_that_do_not_fit(change: str) -> None:
    for kind in (Experts, GatedExperts):
        given = drawn(gated=kind is GatedExperts)
        if change not in given:
            continue
        fewer = {name: array for name, array in given.items() if name != change}
        with pytest.raises(ValueError, match=rf"^{kind.__name__}: .*{change}"):
            kind(fewer, top_k=1)
        given[change] = given[change][:-1] if kind is GatedExperts else given[change][..., :-1]
        said = change if kind is GatedExperts else "(must have|has shape)"
        with pytest.raises(ValueError, match=rf"^{kind.__name__}: .*{said}"):
            kind(given, top_k=1)


def test_settings_that_make_no_sense() -> None:
    for settings, message in (
        ({"top_k": 5}, "top_k is 5, but there are 4 experts"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1, "alpha": 0.0}, "alpha is 0.0"),
        ({"top_k": 1, "limit": math.inf}, "limit is inf"),
    ):
        with failing(settings, message), pytest.raises(ValueError, match=message):
            Experts(drawn(), **settings)
    with pytest.raises(ValueError, match="top_k is 5, but there are 4 experts"):
        GatedExperts(drawn(gated=True), top_k=5)


def test_other_errors() -> None:
    experts = Experts(drawn(), top_k=1)
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(\.\.\., 3\)"):
        experts(np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"\(4, 5\): it must be \(E, F, D\)"):
        Experts(drawn() | {"experts.down": np.ones((4, 5))}, top_k=1)
    with pytest.raises(TypeError, match=r"experts\.down is int64"):
        Experts(drawn() | {"experts.down": np.ones((4, 5, 3), int)}, top_k=1)
