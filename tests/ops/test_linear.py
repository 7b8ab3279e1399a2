"""Tests of the linear layer on every backend: sizes, strides, activations, kept weights."""

import gc
import math
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from activations import FORMULAS
from qkv.ops.activation import ACTIVATIONS
from qkv.ops.kernel import FLOAT32, VARIANTS, compiled, set_num_threads, to_bfloat16
from qkv.ops.linear import linear, linear_grad, multiply
from qkv.ops.packing import frozen, kernel_product
from rows import failing

from .support import Array, close, grown, numbers, slope

module = sys.modules["qkv.ops.packing"]
pytestmark = pytest.mark.usefixtures("backend")  # run every test on each backend
native = pytest.mark.skipif(compiled is None, reason="the kernel was not built")


def sealed(array: Array) -> Array:
    array.setflags(write=False)
    return array


FUNCTIONS: dict[str | None, Callable[[float], float]] = {None: lambda x: x, **FORMULAS}
ROUNDING = {np.float32: 2.0**-24, np.float16: 2.0**-11, bfloat16: 2.0**-8}


def exact(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
    gate: Array | None = None,
    residual: Array | None = None,
) -> tuple[Array, Array]:
    """Return the result in float64, and the largest error that a float32 sum may have."""
    double, weights = x.astype(np.float64), weight.astype(np.float64)
    sums, sizes = double @ weights, np.abs(double) @ np.abs(weights)
    if bias is not None:
        sums, sizes = sums + bias.astype(np.float64), sizes + np.abs(bias.astype(np.float64))
    y = np.vectorize(FUNCTIONS[activation], otypes=[np.float64])(sums)
    # Each product and each sum is rounded. The slope of each activation is at most 1.13.
    bound = (len(weight) + 3) * 2.0**-24 * 1.13 * sizes + 1.7e-7 * np.maximum(1, np.abs(sums))
    if gate is not None:
        y, bound = y * gate.astype(np.float64), bound * np.abs(gate.astype(np.float64))
    if residual is not None:
        y = y + residual.astype(np.float64)
    return y, bound


def check(x: Array, weight: Array, bias: Array | None = None, **options: Any) -> None:
    found = linear(x, weight, bias, **options)
    expected, bound = exact(x, weight, bias, **options)
    assert found.shape == expected.shape
    halves = {x.dtype, weight.dtype} == {np.dtype(np.float16), np.dtype(bfloat16)}
    assert found.dtype == (np.float32 if halves else np.result_type(x, weight))
    unit = ROUNDING.get(found.dtype.type, 0)
    error = np.abs(found.astype(np.float64) - expected)
    limit = bound + 2 * unit * np.abs(expected) + (6e-8 if found.dtype == np.float16 else 0)
    assert (error <= limit).all(), (error / limit).max()


# Sizes, which are mostly not multiples of the kernel's tiles and panels


FLOATS = [np.float32, np.float16, bfloat16, np.float64]


def test_sizes_of_rows() -> None:
    for dtype, rows in product(FLOATS, [1, 2, 3, 5, 6, 7, 12, 13, 14, 15, 27, 28, 29, 40]):
        with failing(dtype, rows):
            check(numbers(rows, 9, dtype=dtype), numbers(9, 21, seed=1, dtype=dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
def test_weights_of_many_depths_and_widths(dtype: Any) -> None:
    for depth in range(1, 41):
        for width in (*range(1, 41), 63, 64, 65):
            if (depth + width) % 7 and depth != width:
                continue
            rows = 1 + (depth * width) % 17
            x, weight = numbers(rows, depth, dtype=dtype), numbers(depth, width, seed=1)
            check(x, weight.astype(dtype), numbers(width, seed=2))


@pytest.mark.unsampled
@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
def test_an_odd_depth_after_nan_in_the_same_memory(dtype: Any) -> None:
    set_num_threads(1)
    for depth in (384, 768):
        nothing, weight = np.full((14, depth), np.nan, dtype), numbers(depth, 3).astype(dtype)
        for other in (1, 3, 383, depth - 1):
            x, part = numbers(14, other, dtype=dtype), numbers(other, 3).astype(dtype)
            linear(x, part)  # later calls allocate only what they delete
            assert np.isnan(linear(nothing, weight)).all()
            assert np.isfinite(linear(x, part).astype(np.float32)).all()
            check(x, part)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
@pytest.mark.parametrize("rows", [1, 15, 40])
def test_wide_keeps_sums_of_half_precision_in_float32(dtype: Any, rows: int) -> None:
    """The residual has more digits than half precision can store."""
    x, weight = numbers(rows, 67, dtype=dtype), numbers(67, 50, seed=1, dtype=dtype)
    residual = numbers(rows, 50, seed=2)
    expected, bound = exact(x, weight, residual=residual)
    found = linear(x, weight, residual=residual, wide=True)
    assert found.dtype == np.float32
    assert (np.abs(found - expected) <= bound + 2.0**-23 * np.abs(expected)).all()
    rounded = linear(x, weight, residual=residual)
    assert rounded.dtype == dtype
    assert (np.abs(rounded.astype(np.float64) - expected) > bound).any()
    for given in (np.float32, np.float64):  # `wide` does not change these types
        wide = linear(x.astype(given), weight.astype(given), wide=True)
        assert wide.dtype == given


@np.errstate(all="ignore")
@pytest.mark.parametrize("count", [1, 15, 16, 33, 1000, 300_001])
def test_narrowed_is_rounded_to_nearest(count: int, backend: str) -> None:
    """Rounding is that of ml_dtypes: ties go to even, and large numbers become infinite."""
    x = numbers(count) * np.exp(15 * numbers(count, seed=1))
    special = [np.inf, -np.inf, np.nan, -0.0, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8, 1 - 2**-9]
    x[: len(special)] = np.array(special, np.float32)[:count]
    weight = np.ones((1, 1), bfloat16)
    found = to_bfloat16(x, weight)
    if backend == "numpy":
        assert found is x
        return
    assert found.dtype == bfloat16
    np.testing.assert_array_equal(found.astype(np.float32), x.astype(bfloat16).astype(np.float32))
    every = to_bfloat16(np.repeat(x, 2)[::2].reshape(1, -1), weight)
    np.testing.assert_array_equal(every[0].astype(np.float32), found.astype(np.float32))
    assert to_bfloat16(found, weight) is found
    assert to_bfloat16(x, weight.astype(np.float32)) is x


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
@pytest.mark.parametrize(
    ("rows", "depth", "width"),
    [
        *((15, depth, 33) for depth in (383, 384, 385, 767, 768, 769, 1537)),
        *((301, 70, 100), (70, 900, 40), (5, 40, 700)),
    ],
)
def test_more_than_one_block_or_chunk(rows: int, depth: int, width: int, dtype: Any) -> None:
    weight = numbers(depth, width, seed=1) / math.sqrt(depth)
    activation = "gelu" if rows == 15 else "silu"
    check(numbers(rows, depth, dtype=dtype), weight.astype(dtype), activation=activation)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.float64])
def test_leading_axes_and_empty_axes(dtype: Any) -> None:
    weight = numbers(4, 3, seed=1, dtype=dtype)
    for shape in [(4,), (2, 4), (2, 1, 3, 4), (0, 4), (2, 0, 4)]:
        check(numbers(*shape, dtype=dtype), weight, numbers(3, seed=2, dtype=dtype))
    assert linear(numbers(2, 4), numbers(4, 0)).shape == (2, 0)
    bias = numbers(3, seed=2)
    np.testing.assert_array_equal(
        linear(numbers(2, 0), numbers(0, 3), bias, activation="relu"),
        np.maximum([bias, bias], 0),
    )


# Bias, activation, gate and residual


def test_bias_activation_gate_and_residual() -> None:
    ways = product(FLOATS, FUNCTIONS, [False, True], [False, True], [5, 32, 51])
    for dtype, activation, gated, added, width in ways:
        options: dict[str, Any] = {"activation": activation}
        if gated:
            options["gate"] = numbers(2, 9, width, seed=3, dtype=dtype)
        if added:
            options["residual"] = numbers(2, 9, width, seed=4, dtype=dtype)
        x, weight = numbers(2, 9, 12, dtype=dtype), numbers(12, width, seed=1, dtype=dtype)
        with failing(dtype, activation, gated, added, width):
            check(x, weight, numbers(width, seed=2, dtype=dtype), **options)


# Types


def test_types_are_promoted_as_numpy_does() -> None:
    x, weight = numbers(3, 4), numbers(4, 5, seed=1)
    for left in (np.float16, bfloat16, np.float32, np.float64):
        for right in (np.float16, bfloat16, np.float32, np.float64):
            check(x.astype(left), weight.astype(right))


def test_halves_are_summed_in_float32_and_rounded_once() -> None:
    x = np.ones((1, 4097), np.float16)  # a sum of ones in float16 would stop at 2048
    assert linear(x, np.ones((4097, 1), np.float16), np.array([-4096.0]))[0, 0] == 1
    x = np.ones((1, 300), bfloat16)
    assert linear(x, np.ones((300, 1), bfloat16), np.array([-256.0]))[0, 0] == 44


def test_integers_multiply_as_in_numpy() -> None:
    found = linear(np.array([[1, 2]]), np.array([[3], [4]]))
    np.testing.assert_array_equal(found, [[11]])
    assert found.dtype == np.int64


def test_another_byte_order() -> None:
    x, weight = numbers(3, 4), numbers(4, 5, seed=1)
    check(x.astype(">f4"), weight.astype(">f4"), numbers(5).astype(">f4"))


def test_mismatched_shapes_raise_the_error_of_numpy() -> None:
    with pytest.raises(ValueError, match="mismatch"):
        linear(numbers(2, 3), numbers(4, 5))


# Memory layouts


def from_places(array: Array) -> Iterator[Array]:
    """Yield arrays with the same numbers in other memory layouts, surrounded by NaN."""
    memory = np.full([n + 2 for n in array.shape], np.nan, array.dtype)
    memory[(slice(1, -1),) * array.ndim] = array
    yield memory[(slice(1, -1),) * array.ndim]
    yield np.asfortranarray(array)
    yield array[..., ::-1].copy()[..., ::-1]
    yield array[::-1].copy()[::-1]
    wide = np.full((*array.shape[:-1], 3 * array.shape[-1]), np.nan, array.dtype)
    wide[..., ::3] = array
    yield wide[..., ::3]
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]  # not aligned
    shifted = memory.view(array.dtype).reshape(array.shape)
    shifted[...] = array
    yield shifted


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
def test_arrays_of_any_memory_layout_give_the_same_result(dtype: Any, backend: str) -> None:
    shapes = {"x": (15, 37), "weight": (37, 35), "bias": (35,), "gate": (15, 35)}
    shapes["residual"] = (15, 35)
    given = {n: numbers(*s, seed=k, dtype=dtype) for k, (n, s) in enumerate(shapes.items())}
    expected = linear(**given, activation="silu").astype(np.float64)
    allowed = 1e-2 if backend == "numpy" else 0  # NumPy's rounding depends on the memory layout
    for name, array in given.items():
        for other in from_places(array):
            found = linear(**(given | {name: other}), activation="silu").astype(np.float64)
            np.testing.assert_allclose(found, expected, allowed, allowed, err_msg=name)


@native
@pytest.mark.parametrize("dtype", ["f4", "f2", "u2"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_kernel_reads_and_writes_nothing_outside_the_arrays(dtype: str, variant: int) -> None:
    nan = {"f4": np.nan, "f2": np.nan, "u2": 0x7FC0}[dtype]
    one = {"f4": 1, "f2": 1, "u2": 0x3F80}[dtype]
    for rows, depth, width in [(1, 5, 3), (15, 9, 17), (3, 385, 33)]:
        weight = np.full((depth, width), one, dtype)
        packed = np.zeros(compiled.packed_size(variant, depth, width, weight) + 8, np.float32)
        packed[-8:] = 7
        inner = packed[:-8].view("f2" if dtype == "f2" else "f4")
        compiled.pack(variant, weight, inner, 1)
        assert (packed[-8:] == 7).all()
        around = [np.full((rows + 2, n + 40), nan, dtype) for n in (depth, width, width, width)]
        inside = [a[1:-1, 20:-20] for a in around]
        for a in inside[:3]:
            a[...] = one
        x, gate, residual, y = inside
        compiled.linear(variant, x, inner, None, 4, gate, residual, y, 2)
        values = y.view(bfloat16) if dtype == "u2" else y
        np.testing.assert_array_equal(
            values.astype(np.float32), np.float32(depth + 1).astype(values.dtype).astype("f4")
        )
        inside[3][...] = nan
        np.testing.assert_array_equal(around[3], nan)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
@pytest.mark.parametrize(
    ("rows", "depth", "width"), [(1, 5, 3), (1, 700, 90), (40, 64, 300), (130, 9, 33)]
)
def test_narrow_weights_are_multiplied_as_the_float32_numbers_that_they_are(
    rows: int, depth: int, width: int, dtype: Any, backend: str
) -> None:
    if backend == "numpy":  # its rounding depends on the strides
        return
    x, weight = numbers(rows, depth), numbers(depth, width, seed=1).astype(dtype)
    weight[0, 0], weight[1, 1], weight[2, 2] = (
        np.inf,
        np.nan,
        1e-7 if dtype == np.float16 else 1e-39,
    )
    for narrow in (weight, np.asfortranarray(weight)):
        found = linear(x, narrow, activation="gelu")
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, linear(x, weight.astype("f4"), activation="gelu"))


@native
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_narrow_weights_are_packed_in_two_bytes(dtype: Any) -> None:
    weight = numbers(64, 320).astype(dtype)
    _, packed = kernel_product(frozen(weight), 0, FLOAT32, 1)
    assert packed.nbytes == weight.nbytes


# Threads and rows


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
@pytest.mark.parametrize(
    ("rows", "depth", "width"), [(1, 300, 500), (40, 64, 300), (400, 100, 96), (130, 1000, 33)]
)
def test_the_same_bits_on_any_number_of_threads(
    rows: int, depth: int, width: int, dtype: Any, backend: str
) -> None:
    x, weight = numbers(rows, depth, dtype=dtype), numbers(depth, width, seed=1, dtype=dtype)
    set_num_threads(1)
    expected = linear(x, weight, activation="gelu")
    for threads in (2, 3, 7):
        set_num_threads(threads)
        np.testing.assert_array_equal(linear(x, weight, activation="gelu"), expected)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_a_row_does_not_depend_on_the_others(dtype: Any, backend: str) -> None:
    if backend == "numpy":  # its rounding depends on the number of rows
        return
    x, weight = numbers(200, 500, dtype=dtype), numbers(500, 70, seed=1, dtype=dtype)
    whole = linear(x, weight, activation="gelu")
    for rows in [slice(0, 1), slice(3, 5), slice(100, 117), slice(50, 180)]:
        np.testing.assert_array_equal(linear(x[rows], weight, activation="gelu"), whole[rows])


# Weights that are kept


def test_writing_through_another_view_takes_effect() -> None:
    x, stored = numbers(3, 4), numbers(5, 4, seed=1)
    weight = sealed(stored.T)
    check(x, weight)
    stored[1] = 50
    check(x, weight)


def test_changes_of_an_unfrozen_weight_take_effect() -> None:
    x, weight = numbers(3, 4), sealed(numbers(4, 5, seed=1))
    check(x, weight)
    weight.setflags(write=True)
    weight[1] = 30
    check(x, weight)
    weight[2] = 20
    weight.setflags(write=False)
    check(x, weight)


@native
def test_a_frozen_weight_is_packed_once(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    packed: list[Any] = []

    class Counting:
        linear, packed_size = compiled.linear, compiled.packed_size

        @staticmethod
        def pack(*arguments: Any) -> None:
            packed.append(arguments)
            compiled.pack(*arguments)

    monkeypatch.setattr(module, "compiled", Counting)
    monkeypatch.setattr(module, "_packed", module._PackedCopies())  # not shared with other tests
    x, weight = numbers(3, 4), numbers(4, 5, seed=1)
    here = backend != "numpy"
    for _ in range(3):
        linear(x, weight)
    assert len(packed) == 3 * here
    stored = sealed(weight.T.copy())
    for kept in (sealed(weight.copy()), stored.T, stored[:, :].T):
        packed.clear()
        for _ in range(3):
            linear(x, kept)
        assert len(packed) == here
        # NumPy promotes bfloat16 and float32 to float32, so this product reuses the packed copy
        linear(x.astype(bfloat16), kept)
        assert len(packed) == here


@native
def test_a_packed_copy_is_freed_with_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_packed", module._PackedCopies())
    weights = [sealed(numbers(4, 5, seed=seed)) for seed in range(20)]
    for weight in weights:
        check(numbers(3, 4), weight)
        check(numbers(3, 4, dtype=bfloat16), weight.astype(bfloat16))
    del weight
    weights.clear()
    assert not module._packed.copies


@native
def test_a_small_weight_does_not_keep_the_memory_of_deleted_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SHELF", 1 << 20)
    monkeypatch.setattr(module, "_packed", module._PackedCopies())
    gc.collect()
    small, before = [], _shelves()
    for turn in range(12):
        # together, these weights take more bytes than a shelf, which has 1 MiB here
        others = [sealed(np.ones((200, 300), np.float32)) for _ in range(16)]
        small.append(sealed(numbers(8, 9, seed=turn)))
        for weight in (*others, small[-1]):
            linear(np.ones((1, len(weight)), np.float32), weight)
        # The weights of turns 0 to 5 are deleted in the next turn. The weights of turns 6 to 11 are
        # kept until the loop ends.
        if turn >= 6:
            small += others
    del weight, others
    small = [weight for weight in small if weight.size == 72]
    assert len(_shelves() - before) <= 2
    for _ in range(2):
        for weight in small:
            check(numbers(3, 8), weight)
        assert len(_shelves() - before) <= 2


def test_a_weight_may_be_deleted_while_a_shelf_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 may collect garbage, such as an old model, while it makes a list."""
    monkeypatch.setattr(module, "_SHELF", 1 << 20)

    class Collecting(dict[Any, Any]):
        def items(self) -> Any:
            for item in super().items():
                old.clear()
                yield item

    def packed(count: int) -> list[np.ndarray]:
        weights = [numbers(4, 4) for _ in range(count)]
        for weight in weights:
            copies.keep(weight, (id(weight), 0, np.dtype(np.float32)), copies.memory(16))
        return weights

    copies = module._PackedCopies()
    copies.copies = Collecting()
    old, kept = packed(1), packed(3)
    for _ in range(13):  # each takes nearly 256 KiB of a shelf, which has at most 3 MiB
        copies.memory((1 << 16) - 16)
    assert len(kept) == 3
    assert not copies.copies  # the shelf of the four copies is deleted


def _shelves() -> set[int]:
    """Return the ids of the shelves: the large arrays that store the cached packed weights."""
    return {id(packed.base) for _, packed in module._packed.copies.values()}


@pytest.mark.parametrize("dtype", [np.float32, bfloat16], ids=["float32", "bfloat16"])
def test_packed_weights_share_memory_without_overlap(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    shapes = [(rng.integers(1, 70), rng.integers(1, 70)) for _ in range(60)]
    shapes += [(700, 1600), (1, 1), (1500, 800), (33, 5), (900, 1100), (901, 1100)]
    weights = [sealed(rng.integers(-3, 4, shape).astype(dtype)) for shape in shapes]
    for _ in range(2):
        for weight in weights:
            x = rng.integers(-2, 3, (1, len(weight))).astype(dtype)
            expected = x.astype(np.float64) @ weight.astype(np.float64)
            np.testing.assert_array_equal(linear(x, weight), expected.astype(dtype))


# Wrong arguments


@native
@pytest.mark.parametrize(
    "wrong",
    [
        {"x": None},
        {"x": np.ones((3, 5), "f4")},
        {"x": np.ones((3, 8), "f4")[:, ::2]},
        {"x": np.ones((3, 4), "f8")},
        {"x": np.ones((2, 4), "f4")},
        {"packed": np.ones(7, "f4")},
        {"packed": None},
        {"bias": np.ones(4, "f4")},
        {"bias": np.ones(5, "f8")},
        {"activation": 1 + max(one.code for one in ACTIVATIONS.values())},
        {"activation": -1},
        {"gate": np.ones((3, 4), "f4")},
        {"gate": np.ones((3, 5), "f2")},
        {"residual": np.ones((2, 5), "f4")},
        {"y": np.ones((3, 5), "f2")},
        {"y": np.ones((5, 3), "f4").T},
        {"y": None},
    ],
    ids=lambda wrong: " ".join(wrong),
)
def test_the_kernel_refuses_invalid_arguments(wrong: dict[str, Any]) -> None:
    weight = np.ones((4, 5), "f4")
    packed = np.zeros(compiled.packed_size(0, 4, 5, weight), "f4")
    compiled.pack(0, weight, packed, 1)
    asked = {
        "variant": 0,
        "x": np.ones((3, 4), "f4"),
        "packed": packed,
        "bias": np.ones(5, "f4"),
        "activation": 0,
        "gate": None,
        "residual": None,
        "y": np.zeros((3, 5), "f4"),
        "threads": 1,
    }
    compiled.linear(*asked.values())
    assert (asked["y"] == 5).all()
    with pytest.raises((ValueError, TypeError)):
        compiled.linear(*(asked | wrong).values())


@native
def test_packing_refuses_memory_of_the_wrong_size_or_type() -> None:
    weight = np.ones((4, 5), "f4")
    size = compiled.packed_size(0, 4, 5, weight)
    packed = np.zeros(size, "f4")
    wrong = (np.zeros(size - 1, "f4"), np.zeros(2 * size, "f4"), np.zeros(size, "f8"), None)
    for given, memory in (*((weight, it) for it in wrong), (weight.astype("f8"), packed)):
        with pytest.raises(ValueError, match=r"^kernel: "):
            compiled.pack(0, given, memory, 1)
    with pytest.raises(ValueError, match=r"^kernel: "):
        compiled.packed_size(0, 1 << 62, 1 << 62, weight)


# NumPy's product


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 3), (4,), (2, 3)])
@pytest.mark.parametrize("width", [0, 5])
def test_products_of_every_shape(shape: tuple[int, ...], width: int) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal(shape), rng.standard_normal((shape[-1], width))
    found = multiply(left, right)
    assert found.shape == (left @ right).shape
    np.testing.assert_allclose(found, left @ right, rtol=1e-13)


# Gradients


@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_linear_gradients(dtype: Any, allowed: float) -> None:
    x, weight, grad = (numbers(*s, seed=i) for i, s in enumerate([(2, 5, 3), (3, 4), (2, 5, 4)]))
    wide = [a.astype(np.float64) for a in (x, weight, grad)]
    found = linear_grad(x.astype(dtype), weight.astype(dtype), grad.astype(dtype), bias=True)
    close(found[0], slope(lambda it: it @ wide[1], wide[0], wide[2]), allowed)
    close(found[1], slope(lambda it: wide[0] @ it, wide[1], wide[2]), allowed)
    close(found[2], wide[2].sum((0, 1)), allowed)
    assert {a.dtype for a in found} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    ("rows", "depth", "width"),
    [
        (0, 3, 4), (1, 1, 1), (3, 14, 32), (5, 15, 33), (384, 6, 8), (385, 13, 31), (1000, 29, 65),
        (40, 200, 130), (30, 7, 300), (800, 197, 129), (9, 0, 5), (9, 5, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("transposed", [False, True])
def test_linear_gradients_of_any_size(rows: int, depth: int, width: int, transposed: bool) -> None:
    x, grad = grown(numbers(rows, depth)), grown(numbers(rows, width, seed=1))
    weight = numbers(depth, width, seed=2)
    if transposed:
        weight = np.ascontiguousarray(weight.T).T
    found = linear_grad(x, weight, grad, bias=True)
    wide = [a.astype(np.float64) for a in (x, weight, grad)]
    assert found[1].flags.f_contiguous or not transposed
    for array, one, other in (
        (found[0], wide[2], wide[1].T),
        (found[1], wide[0].T, wide[2]),
        (found[2][None], np.ones((1, rows)), wide[2]),
    ):
        assert array.shape == (one @ other).shape
        allowed = 1e-7 * (8 + math.sqrt(one.shape[1])) * (np.abs(one) @ np.abs(other))
        assert (np.abs(array - one @ other) <= allowed).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_linear_gradients_of_arrays_of_any_memory_layout(transposed: bool) -> None:
    x, weight, grad = numbers(2, 30, 9), numbers(9, 12, seed=1), numbers(2, 30, 12, seed=2)
    if transposed:
        weight = np.ascontiguousarray(weight.T).T
    expected = linear_grad(x, weight, grad, bias=True)
    flipped = x[:, ::-1].copy()[:, ::-1], weight, np.asfortranarray(grad)
    for array, wanted in zip(linear_grad(*flipped, bias=True), expected, strict=True):
        close(array, wanted.astype(np.float64), 2e-6)
    assert linear_grad(x, weight, grad, bias=False)[2] is None
