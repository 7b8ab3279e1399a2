"""Tests of functions that take only some sizes: a card states the limits, and judges the rest."""

import os

import numpy as np
import pytest

import qkv


def limited(takes, spoil=lambda out: out):
    """Return attention that raises an error unless `takes(B, L, S, d)` is true."""

    def attention(query, key, value, *, is_causal=False, q_offset="end", softcap=None):
        B, _, L, d = query.shape
        if not takes(B, L, key.shape[2], d):
            raise NotImplementedError(f"head size {d} is not aligned to 8 elements")
        options = {"is_causal": is_causal, "q_offset": q_offset, "softcap": softcap}
        return spoil(qkv.attention(query, key, value, **options))

    return attention


FEATURES = ["plain", "causal", "q_offset", "softcap", "half precision", "strides"]


@pytest.mark.parametrize(
    ("takes", "limits"),
    [
        (lambda B, L, S, d: True, ()),
        (lambda B, L, S, d: d in (64, 96, 128), ("d is 64, 96 or 128",)),
        (lambda B, L, S, d: d % 8 == 0, ("d is a multiple of 8",)),
        (lambda B, L, S, d: d % 8 == 0 and d <= 128, ("d is a multiple of 8 and at most 128",)),
        (lambda B, L, S, d: L == S, ("L = S",)),
        (
            lambda B, L, S, d: L <= S and d <= 64,
            ("d is at most 64", "L is at most 64", "S is at least 64"),
        ),
        (lambda B, L, S, d: L == 1 and d == 64, ("d is 64", "L is 1")),
        (lambda B, L, S, d: B == 1 and S % 32 == 0, ("B is 1", "S is a multiple of 32")),
        (
            lambda B, L, S, d: L == S and L % 16 == 0,
            ("L is a multiple of 16", "S is a multiple of 16", "L = S"),
        ),
    ],
)
def test_limits_are_stated_and_all_cases_are_within_them(takes, limits):
    report = qkv.conform(limited(takes), features=FEATURES)
    assert report.limits == limits
    assert report.features == dict.fromkeys(FEATURES, "right"), report
    needed = [case for case in report.cases if not case.case.optional]
    assert {case.status for case in needed} == {"right"}, report
    assert len(report.cases) > 40
    said = [f"Limits: {', and '.join(limits)}. The function refuses other sizes."]
    assert str(report).splitlines()[1:2] == said or not limits
    assert report.to_dict()["limits"] == [*limits]


def test_a_defect_within_the_limits_is_found():
    spoiled = limited(lambda B, L, S, d: d % 8 == 0, lambda out: out + 0.01)
    report = qkv.conform(spoiled, features=["plain", "causal"])
    assert report.limits == ("d is a multiple of 8",)
    assert report.features["plain"] == "wrong"
    assert report.findings["plain"].case.case.d == 8


def test_sizes_that_crash_are_wrong_and_no_limit():
    def attention(query, key, value):
        if query.shape[3] == 3:
            raise ValueError("no head size of 3")
        if key.shape[2] > 64:
            os.abort()
        return qkv.attention(query, key, value)

    report = qkv.conform(attention, features=["plain"])
    assert report.features == {"plain": "wrong"}
    assert "SIGABRT" in str(report)
    assert not any("S is" in limit for limit in report.limits)


def test_another_dtype_than_half_precision_is_stated_and_is_not_wrong():
    def single(query, key, value):
        return qkv.attention(query, key, value).astype(np.float32)

    report = qkv.conform(single, features=["plain", "half precision"])
    assert report.features["half precision"] == "right"
    assert "Types: the function returns float32 for float16." in str(report)
    assert report.to_dict()["returned"] == ["float32 for float16"]
    assert not qkv.conform(qkv.attention, features=["half precision"]).returned
