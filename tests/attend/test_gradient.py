"""Tests of gradients of attention: finite differences, masked values and wrong arguments."""

from __future__ import annotations

from typing import Any

import ml_dtypes
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


def masks(queries: int, keys: int) -> np.ndarray:
    """Return a mask (L, S) that masks keys 7 and 200, and all keys of query 5."""
    mask = np.random.default_rng(0).random((queries, keys)) < 0.7
    mask[:, [7, 200]] = mask[5] = False
    return mask


MASK = masks(30, 280)
LOWEST = np.where(MASK, 0.25, -np.inf).astype(F32)
SINKS = np.array([0.3, 0.1, 0.2, -1.0], F32)
# Options, and the keys and queries that they mask for all queries and keys.
HIDING: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    "bool mask": ({"attn_mask": MASK}, [7, 200], [5]),
    "padding mask": ({"attn_mask": MASK.any(0)}, [7, 200], []),
    "float mask": ({"attn_mask": LOWEST}, [7, 200], [5]),
    "bias": ({"bias": LOWEST}, [7, 200], [5]),
    "mask and sinks": ({"attn_mask": MASK, "sinks": SINKS, "softcap": 3.0}, [7, 200], [5]),
    "causal": ({"is_causal": True, "q_offset": 0}, [30, 31, 279], []),
    "window": ({"window": (3, 4), "q_offset": 30}, [0, 5, 26, 64, 279], []),
    "window before the keys": ({"window": (3, 4), "q_offset": -10}, [90, 279], [0, 5]),
    "lengths": ({"key_lengths": [200, 250], "query_lengths": [20, 25]}, [250, 279], [25, 29]),
}


@pytest.mark.parametrize("dtype", [F16, BFLOAT16, F32, F64], ids=str)
@pytest.mark.parametrize("name", HIDING)
def test_masked_numbers_change_no_bit_of_a_gradient(name: str, dtype: Any) -> None:
    options, keys, queries = HIDING[name]
    arrays = qkv_arrays(heads=4, kv_heads=2, L=30, S=280, d=16, dv=8, dtype=dtype)
    arrays += (numbers((2, 4, 30, 8), 5, dtype),)

    def with_masked(number: float) -> list[np.ndarray]:
        for array, at in zip(arrays, (queries, keys, keys, queries), strict=True):
            array[:, :, at] = number
        forward = qkv.attention(*arrays[:3], **options, return_lse=True)
        both = (qkv.attention_grad(*arrays, **options, forward=x) for x in (None, forward))
        return [x for gradients in both for x in gradients if x is not None]

    expected = with_masked(0)
    for number in (np.nan, np.inf, -np.inf, float(ml_dtypes.finfo(dtype).max), 7.0):
        for found, zero in zip(with_masked(number), expected, strict=True):
            assert found.tobytes() == zero.tobytes(), number


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


def in_own_type(arrays: Any, scale: float) -> list[np.ndarray]:
    """Compute the gradients for query, key and value; round each step to the arrays' own type."""

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(arrays[0].dtype).astype(F32)

    def transposed(x: np.ndarray) -> np.ndarray:
        return np.swapaxes(x, -1, -2)

    query, key, value, grad_out = (x.astype(F32) for x in arrays)
    scores = rounded(rounded(query @ transposed(key)) * F32.type(scale))
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    weights = rounded(exps / exps.sum(-1, keepdims=True))
    above = rounded(grad_out @ transposed(value))
    change = weights * (above - (weights * above).sum(-1, keepdims=True))
    change = rounded(rounded(change) * F32.type(scale))
    return [
        rounded(x)
        for x in (change @ key, transposed(change) @ query, transposed(weights) @ grad_out)
    ]


def saturated(dtype: Any, gap: float | None, seed: int) -> list[np.ndarray]:
    """Draw query, key, value and grad_out; nearly all the weight of a query is on one key.

    Each query's largest score exceeds its other scores by `gap`. If `gap` is None, the scores are
    normal numbers with standard deviation 100.
    """
    shape = (1, 2, 64, 64)
    query, key = numbers(shape, seed, size=100.0), numbers(shape, seed + 1)
    if gap is not None:
        key = np.broadcast_to(np.eye(64, dtype=F32), shape)
        query = key * F32.type(gap * 8)  # 8 is the square root of the head size
    value, grad_out = numbers((1, 2, 64, 16), seed + 2), numbers((1, 2, 64, 16), seed + 3)
    return [x.astype(dtype) for x in (query, key, value, grad_out)]


@pytest.mark.parametrize("with_forward", [False, True])
@pytest.mark.parametrize("gap", [2.0, 6.0, 10.0, 14.0, None])
@pytest.mark.parametrize("dtype", [F16, BFLOAT16], ids=str)
def test_gradients_of_half_precision_where_softmax_saturates(
    dtype: Any, gap: float | None, with_forward: bool
) -> None:
    for seed in (0, 10):
        arrays = saturated(dtype, gap, seed)
        forward = qkv.attention(*arrays[:3], return_lse=True) if with_forward else None
        found = qkv.attention_grad(*arrays, forward=forward)
        truth = qkv.attention_grad(*(x.astype(F64) for x in arrays))
        reference = in_own_type(arrays, 1 / 8)
        for ours, own, expected in zip(found[:3], reference, truth[:3], strict=True):
            error, allowed = (np.abs(x.astype(F64) - expected).max() for x in (ours, own))
            assert error <= 2 * allowed
            assert error <= 0.05 * np.abs(expected).max()


def test_a_forward_pass_in_float32_is_used_for_half_precision() -> None:
    arrays = saturated(BFLOAT16, 10.0, 0)
    out, lse = qkv.attention(*(x.astype(F32) for x in arrays[:3]), return_lse=True)
    found = qkv.attention_grad(*arrays, forward=(out, lse))
    changed = qkv.attention_grad(*arrays, forward=(out + 1, lse))
    truth = qkv.attention_grad(*(x.astype(F64) for x in arrays))
    for ours, other, expected in zip(found[:2], changed[:2], truth[:2], strict=True):
        assert np.abs(ours - expected).max() <= 0.01 * np.abs(expected).max()
        assert not np.array_equal(other, ours)


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
        ({"return_lse": True}, TypeError, "return_lse is not an option of this call"),
        ({"causal": True}, TypeError, "did you mean is_causal"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    x = np.ones((2, 2))
    arguments: dict[str, Any] = {"query": x, "key": x, "value": x, "grad_out": x, **change}
    with pytest.raises(error, match=message):
        qkv.attention_grad(**arguments)
