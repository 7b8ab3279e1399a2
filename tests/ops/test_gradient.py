"""Tests of all gradients: NaN, threads, and wrong arguments of the kernel."""

import math
from typing import Any

import numpy as np
import pytest

from qkv.layers import LayerNorm
from qkv.ops._norm import norm_grad
from qkv.ops._training import adamw, cross_entropy, gradient_norm
from qkv.ops.activation import ACTIVATIONS, activate, activation_grad
from qkv.ops.kernel import VARIANTS, compiled, set_num_threads
from qkv.ops.linear import linear_grad

from .support import Array, numbers

pytestmark = pytest.mark.usefixtures("backend")  # run every test on each backend
native = pytest.mark.skipif(compiled is None, reason="the kernel was not built")


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
            LayerNorm(210)(x),
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


# Wrong arguments


def asked() -> dict[str, dict[str, Any]]:
    """Return correct arguments for each function of the kernel."""

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
def test_the_kernel_refuses_invalid_arguments(function: str) -> None:
    right = asked()[function]
    call = getattr(compiled, function)
    call(0, *right.values(), 1) if function != "squares" else call(0, right["x"], 1)
    optional = {"left_sums", "right_sums", "grad_bias", "weights", "decays"}
    for name, value in right.items():
        if not isinstance(value, np.ndarray):
            continue
        larger = np.ones([n + 1 for n in value.shape], value.dtype)
        wrong: list[Any] = [value.astype(np.float64), "no array"]
        if function != "squares":  # `squares` takes arrays of any size
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
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_target_out_of_range_gives_a_nan_loss(variant: int) -> None:
    logits, losses, grad = numbers(3, 5), np.zeros(3, np.float32), np.zeros((3, 5), np.float32)
    compiled.cross_entropy(variant, logits, np.array([5, -1, 1 << 60]), None, losses, grad, 1)
    assert np.isnan(losses).all()
    np.testing.assert_allclose(grad.sum(1), 1, rtol=1e-6)
