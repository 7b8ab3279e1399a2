"""Tests of report cards for kernels with planted defects.

A card names each defect under the feature that the defect breaks. One test starts with a kernel
that has three defects. The test removes a defect that the card names, and requests a new card.
These two steps repeat until no feature is wrong.
"""

import numpy as np
import pytest

import qkv
from attend import loops
from qkv_marking.conformance._defects import defects
from qkv_marking.conformance._random_arrays import draw, values
from qkv_marking.conformance._reference import GRADIENT, LINES, run
from qkv_marking.conformance.read_cases import plan_cases

from . import blind, others
from .tiled import PLANTED, kernel

FEW = ("partial-tile", "cap-last", "causal-start")  # `make attack` tries all


@pytest.mark.parametrize(
    "spoiled",
    [pytest.param(key, marks=[] if key in FEW else pytest.mark.attack) for key in PLANTED],
)
def test_each_planted_defect_is_named_at_its_feature(spoiled):
    feature, defect = PLANTED[spoiled]
    report = qkv.conform(kernel(spoiled), features={"plain", feature})
    is_fragile = feature in ("hidden NaN", "rows that see nothing")
    assert report.features[feature] == ("fragile" if is_fragile else "wrong"), report
    assert report.findings[feature].explanation.defects == (defect,), report
    if feature != "plain":
        assert report.features["plain"] == "right", report


def test_remarks_name_the_tile_size():
    report = qkv.conform(kernel("partial-tile", tile=32), features=["plain"])
    assert "after the last whole tile of 32" in report.remark("plain")
    report = qkv.conform(kernel("stale-acc", tile=8), features=["plain"])
    assert "(tiles of 8 keys)" in report.remark("plain")


@pytest.mark.parametrize(
    ("function", "feature", "said"),
    [
        (others.split_keys, "plain", "each tile of 32 keys used its own maximum"),
        (others.packed_groups, "grouped heads", "the kernel grouped heads as 0 1 0 1"),
        (others.banded, "window", "the window was one key too short on the left"),
        (others.with_log2, "sinks", "the kernel used base 2 for sinks"),
        (others.paged, "lengths", "the kernel rounded key_lengths up to whole tiles of 16 keys"),
        (blind.forgotten_output, "plain", "the kernel did not rescale the running output"),
        (
            blind.mask_after_softmax,
            "bool mask",
            "the kernel set masked weights to 0 after the softmax",
        ),
        (
            blind.cap_of_raw_scores,
            "softcap",
            "the kernel did not divide scores by softcap before tanh",
        ),
        (
            blind.symmetric_window,
            "window",
            "the right side of the window had the width of the left",
        ),
        (blind.lse_without_maximum, "LSE", "the kernel did not add the maximum to the LSE"),
    ],
)
def test_a_mistake_of_a_kernel_in_another_style_is_named(function, feature, said):
    report = qkv.conform(function, features={"plain", feature})
    assert said in report.remark(feature), report
    assert {name for name, it in report.features.items() if it == "wrong"} == {feature}


@pytest.mark.attack
def test_a_kernel_with_three_defects_is_repaired_by_its_card():
    left = ["partial-tile", "cap-last", "causal-start"]
    repairs = {PLANTED[name][1]: name for name in left}
    said = []
    while True:
        report = qkv.conform(
            kernel(*left, tile=4), features=["plain", "causal", "bool mask", "softcap"]
        )
        wrong = [name for name, it in report.features.items() if it == "wrong"]
        if not wrong:
            break
        (defect,) = report.findings[wrong[0]].explanation.defects
        said.append((wrong[0], defect))
        left.remove(repairs[defect])
    assert not left
    assert said == [
        ("plain", "last-partial-tile"),
        ("causal", "causal-first-key"),
        ("softcap", "softcap-after-mask"),
    ]


@pytest.mark.attack
def test_all_three_defects_are_named_at_once():
    report = qkv.conform(kernel("partial-tile", "cap-last", "causal-start", tile=4))
    named = {name: it.explanation.defects for name, it in report.findings.items() if it.explanation}
    assert named["plain"] == ("last-partial-tile-of-lengths",)
    assert named["causal"] == ("causal-first-key",)
    assert named["softcap"] == ("softcap-after-mask",)
    assert report.remark("softcap").endswith("(in addition to the error in plain, causal)")


def test_formula_lines_equal_plain_loops():
    checked = 0
    for case in plan_cases(["float64"], []):
        if case.size()[1] > 3000 or case.B == 0 or "aligned" in case.options.values():
            continue
        if case.spread > 1e4:  # rounding alone decides which of two scores is larger
            continue
        drawn = draw(case)
        right = run(values(case, drawn))
        options = {name: x for name, x in drawn.items() if name[:6] not in ("return", "grad_o")}
        inputs = [options.pop(name) for name in ("query", "key", "value")]
        want = loops.attention(*inputs, **options)
        atol = 1e-12 * max(1, right.largest / 1000)  # rounding errors grow with the scores
        np.testing.assert_allclose(right.out, want.out, rtol=0, atol=atol, err_msg=case.describe())
        checked += 1
        if case.poison == "inf in key":  # no case compares the weights of infinite scores
            continue
        np.testing.assert_allclose(right.lse, want.lse, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(right.weights, want.weights, rtol=0, atol=1e-12)
    assert checked > 100


@pytest.mark.attack
def test_each_defect_changes_known_lines_and_the_result_of_some_case():
    left = {one.key: one for one in defects()}
    assert len(left) > 100
    assert {name for one in left.values() for name in one.lines} <= {*LINES, *GRADIENT}
    for case in plan_cases(["float32"], ["float16"]):
        case = case.fit({name for name in case.options}, "end", ()) or case
        if case.size()[1] > 20_000 or "aligned" in case.options.values():
            continue
        given = values(case, draw(case))
        right = run(given)
        for key in [*left]:
            for one in defects():
                if one.key != key:
                    continue
                try:
                    got = one.run(given)
                except ValueError:
                    continue
                if not alike(right, got):
                    left.pop(key, None)
                    break
    assert not left


def alike(one, other):
    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)
        for a, b in zip(numbers(one), numbers(other), strict=True)
    )


def numbers(found):
    """Return the arrays of a result: output, weights, LSE and any gradients."""
    return [a for a in (*found[:3], found.d_query, found.d_key, found.d_value) if a is not None]
