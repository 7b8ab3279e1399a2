"""Gradients of what layers compute, and AdamW, on every backend."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qkv.ops.activation import ACTIVATIONS, activate, activation_grad
from qkv.ops.adamw import adamw, gradient_norm
from qkv.ops.kernel import BODIES, kernel
from qkv.ops.linear import linear_grad
from qkv.ops.loss import cross_entropy
from qkv.ops.norm import norm_grad
from qkv.ops.threads import set_num_threads

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("backend")  # every test, on each of them
native = pytest.mark.skipif(kernel is None, reason="the kernel was not built")


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def slope(function: Callable[[Array], Array], at: Array, grad_out: Array) -> Array:
    """The gradient of `(function(at) * grad_out).sum()` by central differences, in float64."""
    found = np.empty(at.shape)
    for index in np.ndindex(at.shape):
        step = 1e-6
        one, other = at.copy(), at.copy()
        one[index] += step
        other[index] -= step
        found[index] = ((function(one) - function(other)) * grad_out).sum() / (2 * step)
    return found


def close(found: Array, expected: Array, allowed: float) -> None:
    assert found.shape == expected.shape
    error = np.abs(found.astype(np.float64) - expected).max(initial=0)
    assert error <= allowed * max(1.0, np.abs(expected).max(initial=0)), error


@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_linear_gradients(dtype: Any, allowed: float) -> None:
    x, weight, grad = (numbers(*s, seed=i) for i, s in enumerate([(2, 5, 3), (3, 4), (2, 5, 4)]))
    wide = [a.astype(np.float64) for a in (x, weight, grad)]
    found = linear_grad(x.astype(dtype), weight.astype(dtype), grad.astype(dtype), bias=True)
    close(found[0], slope(lambda it: it @ wide[1], wide[0], wide[2]), allowed)
    close(found[1], slope(lambda it: wide[0] @ it, wide[1], wide[2]), allowed)
    close(found[2], wide[2].sum((0, 1)), allowed)
    assert {a.dtype for a in found} == {np.dtype(dtype)}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_activation_gradients(name: str, dtype: Any, allowed: float) -> None:
    x = np.linspace(-9, 9, 350).astype(np.float32).astype(np.float64)
    grad_out = numbers(350).astype(np.float64)
    expected = slope(lambda it: activate(it, name), x, grad_out)
    close(activation_grad(x.astype(dtype), grad_out.astype(dtype), name), expected, allowed)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_norm_gradients(centred: bool, dtype: Any, allowed: float) -> None:
    x, weight, grad = numbers(2, 3, 7), numbers(7, seed=1), numbers(2, 3, 7, seed=2)
    x, weight, grad = (a.astype(np.float64) for a in (x, weight, grad))

    def scale(x: Array) -> Array:
        shifted = x - x.mean(-1, keepdims=True) * centred
        return np.sqrt((shifted**2).mean(-1, keepdims=True) + 0.1)

    def function(x: Array, weight: Array) -> Array:
        return (x - x.mean(-1, keepdims=True) * centred) / scale(x) * weight

    given = (a.astype(dtype) for a in (x, weight, scale(x), grad))
    found = norm_grad(*given, centred=centred, bias=True)
    close(found[0], slope(lambda it: function(it, weight), x, grad), allowed)
    close(found[1], slope(lambda it: function(x, it), weight, grad), allowed)
    close(found[2], grad.sum((0, 1)), allowed)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-8), (np.float32, 2e-6)])
def test_cross_entropy(weighted: bool, dtype: Any, allowed: float) -> None:
    logits = numbers(4, 9).astype(np.float64)
    targets = np.array([0, 8, 3, 3])
    weights = np.array([1.0, 0.5, 0.0, 2.0]) if weighted else np.ones(4)

    def function(logits: Array) -> Array:
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return -np.log(p[np.arange(4), targets]) * weights

    given = weights.astype(dtype) if weighted else None
    losses, grad = cross_entropy(logits.astype(dtype), targets, given)
    close(losses, function(logits), allowed)
    close(grad, slope(function, logits, np.ones(4)), allowed)


def test_logits_of_any_size_give_finite_losses() -> None:
    logits = np.array([[1e4, 0.0], [-1e4, 0.0], [0.0, -np.inf]], np.float32)
    losses, grad = cross_entropy(logits, np.array([1, 0, 0]))
    np.testing.assert_array_equal(losses, np.float32([1e4, 1e4, 0]))
    np.testing.assert_array_equal(grad, [[1, -1], [-1, 1], [0, 0]])


@pytest.mark.parametrize("target", [-1, 9])
def test_a_target_outside_is_an_error(target: int) -> None:
    with pytest.raises(
        ValueError, match=r"^cross_entropy: targets run from .* there are 9 columns"
    ):
        cross_entropy(numbers(2, 9), np.array([3, target]))


def test_targets_and_weights_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"weights have shape \(1,\) and targets \(2,\)"):
        cross_entropy(numbers(2, 9), np.array([3, 4]), np.ones(1))
    with pytest.raises(TypeError, match="targets are float64: give whole numbers"):
        cross_entropy(numbers(2, 9), np.array([3.0, 4.0]))


@pytest.mark.parametrize(("dtype", "allowed"), [(np.float64, 1e-12), (np.float32, 2e-6)])
@pytest.mark.parametrize("each", [False, True])
def test_adamw_by_its_formula(each: bool, dtype: Any, allowed: float) -> None:
    parameters = numbers(11).astype(dtype)
    mean, square = np.zeros(11, dtype), np.zeros(11, dtype)
    decay = np.where(np.arange(11) < 5, 0.1, 0.0).astype(dtype) if each else 0.1
    p, m, v = parameters.astype(np.float64), np.zeros(11), np.zeros(11)
    for step in range(1, 8):
        gradient = numbers(11, seed=step).astype(dtype)
        adamw(
            parameters, gradient, mean, square,
            rate=0.05, betas=(0.9, 0.98), eps=1e-3, decay=decay, step=step, factor=0.5,
        )  # fmt: skip
        g = gradient.astype(np.float64) / 2
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        p = p * (1 - 0.05 * decay)
        p = p - 0.05 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.98**step)) + 1e-3)
    close(parameters, p, allowed)
    close(mean, m, allowed)
    close(square, v, allowed)


def test_norm_of_everything() -> None:
    x = numbers(300, 401)
    expected = math.sqrt((x.astype(np.float64) ** 2).sum())
    assert math.isclose(gradient_norm(x), expected, rel_tol=1e-12)
    assert gradient_norm(np.zeros(0, np.float32)) == 0


# Sizes: none is a multiple of a tile, a panel or a block for long


def grown(array: Array) -> Array:
    """The same numbers among NaN, rows further apart than they are long."""
    around = np.full((len(array) + 2, array.shape[1] + 3), np.nan, array.dtype)
    around[1:-1, 1:-2] = array
    return around[1:-1, 1:-2]


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
def test_linear_gradients_read_arrays_where_they_stand(transposed: bool) -> None:
    x, weight, grad = numbers(2, 30, 9), numbers(9, 12, seed=1), numbers(2, 30, 12, seed=2)
    if transposed:
        weight = np.ascontiguousarray(weight.T).T
    expected = linear_grad(x, weight, grad, bias=True)
    flipped = x[:, ::-1].copy()[:, ::-1], weight, np.asfortranarray(grad)
    for array, wanted in zip(linear_grad(*flipped, bias=True), expected, strict=True):
        close(array, wanted.astype(np.float64), 2e-6)
    assert linear_grad(x, weight, grad, bias=False)[2] is None


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 16383, 16385, 40000])
def test_activations_of_any_size(name: str, size: int) -> None:
    x, grad_out = numbers(size + 1)[1:] * 3, numbers(size, seed=1)
    wide, ones = x.astype(np.float64), grad_out.astype(np.float64)
    close(activate(x, name), activate(wide, name), 1e-6)
    close(activation_grad(x, grad_out, name), activation_grad(wide, ones, name), 2e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_far_out(name: str, dtype: Any) -> None:
    x = np.array([-np.inf, -1e30, -200, -60, 60, 200, 1e30, np.inf, np.nan], dtype)
    slopes = activation_grad(x, np.full(9, 2, dtype), name)
    np.testing.assert_allclose(slopes[:8], [0] * 4 + [2] * 4, rtol=1e-6, atol=1e-19)
    assert np.isnan(slopes[8]) or name == "relu"
    assert np.isnan(activate(x[-1:], name)).all()
    assert np.isnan(activation_grad(np.full(2, 3, dtype), np.full(2, np.nan, dtype), name)).all()


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    ("rows", "size"), [(0, 5), (1, 1), (3, 17), (300, 33), (700, 192), (5, 9000)]
)
def test_norm_gradients_of_any_size(rows: int, size: int, centred: bool) -> None:
    x, weight, grad = numbers(rows, size) + 3, numbers(size, seed=1), numbers(rows, size, seed=2)
    scale = np.sqrt(
        np.square(x - x.mean(-1, keepdims=True) * centred).mean(-1, keepdims=True) + 0.1
    )
    given = (grown(x), weight, scale, grown(grad))
    found = norm_grad(*given, centred=centred, bias=True)
    exact = norm_grad(*(a.astype(np.float64) for a in given), centred=centred, bias=True)
    for array, expected in zip(found, exact, strict=True):
        close(array, expected, 2e-6)
    assert norm_grad(*given, centred=centred, bias=False)[2] is None


@pytest.mark.parametrize(("rows", "size"), [(0, 4), (1, 1), (3, 15), (40, 64), (33, 65), (9, 8192)])
def test_cross_entropy_of_any_size(rows: int, size: int) -> None:
    logits = numbers(rows, size) * 5 + 30
    targets = np.random.default_rng(0).integers(0, size, rows).astype(np.int32)
    weights = numbers(rows, seed=3)
    losses, grad = cross_entropy(grown(logits), targets, weights)
    wide = logits.astype(np.float64), targets, weights.astype(np.float64)
    for array, expected in zip((losses, grad), cross_entropy(*wide), strict=True):
        close(array, expected, 2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_nan_stays_in_its_row(dtype: Any) -> None:
    logits = numbers(3, 40).astype(dtype)
    logits[1, 20] = np.nan
    losses, grad = cross_entropy(logits, np.array([1, 2, 3]))
    assert np.isnan(losses).tolist() == [False, True, False]
    np.testing.assert_array_equal(np.isnan(grad), np.isnan(losses)[:, None].repeat(40, 1))
    x, grad_out = numbers(30, 20).astype(dtype), numbers(30, 40, seed=1).astype(dtype)
    grad_out[7, 5] = np.nan
    grad_x, grad_weight, grad_bias = linear_grad(x, np.ones((20, 40), dtype), grad_out, bias=True)
    assert np.isnan(grad_x).any(1).nonzero()[0].tolist() == [7]
    assert np.isnan(grad_weight).any(0).nonzero()[0].tolist() == [5]
    assert np.isnan(grad_bias).nonzero()[0].tolist() == [5]
    one = np.ones((30, 1), dtype)
    found = norm_grad(grad_out, np.ones(40, dtype), one, grad_out, centred=True, bias=True)
    assert np.isnan(found[0]).any(1).nonzero()[0].tolist() == [7]
    assert np.isnan(found[1]).all()
    assert np.isnan(found[2]).nonzero()[0].tolist() == [5]
    assert math.isnan(gradient_norm(grad_out))
    parameters = np.ones(40, dtype)
    adamw(
        parameters, grad_out[7], np.zeros(40, dtype), np.zeros(40, dtype),
        rate=0.1, betas=(0.9, 0.9), eps=1e-8, decay=0.0, step=1,
    )  # fmt: skip
    assert np.isnan(parameters).nonzero()[0].tolist() == [5]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("size", [0, 1, 33, 16384, 50001])
def test_adamw_of_any_size(size: int, each: bool) -> None:
    parameters, gradient = numbers(size), numbers(size, seed=1)
    mean, square = numbers(size, seed=2), np.square(numbers(size, seed=3))
    decay = numbers(size, seed=4) if each else 0.3
    given = [parameters, gradient, mean, square]
    wide = [a.astype(np.float64) for a in given]
    options: dict[str, Any] = {"rate": 0.1, "betas": (0.9, 0.98), "eps": 1e-8, "step": 3}
    adamw(*given, decay=decay, **options)
    adamw(*wide, decay=np.asarray(decay, np.float64) if each else decay, **options)
    for array, expected in zip(given, wide, strict=True):
        close(array, expected, 2e-6)


# Threads


def test_the_same_bits_on_any_number_of_threads(backend: str) -> None:
    x, weight, grad = numbers(900, 210), numbers(210, 300, seed=1), numbers(900, 300, seed=2)
    transposed = np.ascontiguousarray(weight.T).T
    scale, targets = numbers(900, 1, seed=3) ** 2 + 1, np.arange(900) % 300

    def everything() -> list[Array]:
        mean, square, parameters = (np.abs(numbers(270_000, seed=k)) for k in range(3))
        adamw(
            parameters, grad.reshape(-1), mean, square,
            rate=0.1, betas=(0.9, 0.98), eps=1e-8, decay=0.1, step=3,
        )  # fmt: skip
        return [
            *linear_grad(x, weight, grad, bias=True),
            *linear_grad(x, transposed, grad, bias=True),
            *(activate(grad, name) for name in ACTIVATIONS),
            *(activation_grad(grad, grad, name) for name in ACTIVATIONS),
            *norm_grad(grad, weight[0], scale, grad, centred=True, bias=True),
            *cross_entropy(grad, targets),
            parameters, mean, square, np.array(gradient_norm(grad)),
        ]  # fmt: skip

    set_num_threads(1)
    expected = everything()
    for threads in (2, 3, 7):
        set_num_threads(threads)
        for found, wanted in zip(everything(), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


# What the door refuses


def asked() -> dict[str, dict[str, Any]]:
    """A call of each function of the kernel that is right."""

    def of(*shape: int) -> Array:
        return np.ones(shape, np.float32)

    return {
        "outer": {
            "left": of(3, 4), "right": of(3, 5), "y": of(4, 5),
            "left_sums": of(4), "right_sums": of(5),
        },
        "map": {"activation": 1, "x": of(7), "grad": of(7), "y": of(7)},
        "norm_grad": {
            "x": of(3, 4), "weight": of(4), "scale": of(3), "grad": of(3, 4), "centred": True,
            "grad_x": of(3, 4), "grad_weight": of(4), "grad_bias": of(4),
        },
        "cross_entropy": {
            "logits": of(3, 4), "targets": np.zeros(3, np.int64), "weights": of(3),
            "losses": of(3), "grad": of(3, 4),
        },
        "adamw": {
            "parameters": of(6), "gradient": of(6), "mean": of(6), "square": of(6),
            "decays": of(6), **{f"number {k}": 0.5 for k in range(10)},
        },
        "squares": {"x": of(6)},
    }  # fmt: skip


@native
@pytest.mark.parametrize("function", asked())
def test_the_kernel_refuses_what_does_not_fit(function: str) -> None:
    right = asked()[function]
    call = getattr(kernel, function)
    call(0, *right.values(), 1) if function != "squares" else call(0, right["x"], 1)
    optional = {"left_sums", "right_sums", "grad_bias", "weights", "decays"}
    for name, value in right.items():
        if not isinstance(value, np.ndarray):
            continue
        larger = np.ones([n + 1 for n in value.shape], value.dtype)
        wrong: list[Any] = [value.astype(np.float64), "no array"]
        if function != "squares":  # which takes any number of them
            wrong += [larger, larger[..., None], value[:-1]]
        if name not in optional and (function, name) != ("map", "grad"):
            wrong.append(None)
        if value.ndim == 2:
            wrong.append(np.asfortranarray(value))
        if value.ndim == 1:
            wrong.append(larger.repeat(2)[: 2 * len(value) : 2])
        for other in wrong:
            with pytest.raises((ValueError, TypeError, BufferError)):
                call(0, *(right | {name: other}).values(), 1)


@native
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_target_that_is_no_column_reads_nothing(body: int) -> None:
    logits, losses, grad = numbers(3, 5), np.zeros(3, np.float32), np.zeros((3, 5), np.float32)
    kernel.cross_entropy(body, logits, np.array([5, -1, 1 << 60]), None, losses, grad, 1)
    assert np.isnan(losses).all()
    np.testing.assert_allclose(grad.sum(1), 1, rtol=1e-6)
