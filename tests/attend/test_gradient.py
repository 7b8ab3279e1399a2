"""Tests of gradients of attention: finite differences, masked values and wrong arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkv

from . import exact
from .drawn import draw
from .support import BFLOAT16, ON_ONE_BACKEND, each_backend, numbers, qkv_arrays

F16, F32, F64 = (np.dtype(f"f{size}") for size in (2, 4, 8))
LEARNED = ("bias", "sinks", "alibi_slopes")


def total(arrays: Any, grad_out: np.ndarray, options: dict[str, Any]) -> float:
    """Return the sum of `out * grad_out`, whose gradient `attention_grad` computes."""
    found = exact.attention(*arrays, **options).loops.out
    return float(np.where(np.isfinite(found), found * grad_out, 0).sum())


def _is_extreme(option: Any) -> bool:
    """Return whether an array has NaN, +infinity, or numbers far larger than any score."""
    if not isinstance(option, np.ndarray) or option.dtype.kind in "bi":
        return False
    array = option.astype(F64)
    return bool((~(np.abs(np.where(np.isneginf(array), 0, array)) < 1e6)).any())


def slope_along(
    arrays: tuple[np.ndarray, ...], grad_out: np.ndarray, options: dict[str, Any], name: str
) -> tuple[float, np.ndarray]:
    """Return the slope of `total` in a random direction of one input, and the direction.

    The slope is a central finite difference.
    """
    given = dict(zip(("query", "key", "value"), arrays, strict=True)) | options
    here = np.asarray(given[name], F64)
    direction = numbers(here.shape, 7, F64)
    ends = []
    step = 1e-5 * max(1.0, np.abs(np.where(np.isfinite(here), here, 0)).max(initial=0))
    for sign in (1, -1):
        moved = given | {name: here + sign * step * direction}
        inputs = tuple(moved.pop(part) for part in ("query", "key", "value"))
        ends.append(total(inputs, grad_out, moved))
    return (ends[0] - ends[1]) / (2 * step), direction


@ON_ONE_BACKEND
@pytest.mark.parametrize(
    "start",
    [0, 25, *(pytest.param(start, marks=pytest.mark.attack) for start in range(50, 500, 25))],
)
def test_random_settings_against_finite_differences(start: int) -> None:
    seen = 0
    for seed in range(start, start + 25):
        case = draw(10_000 + seed, types=(F64,), cells=3000)
        if not all(np.isfinite(x).all() and np.abs(x).max(initial=0) < 100 for x in case.arrays):
            continue  # masked numbers may be NaN, and differences of huge numbers are lost
        if any(map(_is_extreme, case.options.values())):
            continue  # a score plus -3e38 is rounded to -3e38, so differences are lost
        out = qkv.attention(*case.arrays, **case.options)
        grad_out = numbers(out.shape, seed, F64)
        found = qkv.attention_grad(*case.arrays, grad_out, **case.options)
        for name in ("query", "key", "value", *LEARNED):
            if case.options.get(name, case.arrays) is None or (
                name in LEARNED and name not in case.options
            ):
                continue
            given = dict(zip(("query", "key", "value"), case.arrays, strict=True)) | case.options
            gradient = getattr(found, name)
            assert gradient.shape == np.shape(given[name]), name
            expected, direction = slope_along(case.arrays, grad_out, case.options, name)
            ours = float((gradient * np.where(np.isfinite(gradient), direction, 0)).sum())
            size = max(1.0, abs(expected), float(np.abs(gradient).max(initial=0)))
            assert abs(ours - expected) < 2e-5 * size, (seed, name, ours, expected)
            seen += 1
    assert seen > 20


def finite(array: np.ndarray) -> np.ndarray:
    """Convert to float64, and replace numbers that are not finite by 0."""
    return np.nan_to_num(array.astype(F64), posinf=0, neginf=0)


def terms(
    arrays: Any, grad_out: np.ndarray, options: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights, and an upper bound of |gradient| for each score.

    The gradient of a score is a sum of terms. The bound is the sum of their absolute values.
    """
    query, key, value = map(finite, arrays)
    out, weights = qkv.attention(query, key, value, **options, return_weights=True)
    weights = np.nan_to_num(weights)
    if query.ndim > 2:
        value = value.repeat(query.shape[-3] // value.shape[-3], -3)
    above = np.abs(grad_out @ np.swapaxes(value, -1, -2))
    return weights, weights * (above + np.abs(grad_out * out).sum(-1, keepdims=True))


@pytest.mark.attack
@ON_ONE_BACKEND
@pytest.mark.parametrize("start", range(0, 240, 20))
def test_random_settings_in_other_types_and_on_any_number_of_threads(start: int) -> None:
    seen = 0
    for seed in range(start, start + 20):
        case = draw(20_000 + seed, types=(F32, F32, F16, BFLOAT16))
        if any(np.abs(finite(x)).max(initial=0) > 100 for x in case.arrays):
            continue  # rounding errors of huge scores have no useful bound
        if any(map(_is_extreme, case.options.values())):
            continue
        kind = case.arrays[0].dtype.newbyteorder("=")
        grad_out = numbers(qkv.attention(*case.arrays, **case.options).shape, seed, kind)
        wide = [x.astype(F64) for x in (*case.arrays, grad_out)]
        truth = qkv.attention_grad(*wide, **case.options)
        weights, change = terms(case.arrays, wide[-1], case.options)
        reach = 2000 if isinstance(case.options.get("q_offset"), str | None) else 1e19
        largest = {
            "query": change.sum(-1).max(initial=0) * 10,
            "key": change.sum((-1, -2)).max(initial=0) * 10,
            "value": weights.sum(-2).max(initial=0) * 10,
            "bias": change.sum(),
            "sinks": change.sum(),
            "alibi_slopes": change.sum() * reach,
        }
        bound = {F16: 1e-3, F32: 2e-6, BFLOAT16: 8e-3}[kind]
        for backend in each_backend():
            found = []
            for threads in (1, 3):
                qkv.set_num_threads(threads)
                found.append(qkv.attention_grad(*case.arrays, grad_out, **case.options))
            for name, one, three, expected in zip(truth._fields, *found, truth, strict=True):
                if expected is None:
                    assert one is three is None
                    continue
                where = (backend, seed, name)
                assert one.dtype == (np.float32 if name in LEARNED else kind), where
                assert one.tobytes() == three.tobytes(), where
                sound = np.isfinite(expected)
                assert (np.isfinite(one.astype(F64)) == sound).all(), where
                error = np.abs(np.where(sound, one.astype(F64) - expected, 0)).max(initial=0)
                assert error <= bound * max(1, largest[name]), (*where, error, largest[name])
                seen += 1
    assert seen > 60


@pytest.mark.parametrize("dtype", [F32, F64])
def test_nan_in_padding_does_not_show_and_padding_has_gradient_0(dtype: Any) -> None:
    query, key, value = qkv_arrays(lead=(2,), heads=4, kv_heads=2, L=9, S=11, d=6, dtype=dtype)
    options = {"query_lengths": [9, 4], "key_lengths": [11, 6], "window": (3, 1), "q_offset": 1}
    grad_out = numbers((2, 4, 9, 3), 5, dtype)
    clean = qkv.attention_grad(query, key, value, grad_out, **options)
    for array, length in ((query, 4), (key, 6), (value, 6), (grad_out, 4)):
        array[1, :, length:] = np.nan
    found = qkv.attention_grad(query, key, value, grad_out, **options)
    for ours, before in zip(found[:3], clean[:3], strict=True):
        assert (ours == before).all()
    assert (found.query[1, :, 4:] == 0).all()
    assert (found.key[1, :, 6:] == 0).all()
    assert (found.value[1, :, 6:] == 0).all()


@pytest.mark.parametrize("dtype", [F32, F64])
def test_masked_nan_does_not_show(dtype: Any) -> None:
    arrays = qkv_arrays(heads=4, kv_heads=2, L=40, S=50, d=6, dtype=dtype)
    mask = np.random.default_rng(0).random((40, 50)) < 0.7
    mask[:, 7] = mask[5] = False
    grad_out = numbers((2, 4, 40, 3), 5, dtype)
    clean = qkv.attention_grad(*arrays, grad_out, mask)
    for array, position in zip((*arrays, grad_out), (5, 7, 7, 5), strict=True):
        array[0, 1, position] = np.nan
    found = qkv.attention_grad(*arrays, grad_out, mask)
    for ours, before in zip(found[:3], clean[:3], strict=True):
        np.testing.assert_allclose(ours, before, atol=1e-5 if dtype == F32 else 1e-13)
    assert (found.query[:, :, 5] == 0).all()
    assert (found.key[:, :, 7] == 0).all()
    assert (found.value[:, :, 7] == 0).all()


def test_a_fully_masked_query_has_gradient_0_even_with_sinks() -> None:
    query, key, value = qkv_arrays(L=4, S=5, dtype=F64)
    mask = np.ones((4, 5), bool)
    mask[2] = False
    found = qkv.attention_grad(
        query, key, value, numbers((2, 2, 4, 3), 1, F64), mask, sinks=np.array([0.5, -1.0])
    )
    assert (found.query[..., 2, :] == 0).all()
    assert np.isfinite(found.sinks).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_types_agree_with_float64(dtype: type) -> None:
    arrays = qkv_arrays(heads=4, kv_heads=2, L=70, S=70, d=16, dv=8, dtype=dtype)
    grad_out = numbers((2, 4, 70, 8), 3, dtype)
    options = {"is_causal": True, "softcap": 3.0, "sinks": np.array([0.1, 0.2, 0.3, 0.4])}
    found = qkv.attention_grad(*arrays, grad_out, **options)
    wide = qkv.attention_grad(*(x.astype(F64) for x in arrays), grad_out.astype(F64), **options)
    bound = {np.float16: 2e-3, np.float32: 1e-5}[dtype]
    for ours, truth in zip(found, wide, strict=True):
        if truth is not None:
            assert np.abs(ours - truth).max() < bound * max(1, np.abs(truth).max())
    assert [x.dtype for x in found[:3]] == [dtype] * 3


@pytest.mark.parametrize("size", [1.0, 60.0])
def test_gradients_stay_accurate_if_the_log_sum_exp_loses_digits(size: float) -> None:
    query, key, value = qkv_arrays(heads=4, kv_heads=2, L=30, S=40, d=6, dtype=F32)
    mask = np.zeros((30, 40), F32)
    mask[3] = np.finfo(F32).min  # every score becomes the lowest number: all weights are equal
    mask[4, 5:] = -5000
    grad_out = numbers((2, 4, 30, 3), 1, F32)
    query[1] *= size  # log-sum-exps of hundreds
    arrays = query, key, value
    found = qkv.attention_grad(*arrays, grad_out, mask)
    forward = qkv.attention(*arrays, mask, return_lse=True)
    saved = qkv.attention_grad(*arrays, grad_out, mask, forward=forward)
    truth = qkv.attention_grad(*(x.astype(F64) for x in (*arrays, grad_out)), mask.astype(F64))
    for gradients in (found, saved):
        for ours, expected in zip(gradients[:3], truth[:3], strict=True):
            assert np.abs(ours - expected).max() < 1e-5 * size * np.abs(expected).max()


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_bias_that_was_broadcast_gets_a_gradient_of_its_shape(dtype: Any) -> None:
    arrays = qkv_arrays(heads=4, L=5, S=6, dtype=dtype)
    grad_out = numbers((2, 4, 5, 3), 1, dtype)
    bias = np.broadcast_to(numbers((5, 6), 2, dtype), (4, 5, 6))
    spread = qkv.attention_grad(*arrays, grad_out, bias=bias).bias
    assert spread is not None
    assert (spread == qkv.attention_grad(*arrays, grad_out, bias=bias.copy()).bias).all()


def test_a_saved_forward_pass_gives_the_same_gradients() -> None:
    arrays = qkv_arrays(L=300, S=300, dtype=F64)
    grad_out = numbers((2, 2, 300, 3), 2, F64)
    forward = qkv.attention(*arrays, is_causal=True, return_lse=True)
    once = qkv.attention_grad(*arrays, grad_out, is_causal=True)
    again = qkv.attention_grad(*arrays, grad_out, is_causal=True, forward=forward)
    for a, b in zip(once[:3], again[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_a_saved_forward_pass_may_lie_in_any_layout() -> None:
    arrays = qkv_arrays(L=30, S=30, d=8, dv=8)
    grad_out = numbers((2, 2, 30, 8), 2)
    out, lse = qkv.attention(*arrays, return_lse=True)
    usual = qkv.attention_grad(*arrays, grad_out, forward=(out, lse))
    turned = qkv.attention_grad(
        *arrays,
        np.asfortranarray(grad_out),
        forward=(np.asfortranarray(out), lse[..., ::-1][..., ::-1]),
    )
    for a, b in zip(usual[:3], turned[:3], strict=True):
        assert (a == b).all()


def test_any_number_of_threads_gives_the_same_bits() -> None:
    arrays = qkv_arrays(heads=6, kv_heads=3, L=400, S=500, d=32, dv=16)
    grad_out = numbers((2, 6, 400, 16), 2)
    options = {"is_causal": True, "q_offset": "end", "alibi_slopes": np.full(6, 0.1)}
    found = []
    for threads in (1, 3):
        qkv.set_num_threads(threads)
        found.append(qkv.attention_grad(*arrays, grad_out, **options))
    for a, b in zip(*found, strict=True):
        assert a is None or (a == b).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"grad_out": np.ones((2, 3))}, ValueError, r"grad_out has shape \(2, 3\) and .* \(2, 2\)"),
        ({"grad_out": np.ones((2, 2), int)}, TypeError, "grad_out is int64"),
        ({"forward": (np.ones((2, 2)), np.ones(3))}, ValueError, r"forward\[1\] has shape \(3,\)"),
        ({"return_lse": True}, TypeError, "return_lse is not an option here"),
        ({"causal": True}, TypeError, "did you mean is_causal"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    x = np.ones((2, 2))
    arguments: dict[str, Any] = {"query": x, "key": x, "value": x, "grad_out": x, **change}
    with pytest.raises(error, match=message):
        qkv.attention_grad(**arguments)
