"""Tests of products in int8: the rounding of tokens, and sums that are equal on every backend."""

import math
from typing import Any

import numpy as np
import pytest

from activations import FORMULAS
from qkv.ops import StoredMatrix, from_rows, int8_weight, to_rows
from qkv.ops._int8_rows import LARGEST_NUMBER, LIMIT, quantize
from qkv.ops.kernel import FLOAT32, INT8, ONE_DIGIT, VARIANTS, compiled, set_num_threads
from qkv.ops.linear import linear
from qkv.ops.packing import weight_kind

from .support import Array, numbers

pytestmark = pytest.mark.usefixtures("backend")  # run every test on each backend
plain = pytest.mark.usefixtures("best_backend_alone")
f = np.float32


def round_by_hand(row: list[Any]) -> tuple[list[int], Any]:
    """Return the whole numbers and the scale of a token; `row` has at most 16 numbers."""
    if not all(map(math.isfinite, row)):
        return [0] * len(row), f(np.nan)
    sizes = [abs(x) for x in row] + [f(0)] * (16 - len(row))
    largest = max(sizes)
    while len(sizes) > 1:  # the kernel's order of the additions
        half = len(sizes) // 2
        sizes = [a + b for a, b in zip(sizes[:half], sizes[half:], strict=True)]
    usual = f(f(sizes[0] / f(len(row))) * f(LIMIT))
    scale = max(f(min(usual, largest) / f(127)), f(largest / f(LARGEST_NUMBER)))
    if scale < 2.0**-126:
        return [0] * len(row), f(0)
    factor = f(f(1) / scale)
    return [round(float(f(x * factor))) for x in row], scale  # `round` rounds ties to even


def multiply_by_hand(x: Array, weight: Array) -> Array:
    """Multiply row by row, with Python's integers."""
    columns, scales = to_rows(weight.T)
    y = np.empty((len(x), weight.shape[1]), f)
    for i, row in enumerate(x):
        whole, scale = round_by_hand(list(row))
        for j, column in enumerate(columns.tolist()):
            total = 0
            for n, first, exact in zip(whole, column, weight[:, j].tolist(), strict=True):
                second = round((exact / float(scales[j]) - first) * 256)
                high = (n + 128) // 256  # 0 for int8 numbers
                total += n * first + high * max(-127, min(127, second))
            y[i, j] = f(f(total) * scale) * f(scales[j])
    return y


def tokens(rows: int, depth: int, seed: int = 0) -> Array:
    """Return random tokens of many magnitudes; some columns are far larger than the others."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, depth))
    x[:, :: rng.integers(3, 40)] *= rng.choice([1, 30, 2000], (rows, 1))
    return (x * rng.choice([1e-30, 1, 1, 1e25], (rows, 1))).astype(f)


def same_bits(one: Array, other: Array) -> None:
    nan = np.isnan(one) & np.isnan(other)
    assert one.shape == other.shape
    np.testing.assert_array_equal(one.view(np.uint32)[~nan], other.view(np.uint32)[~nan])


def held(weight: Array) -> Array:
    marked = int8_weight(weight)
    assert marked.in_int8
    return marked


@plain
def test_the_rounding_of_tokens() -> None:
    rows = [*tokens(60, 16), *tokens(20, 16, 1)]
    rows += [f([0] * 16), f([1e-40] * 16), f([1e37] * 16), f([1e-6] * 15 + [1e30])]
    rows += [f([np.nan] + [1] * 15), f([1] * 15 + [-np.inf])]
    whole, scales = quantize(np.array(rows))
    for row, found, scale in zip(rows, whole.tolist(), scales, strict=True):
        expected = round_by_hand(list(row))
        assert found == expected[0]
        same_bits(np.array([scale]), np.array([expected[1]], f))
    alone = np.zeros((1, 2000), f)
    alone[0, 7] = -3
    assert quantize(alone)[0][0, 7] == -LARGEST_NUMBER


@plain
def test_a_large_number_leaves_the_other_numbers_their_digits() -> None:
    row = np.ones((1, 100), f)
    row[0, 3] = 1000
    whole, scales = quantize(row)
    mean = f(1099) / f(100)
    assert scales[0] == f(f(mean * f(LIMIT)) / f(127))
    assert whole[0, 3] == round(1000 / float(scales[0])) > 127
    assert whole[0, 0] == round(1 / float(scales[0])) == 2


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 14, 15, 29])
def test_products_equal_whole_numbers_to_the_bit(rows: int) -> None:
    for depth in (1, 2, 3, 4, 5, 8, 13, 16):
        x, weight = tokens(rows, depth, depth), numbers(depth, 3 + rows + depth, seed=1)
        same_bits(linear(x, held(weight)), multiply_by_hand(x, weight))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sums_are_equal_on_every_backend_and_number_of_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_num_threads(threads)
    for rows, depth, width in ((1, 576, 300), (3, 385, 33), (130, 260, 70), (250, 64, 17)):
        x, weight = tokens(rows, depth), held(numbers(depth, width, seed=1))
        bias, residual = numbers(width, seed=2), numbers(rows, width, seed=3)
        found = linear(x, weight, bias, residual=residual)
        with monkeypatch.context() as context:
            context.setenv("QKV_BACKEND", "numpy")
            same_bits(found, linear(x, weight, bias, residual=residual))
        # a token's result does not depend on the other tokens
        same_bits(
            found[rows // 2 :], linear(x[rows // 2 :], weight, bias, residual=residual[rows // 2 :])
        )


@pytest.mark.parametrize("rows", [1, 3, 5, 14, 33, 100])
def test_second_digits_that_are_0_can_be_left_out(rows: int) -> None:
    for depth, width in ((1, 1), (5, 7), (63, 33), (64, 64), (385, 100)):
        x, columns = tokens(rows, depth, depth), to_rows(numbers(width, depth, seed=1))
        weight = from_rows(*columns).T
        weight.setflags(write=False)
        one = StoredMatrix.of(weight, in_int8=True, exact=(False, True))
        assert weight_kind(one, FLOAT32) == ONE_DIGIT
        assert weight_kind(one.T, FLOAT32) == weight_kind(held(weight), FLOAT32) == INT8
        same_bits(linear(x, one), linear(x, held(weight)))


@plain
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_memory_must_fit_the_number_of_digits(variant: int) -> None:
    digits, scales, x = np.ones((9, 5), "i1"), np.ones(5, f), np.ones((3, 9), f)
    one, two = (np.zeros((9, 5), kind) for kind in (ONE_DIGIT, INT8))
    small, large = (4 * compiled.packed_size(variant, 9, 5, like) for like in (one, two))
    assert small < large < 2 * small
    compiled.pack_int8(variant, digits, None, scales, np.zeros(small, "u1"), 1)
    compiled.pack_int8(variant, digits, digits, scales, np.zeros(large, "i1"), 1)
    for more, count, kind in ((None, small, "i1"), (None, large, "u1"), (digits, small, "i1")):
        with pytest.raises(ValueError, match=r"^kernel: packed weights"):
            compiled.pack_int8(variant, digits, more, scales, np.zeros(count, kind), 1)
    for count, kind in ((small, "i1"), (large, "u1")):
        packed, y = np.zeros(count, kind), np.zeros((3, 5), f)
        with pytest.raises(ValueError, match=r"^kernel: packed weights"):
            compiled.linear(variant, x, packed, None, 0, None, None, y, 1)


@pytest.mark.parametrize("activation", FORMULAS)
def test_activations_gates_and_residuals_follow_the_products(activation: str) -> None:
    x, weight, bias = tokens(20, 40)[:, :40], held(numbers(40, 21, seed=1)), numbers(21, seed=2)
    x = x / np.abs(x).max(axis=1, keepdims=True)
    gate, residual = numbers(20, 21, seed=3), numbers(20, 21, seed=4)
    found = linear(x, weight, bias, activation=activation, gate=gate, residual=residual)
    sums = linear(x, weight, bias).astype(float)
    expected = np.vectorize(FORMULAS[activation])(sums) * gate + residual
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6)


def test_the_largest_sums_are_exact() -> None:
    depth = 1 << 17
    x, weight = np.full((1, depth), -127, f), held(np.full((depth, 2), 127, f))
    scale, factor = quantize(x)[1][0], to_rows(np.asarray(weight).T)[1][0]
    assert linear(x, weight).tolist() == [[f(f(-127 * 127 * depth) * scale) * f(factor)] * 2]


def test_tokens_that_are_not_finite_give_nan() -> None:
    x = numbers(4, 9)
    x[1, 2], x[2, 8] = np.nan, np.inf
    found = linear(x, held(numbers(9, 5, seed=1)))
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]


def test_other_dtypes_are_computed_in_their_own_precision() -> None:
    x, weight = numbers(3, 9), held(numbers(9, 5, seed=1))
    exact = x.astype(float) @ np.asarray(weight).astype(float)
    np.testing.assert_allclose(linear(x.astype(float), weight), exact, rtol=1e-12)
    assert np.abs(linear(x, weight) - exact).max() > 1e-4


@plain
def test_outliers_read_a_weight_more_exactly() -> None:
    x, weight = numbers(1, 64), numbers(64, 400, seed=1)
    x[0, 5] = 60
    exact = x.astype(float) @ weight.astype(float)
    rows, scales = to_rows(weight.T)
    rounded = x.astype(float) @ (rows * scales.astype(float)[:, None]).T
    error, of_rounding = linear(x, held(weight)) - exact, rounded - exact
    assert np.square(error).mean() < np.square(of_rounding).mean() / 4


@plain
def test_weights_that_int8_cannot_hold_stay_float32() -> None:
    weight = numbers(9, 5)
    for number in (np.nan, np.inf, -np.inf, 1e7):
        weight[3, 2] = number
        assert int8_weight(weight) is weight
    assert int8_weight(numbers(5)).ndim == 1
    assert type(int8_weight(numbers(5))) is np.ndarray
    assert weight_kind(int8_weight(np.ones(((1 << 17) + 1, 1), f)), FLOAT32) == FLOAT32
    assert weight_kind(int8_weight(numbers(9, 5)), FLOAT32) == INT8


@plain
def test_only_the_whole_weight_stays_in_int8() -> None:
    weight = int8_weight(numbers(6, 4))
    assert weight.T.in_int8
    assert weight.T.T.shape == weight.shape
    for other in (weight[:2], weight[0], weight + 1, np.abs(weight), weight @ weight.T):
        assert type(other) is np.ndarray
    assert isinstance(weight.max(), np.float32)
