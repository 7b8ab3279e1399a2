"""Tests of the names of defects: a name explains nine in ten wrong cases, or is not given."""

import numpy as np
import pytest

import qkv


def simple(query, key, value, scale=None, exp=np.exp, epsilon=0.0, attn_mask=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * np.float32(scale)) @ key.swapaxes(-1, -2)
    scores = scores if attn_mask is None else scores + attn_mask
    e = exp(scores - scores.max(axis=-1, keepdims=True))
    return (e @ value / (e.sum(axis=-1, keepdims=True) + np.float32(epsilon))).astype(query.dtype)


def with_epsilon(query, key, value):
    return simple(query, key, value, epsilon=1e-3)


def schraudolph(query, key, value):
    def exp(x):
        bits = (np.float32(12102203) * np.maximum(x, -80) + np.float32(1064866805)).astype(np.int32)
        return bits.view(np.float32)

    return simple(query, key, value, exp=exp)


def int8(query, key, value):
    def rounded(x):
        step = np.abs(x).max(axis=-1, keepdims=True) / 127
        return (np.round(x / np.where(step == 0, 1, step)) * step).astype(x.dtype)

    return simple(rounded(query), rounded(key), value)


def lost_tile(query, key, value):
    S = key.shape[2] // 32 * 32 or key.shape[2]
    return simple(query, key[:, :, :S], value[:, :, :S])


def constant_scale(query, key, value, scale=None):
    return simple(query, key, value, 0.5 if scale is None else scale)


def finite(query, key, value, attn_mask=None):
    if attn_mask is not None and attn_mask.dtype == bool:
        attn_mask = np.where(attn_mask, 0, -1e9).astype(np.float32)
    low = np.float32(-1e9)
    attn_mask = None if attn_mask is None else np.maximum(attn_mask, low)
    return simple(query, key, value, attn_mask=attn_mask)


def nan_rows(query, key, value, attn_mask=None):
    if attn_mask is not None and attn_mask.dtype == bool:
        attn_mask = np.where(attn_mask, 0, -np.inf).astype(np.float32)
    return simple(query, key, value, attn_mask=attn_mask)


def zero_side(query, key, value, window=None, q_offset=0):
    sides = window and tuple(side or None for side in window)
    return qkv.attention(query, key, value, window=sides, q_offset=q_offset)


def offset_ignored(query, key, value, is_causal=False, q_offset=None, window=None):
    return qkv.attention(query, key, value, is_causal=is_causal, window=window, q_offset=0)


def transposed(query, key, value, attn_mask=None):
    if attn_mask is not None and attn_mask.shape[-1] == attn_mask.shape[-2]:
        attn_mask = attn_mask.swapaxes(-1, -2)
    return qkv.attention(query, key, value, attn_mask=attn_mask)


def decode(query, key, value, softcap=None, attn_mask=None):
    softcap = None if query.shape[2] == 1 else softcap
    return qkv.attention(query, key, value, softcap=softcap, attn_mask=attn_mask)


def base_10(query, key, value, return_lse=False):
    found = qkv.attention(query, key, value, return_lse=return_lse)
    return (found[0], found[1] / np.float32(np.log(10))) if return_lse else found


@pytest.mark.parametrize(
    ("function", "feature", "said"),
    [
        (with_epsilon, "plain", "added 0.001 to the sum of weights"),
        (schraudolph, "plain", "approximated the exponential by lines between powers of 2"),
        (int8, "plain", "quantized each row of queries and keys to integers up to 127"),
        (lost_tile, "plain", "after the last whole tile of 32, if there is a whole tile"),
        (constant_scale, "plain", "used the constant 0.5 as the scale if no scale is given"),
        (finite, "rows that see nothing", "added a finite number to masked scores"),
        (nan_rows, "rows that see nothing", "divided 0 by 0 in rows that see nothing"),
        (zero_side, "window", "treated a side of 0 of the window as no limit"),
        (offset_ignored, "q_offset", "ignored q_offset"),
        (transposed, "bool mask", "read the mask as (S, L) instead of (L, S)"),
        (decode, "softcap", "ignored softcap in calls with one query"),
        (base_10, "LSE", "returned the LSE in base 10"),
    ],
)
def test_a_defect_is_named(function, feature, said):
    report = qkv.conform(function)
    assert said in report.remark(feature), report
    explained, compared = report.findings[feature].explanation.explains
    assert explained >= 0.9 * compared > 0
    assert f"the defect explains {explained} of the {compared} wrong cases compared" in str(report)
    earlier = [*report.features][: [*report.features].index(feature)]
    assert not {report.features[name] for name in earlier if name != "empty"} & {"wrong"}


def test_a_name_that_explains_few_of_the_wrong_cases_is_not_given():
    def attention(query, key, value):
        many = key.shape[2] > 60  # the number of keys decides between two defects
        return simple(query, key, value, scale=1.0 if many else None, epsilon=0 if many else 1)

    report = qkv.conform(attention, features=["plain"])
    assert report.features == {"plain": "wrong"}
    assert report.findings["plain"].explanation is None


def test_a_mistake_of_windows_is_not_filed_under_offsets():
    def attention(query, key, value, is_causal=False, window=None, q_offset=None):
        if window is not None:
            window = (window[0], window[0])
        return qkv.attention(
            query, key, value, is_causal=is_causal, window=window, q_offset=q_offset
        )

    report = qkv.conform(attention, features=["causal", "q_offset", "window"])
    assert report.features == {"causal": "right", "q_offset": "right", "window": "wrong"}, report
    assert "the right side of the window had the width of the left side" in report.remark("window")
