"""Tests of calls with one query, with far keys, and with extreme numbers."""

import numpy as np
import pytest

import qkv
from qkv_marking.conformance.read_cases import plan_cases

from ..formulas import softmax
from .trial.entry import takes

OPTIONS = {
    **{"scale": "scale", "is_causal": "q_offset", "q_offset": "q_offset", "bias": "bias"},
    **{"window": "window", "alibi_slopes": "ALiBi", "softcap": "softcap", "sinks": "sinks"},
    **{"key_lengths": "lengths", "attn_mask": "bool mask"},
}


def spoil(change, when):
    """Return attention that changes its arguments in some calls."""

    @takes(" ".join(OPTIONS))
    def attention(query, key, value, **options):
        options = dict.fromkeys(OPTIONS) | {"is_causal": False, "q_offset": 0} | options
        arrays = {"query": query, "key": key, "value": value}
        if when(query, key):
            change(arrays, options)
        return qkv.attention(*arrays.values(), **options)

    return attention


@pytest.mark.parametrize("option", OPTIONS)
def test_a_decode_path_that_forgets_an_option_is_wrong(option):
    def forget(arrays, options):
        options[option] = {"is_causal": False, "q_offset": 0}.get(option)

    attention = spoil(forget, lambda query, key: query.shape[2] == 1)
    report = qkv.conform(attention, features=["plain", OPTIONS[option]])
    assert report.features == {"plain": "right", OPTIONS[option]: "wrong"}


def test_a_decode_path_that_forgets_softcap_beside_sinks_is_wrong():
    def attention(query, key, value, softcap=None, sinks=None):
        both = query.shape[2] == 1 and sinks is not None
        return qkv.attention(query, key, value, softcap=None if both else softcap, sinks=sinks)

    report = qkv.conform(attention, features=["softcap", "sinks"])
    assert report.features == {"softcap": "right", "sinks": "wrong"}


def test_every_pair_of_options_has_a_case_with_one_query():
    cases = [*plan_cases(["float32"], [])]
    pairs = {(one.feature, one.name): one for one in cases if " and " in one.name}
    for (feature, name), case in pairs.items():
        if not name.endswith(("L = 1", "S = 40")) and feature not in ("window", "gradient"):
            assert pairs[feature, f"{name}, L = 1"].L == 1, case
    assert len(pairs) > 100


@pytest.mark.parametrize(
    ("option", "beyond"),
    [
        pytest.param(option, at, marks=pytest.mark.attack)
        for option, at in (("bias", 520), ("attn_mask", 520), ("attn_mask", 1030))
    ],
)
def test_a_mask_that_is_not_read_behind_a_tile_is_wrong(option, beyond):
    def cut(arrays, options):
        if options[option] is not None and options[option].shape[-1] > beyond:
            options[option] = options[option].copy()
            options[option][..., beyond:] = options[option].dtype == bool

    attention = spoil(cut, lambda query, key: key.shape[2] > beyond)
    report = qkv.conform(attention, features=["plain", OPTIONS[option]])
    assert report.features == {"plain": "right", OPTIONS[option]: "wrong"}


@pytest.mark.parametrize(
    "size", [96, *(pytest.param(n, marks=pytest.mark.attack) for n in (192, 256))]
)
def test_a_wrong_head_size_is_found(size):
    def double(arrays, options):
        arrays["value"] = 2 * arrays["value"]

    report = qkv.conform(spoil(double, lambda query, key: query.shape[3] == size))
    assert report.features["plain"] == "wrong"


def simple(query, key, value, attn_mask=None, softcap=None, scale=None, *, spoiled=""):
    query = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = query @ key.swapaxes(-1, -2)
    if spoiled == "half" and query.dtype == np.float16:
        scores = (scores * np.float16(1.4427)) / np.float16(1.4427)
    if softcap is not None and spoiled == "tanh":
        power = np.exp(2 * scores / np.float32(softcap))
        scores = softcap * (power - 1) / (power + 1)
    elif softcap is not None:
        scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
    if attn_mask is not None:
        low = np.float32(-1e4 if spoiled == "finite" else -1e30)
        added = np.where(attn_mask, 0, low) if attn_mask.dtype == bool else attn_mask
        scores = scores + np.maximum(added, low)
    if spoiled == "nan":
        scores = np.nan_to_num(scores)
    return (softmax(scores) @ value).astype(query.dtype)


@pytest.mark.parametrize(
    ("spoiled", "features"),
    [
        ("tanh", ["softcap"]),
        ("finite", ["large scores"]),
        ("half", ["half precision"]),
        ("", []),
    ],
)
def test_extreme_numbers_show_a_defect(spoiled, features):
    def attention(query, key, value, attn_mask=None, softcap=None, scale=None):
        return simple(query, key, value, attn_mask, softcap, scale, spoiled=spoiled)

    tried = ["plain", "scale", "bool mask", "softcap", "half precision", "large scores"]
    report = qkv.conform(attention, features=tried)
    assert [name for name, it in report.features.items() if it == "wrong"] == features


@pytest.mark.attack
def test_the_gradient_of_rows_that_see_nothing_is_zero():
    def gradient(query, key, value, grad_out, attn_mask=None):
        found = qkv.attention_grad(query, key, value, grad_out, attn_mask=attn_mask)
        blind = np.zeros(found.query.shape[:3], bool)
        if attn_mask is not None and attn_mask.dtype == bool:
            blind |= ~attn_mask.any(axis=-1)
        return np.where(blind[..., None], np.nan, found.query), found.key, found.value

    features = ["gradient", "rows that see nothing"]
    report = qkv.conform(qkv.attention, gradient=qkv.attention_grad, features=features)
    assert {*report.features.values()} == {"right"}
    report = qkv.conform(qkv.attention, gradient=gradient, features=features)
    assert report.features == {"rows that see nothing": "fragile", "gradient": "right"}


@pytest.mark.attack
def test_visible_nan_must_reach_the_output():
    def attention(query, key, value):
        return simple(query, key, value, spoiled="nan")

    features = ["plain", "hidden NaN"]
    report = qkv.conform(attention, features=features)
    assert report.features == {"plain": "right", "hidden NaN": "fragile"}
    report = qkv.conform(attention, features=features, strict=True)
    assert report.features == {"plain": "right", "hidden NaN": "wrong"}
