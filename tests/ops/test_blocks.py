"""Tests of products with quantized blocks on every backend, and of blocks as arrays."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from qkv.ops._blocks import BLOCK_KINDS, BlockMatrix
from qkv.ops.kernel import compiled, set_num_threads, variant
from qkv.ops.linear import input_grad, linear, linear_grad
from qkv.ops.packing import Prepared

from .drawn_blocks import WIDTHS, drawn, quantized
from .support import Array, close, numbers

ON_ONE_BACKEND = pytest.mark.usefixtures("best_backend_alone")
pytestmark = pytest.mark.usefixtures("backend")  # run every test on each backend


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_products_with_whole_numbers_are_exact(kind: str) -> None:
    """Sums of whole numbers in one block are equal, to the bit, on all variants."""
    drawing = drawn(kind, 70, plain=True)
    x = np.zeros((9, WIDTHS[kind]), np.float32)
    rng = np.random.default_rng(1)
    for row in x[:8]:  # the last row stays 0
        block = row[32 * rng.integers(0, len(row) // 32) :][:32]
        block[:] = rng.integers(-32767, 32768, 32)
        block[rng.integers(32)] = rng.choice([-32767, 32767])  # so the scale is 1
    x[0, :] = 0
    x[0, :32] = 32767  # the largest sums
    halves = x.reshape(9, -1, 16).astype(np.int64)
    each = np.einsum("rbk,nbk->rnb", halves, drawing.whole.reshape(70, -1, 16))
    sums = each.reshape(9, 70, -1, 2)
    if kind != "Q6_K":  # other kinds sum whole blocks
        sums = sums.sum(-1, keepdims=True)
    expected = sums.astype(np.float32).sum((-1, -2), dtype=np.float32)
    if variant() is None:
        close(linear(x, drawing.matrix), expected, 1e-6)
    else:
        np.testing.assert_array_equal(linear(x, drawing.matrix), expected)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize(("rows", "count"), [(70, 1), (70, 13), (1, 2), (32, 70), (97, 5)])
def test_products_are_those_of_quantized_rows(kind: str, rows: int, count: int) -> None:
    drawing = drawn(kind, rows)
    x = numbers(count, WIDTHS[kind], seed=2) * np.float32(10) ** numbers(count, 1, seed=3)
    x[:, :32] *= 1e-3  # each block has its own scale
    used = x.astype(np.float64) if variant() is None else quantized(x)
    values = drawing.values()
    error = np.abs(linear(x, drawing.matrix) - used @ values)
    assert (
        error <= 1e-6 * (np.abs(used) @ (np.abs(values) + np.abs(drawing.least.T)) + 1e-30) * 4
    ).all()


def test_bias_activation_gate_and_residual() -> None:
    drawing = drawn("Q4_1")
    x, bias, gate, residual = (numbers(3, n, seed=n) for n in (96, 70, 71, 72))
    found = linear(
        x, drawing.matrix, bias[0], activation="relu", gate=gate[:, 1:], residual=residual[:, 2:]
    )
    used = x if variant() is None else quantized(x)
    expected = np.maximum(used @ drawing.values() + bias[0], 0) * gate[:, 1:] + residual[:, 2:]
    close(found, expected, 1e-5)


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q6_K"])
def test_results_depend_on_neither_threads_nor_other_rows(kind: str) -> None:
    matrix, x = drawn(kind).matrix, numbers(130, WIDTHS[kind])
    whole = linear(x, matrix)
    if variant() is not None:
        np.testing.assert_array_equal(linear(x[7:8], matrix), whole[7:8])
    set_num_threads(1)
    np.testing.assert_array_equal(linear(x, matrix), whole)


def test_matrices_that_lie_side_by_side_are_multiplied_at_once() -> None:
    if (chosen := variant()) is None:
        pytest.skip("NumPy multiplies float32 values")
    kernel = Prepared(chosen, np.dtype(np.float32), 2)
    matrices = [drawn("Q4_1", rows).matrix for rows in (64, 32, 96)]
    ends = np.cumsum([matrix.packed.size for matrix in matrices])
    parts = np.split(np.concatenate([matrix.packed for matrix in matrices]), ends[:-1])
    beside = [part_of(matrix, part) for matrix, part in zip(matrices, parts, strict=True)]
    x, bias = numbers(5, 96), numbers(192)
    for weights in (beside, beside[1:], beside[:1]):
        assert kernel.joins(weights)
        some = bias[: sum(weight.shape[1] for weight in weights)]
        each = np.concatenate([linear(x, weight) for weight in weights], axis=1) + some
        np.testing.assert_array_equal(kernel.joined_linear(weights, some)(x), each)
    first, other, last = beside
    copied = part_of(other, other.packed.copy())
    others = (part_of(other, other.packed, **it) for it in ({"kind": "Q4_0"}, {"width": 64}))
    for second in (last, first, copied, other.T, numbers(96, 32), *others):
        assert not kernel.joins([first, second])
    assert not kernel.joins([other, first])
    assert not kernel.joins([part_of(first, first.packed, rows=50), other])


def part_of(matrix: BlockMatrix, packed: Array, **other: Any) -> BlockMatrix:
    """Return the matrix with other blocks, and with another kind, number of rows or width."""
    given = {"kind": matrix.kind, "rows": matrix.rows, "width": matrix.width, **other}
    return BlockMatrix(packed=packed, transposed=True, **given)


def test_numbers_that_are_not_finite_or_very_small() -> None:
    matrix, x = drawn("Q4_0").matrix, numbers(5, 96)
    plain = linear(x, matrix)
    x[1, 40], x[2, 95], x[3] = np.nan, -np.inf, 1e-42
    with np.errstate(all="ignore"):
        found = linear(x, matrix)
    assert not np.isfinite(found[1:3]).any()
    assert np.abs(found[3]).max() < 1e-40
    np.testing.assert_array_equal(found[[0, 4]], plain[[0, 4]])


def test_other_types_are_multiplied_as_arrays() -> None:
    drawing, x = drawn("Q8_0"), numbers(3, 96, dtype=np.float64)
    found = linear(x, drawing.matrix)
    assert found.dtype == np.float64
    close(found, x @ np.float32(drawing.values()), 1e-14)
    half = linear(x.astype(np.float16), drawing.matrix)
    assert half.dtype == np.float32
    close(half, x.astype(np.float16).astype(float) @ drawing.values(), 1e-4)
    close(linear(numbers(2, 70), drawing.matrix.T), numbers(2, 70) @ drawing.values().T, 1e-5)


def test_gradients_are_those_of_the_values() -> None:
    drawing, x, grad = drawn("Q4_K"), numbers(3, 512), numbers(3, 70, seed=1)
    close(input_grad(drawing.matrix, grad), grad @ drawing.values().T, 1e-5)
    back, of_weight, _ = linear_grad(x, drawing.matrix, grad, bias=False)
    close(back, grad @ drawing.values().T, 1e-5)
    close(of_weight, x.T @ grad, 1e-5)


# the array


@ON_ONE_BACKEND
@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_a_matrix_acts_as_its_values(kind: str) -> None:
    drawing = drawn(kind)
    matrix, values = drawing.matrix, drawing.values()
    array = np.asarray(matrix)
    close(array, values, 1e-6)
    assert (matrix.shape, matrix.dtype, matrix.ndim, len(matrix)) == (
        (array.shape, array.dtype, 2, len(array))
    )
    for found, expected in (
        (matrix.read(), array),
        (matrix.T, array.T),
        (matrix.T[np.array([[0, -1], [69, 3]])], array.T[[[0, -1], [69, 3]]]),
        (matrix[:2], array[:2]),
        (matrix.T[5], array.T[5]),
        (matrix * 2, array * 2),
        (1 - matrix, 1 - array),
        (numbers(3, len(array)) @ matrix, numbers(3, len(array)) @ array),
        (np.concatenate([matrix, array]), np.concatenate([array, array])),
        (matrix.astype(np.float64), array.astype(np.float64)),
        (np.abs(matrix).max(), np.abs(array).max()),
        (matrix.sum(0), array.sum(0)),
        (pickle.loads(pickle.dumps(matrix)), array),
        (copy.deepcopy(matrix), array),
    ):
        np.testing.assert_array_equal(found, expected)


@ON_ONE_BACKEND
def test_wrong_rows_and_attributes() -> None:
    matrix = drawn("Q4_0").matrix
    for row in (70, -71):
        with pytest.raises(IndexError, match="out of bounds for 70 rows"):
            matrix.T[np.array([0, row])]
    assert matrix.T[np.empty((0, 2), np.int64)].shape == (0, 2, 96)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        matrix.nothing  # noqa: B018  # asking for it is what fails
    with pytest.raises(AttributeError, match="_hidden"):
        matrix._hidden  # noqa: B018  # asking for it is what fails


@ON_ONE_BACKEND
@pytest.mark.skipif(compiled is None, reason="the kernel was not built")
def test_the_kernel_refuses_blocks_of_another_size() -> None:
    matrix, x, y = drawn("Q4_0").matrix, numbers(2, 96), np.empty((2, 70), np.float32)

    def multiply(code: int, x: Array, packed: Array, y: Array) -> None:
        compiled.multiply_blocks(0, code, x, packed, None, 0, None, None, y, 1)

    multiply(0, x, matrix.packed, y)
    for wrong in (
        (1, x, matrix.packed, y),  # another kind
        (3, x, matrix.packed, y),  # 96 is not a multiple of 256
        (5, x, matrix.packed, y),  # there is no such kind
        (0, x, matrix.packed[:-1], y),
        (0, x, matrix.packed[::-1], y),
        (0, x[:, :95], matrix.packed, y),
        (0, x, matrix.packed, np.empty((2, 97), np.float32)),
        (0, x.astype(np.float16), matrix.packed, y),
    ):
        with pytest.raises(ValueError, match=r"blocks|block|fit"):
            multiply(*wrong)
