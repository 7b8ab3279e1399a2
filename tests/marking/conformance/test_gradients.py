"""Tests of backward passes: the formula against central differences, and planted mistakes."""

import numpy as np
import pytest

import qkv
from qkv_marking.conformance._random_arrays import draw, values
from qkv_marking.conformance._reference import run
from qkv_marking.conformance._runs import drop_undocumented
from qkv_marking.conformance.read_cases import Case, plan_cases

CASES = [case for case in plan_cases(["float64"], []) if case.feature == "gradient"]
CASES = [case.fit({*case.options}, "end", ()) or case for case in CASES]


def central(case, drawn, name, h=1e-6):
    """Return the gradient of sum(grad_out * out) by central differences of each element."""
    assert case.Hq == case.Hkv  # each key head has one query head, so heads are independent
    found = np.zeros(drawn[name].shape)
    for place in np.ndindex(found.shape[2:]):
        sides = []
        for step in (h, -h):
            moved = drawn[name].copy()
            moved[:, :, *place] += step
            out = run(values(case, {**drawn, name: moved})).out
            sides.append((out * drawn["grad_out"]).sum((2, 3)))
        found[:, :, *place] = (sides[0] - sides[1]) / (2 * h)
    return found


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.size()[1] < 600 and case.Hq == case.Hkv],
    ids=lambda c: c.name,
)
def test_formula_gradients_equal_central_differences(case):
    drawn = draw(case)
    right = run(values(case, drawn))
    for name in ("query", "key", "value"):
        truth = central(case, drawn, name)
        np.testing.assert_allclose(getattr(right, f"d_{name}"), truth, rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_formula_gradients_equal_attention_grad(case):
    drawn = draw(case)
    right = run(values(case, drawn))
    options = {name: x for name, x in drawn.items() if name not in ("query", "key", "value")}
    inputs = [drawn[name] for name in ("query", "key", "value")]
    ours = qkv.attention_grad(*inputs, options.pop("grad_out"), **options)
    for name in ("query", "key", "value"):
        found = getattr(ours, name)
        np.testing.assert_allclose(getattr(right, f"d_{name}"), found, rtol=0, atol=1e-11)


def test_attention_grad_is_right():
    report = qkv.conform(qkv.attention, gradient=qkv.attention_grad, features=["gradient"])
    assert report.features == {"gradient": "right"}, report


def spoiled(how):
    def gradient(query, key, value, grad_out, **options):
        G = query.shape[1] // key.shape[1]
        if how == "softcap":
            options.pop("softcap", None)
        found = qkv.attention_grad(query, key, value, grad_out, **options)
        scale = options.get("scale") or query.shape[-1] ** -0.5
        if how == "query":
            return found.query / scale, found.key, found.value
        if how == "mean":
            return found.query, found.key / G, found.value / G
        if how == "tile":
            kept = (np.arange(key.shape[2]) < key.shape[2] // 8 * 8)[:, None]
            return found.query, found.key * kept, found.value * kept
        return found[:3]

    return gradient


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("query", "did not apply the scale in the gradient of queries"),
        ("mean", "were means instead of sums over the query heads"),
        ("tile", "left gradients at 0 for keys after the last whole tile of 8"),
    ],
)
def test_a_planted_mistake_is_named(how, said):
    report = qkv.conform(qkv.attention, gradient=spoiled(how), features=["gradient"])
    assert report.features == {"gradient": "wrong"}
    assert said in report.remark("gradient"), report


def test_a_gradient_that_ignores_softcap_is_wrong():
    report = qkv.conform(qkv.attention, gradient=spoiled("softcap"), features=["gradient"])
    assert report.features == {"gradient": "wrong"}


@pytest.mark.parametrize(
    ("case", "without"),
    [
        (Case("gradient", options={"attn_mask": "bool BHLS blind"}), {"attn_mask": "bool BHLS"}),
        (Case("gradient", options={"key_lengths": "B blind"}), {"key_lengths": "B"}),
        (Case("gradient", L=5, S=3, options={"is_causal": True, "q_offset": -2}), {"q_offset": 0}),
    ],
)
def test_a_gradient_is_fragile_only_if_it_is_right_without_rows_that_see_nothing(case, without):
    right = run(values(case, draw(case)))
    assert not right.seen.any(-1).all()
    defined = drop_undocumented(case)
    assert defined.options == {**case.options, **without}
    assert run(values(defined, draw(defined))).seen.any(-1).all()
    assert drop_undocumented(defined) is None
    assert drop_undocumented(Case("gradient", L=7, S=3)) is None
