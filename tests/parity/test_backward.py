"""Tests of gradients of a layer's parts, and of AdamW, against torch."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers.activations import QuickGELUActivation

from qkv.ops._adamw import adamw
from qkv.ops._loss import cross_entropy
from qkv.ops._norm import norm_grad
from qkv.ops.activation import activation_grad
from qkv.ops.linear import linear_grad

Array = np.ndarray[Any, Any]
TYPES = [(np.float32, 2e-6), (np.float64, 1e-12)]


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def leaf(array: Array) -> torch.Tensor:
    return torch.tensor(array, requires_grad=True)


def close(found: Array | None, expected: torch.Tensor | None, allowed: float) -> None:
    assert found is not None
    wanted = expected.numpy()
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert np.abs(found - wanted).max() <= allowed * max(1, np.abs(wanted).max())


@pytest.mark.parametrize(("dtype", "allowed"), TYPES)
def test_linear(dtype: Any, allowed: float) -> None:
    x, weight, bias = (numbers(*s, dtype=dtype) for s in ((3, 70, 40), (40, 55), (55,)))
    above = numbers(3, 70, 55, seed=1, dtype=dtype)
    given = [leaf(a) for a in (x, weight, bias)]
    (given[0] @ given[1] + given[2]).backward(torch.tensor(above))
    for found, one in zip(linear_grad(x, weight, above, bias=True), given, strict=True):
        close(found, one.grad, allowed)


@pytest.mark.parametrize(("dtype", "allowed"), TYPES)
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "relu", "quick_gelu"])
def test_activations(name: str, dtype: Any, allowed: float) -> None:
    x, above = numbers(5000, dtype=dtype) * 4, numbers(5000, seed=1, dtype=dtype)
    functions = {
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
        "relu": torch.relu,
        "quick_gelu": QuickGELUActivation(),
    }
    given = leaf(x)
    functions[name](given).backward(torch.tensor(above))
    close(activation_grad(x, above, name), given.grad, allowed)


@pytest.mark.parametrize(("dtype", "allowed"), TYPES)
@pytest.mark.parametrize("centred", [True, False])
def test_norms(centred: bool, dtype: Any, allowed: float) -> None:
    x, weight, above = (
        numbers(*s, seed=k, dtype=dtype) for k, s in enumerate([(90, 24), (24,), (90, 24)])
    )
    given = [leaf(a) for a in (x, weight, weight)]
    if centred:
        y = torch.nn.functional.layer_norm(given[0], (24,), given[1], given[2], eps=1e-5)
    else:
        y = torch.nn.functional.rms_norm(given[0], (24,), given[1], eps=1e-5)
    y.backward(torch.tensor(above))
    shifted = x - x.mean(-1, keepdims=True) * centred
    scale = np.sqrt(np.square(shifted).mean(-1, keepdims=True) + dtype(1e-5))
    found = norm_grad(x, weight, scale, above, centred=centred, bias=centred)
    for array, one in list(zip(found, given, strict=True))[: 2 + centred]:
        close(array, one.grad, allowed)


@pytest.mark.parametrize(("dtype", "allowed"), TYPES)
def test_cross_entropy(dtype: Any, allowed: float) -> None:
    logits, targets = numbers(50, 300, dtype=dtype) * 5, np.arange(50) * 6
    weights = np.abs(numbers(50, seed=1, dtype=dtype))
    given = leaf(logits)
    expected = torch.nn.functional.cross_entropy(given, torch.tensor(targets), reduction="none")
    expected = expected * torch.tensor(weights)
    expected.sum().backward()
    losses, grad = cross_entropy(logits, targets, weights)
    close(losses, expected.detach(), allowed)
    close(grad, given.grad, allowed)


@pytest.mark.parametrize(("dtype", "allowed"), TYPES)
def test_twenty_steps_of_adamw(dtype: Any, allowed: float) -> None:
    parameters = numbers(500, dtype=dtype)
    given = [leaf(parameters[:300].copy()), leaf(parameters[300:].copy())]
    options: dict[str, Any] = {"betas": (0.9, 0.98), "eps": 1e-6}
    groups = [
        {"params": given[:1], "weight_decay": 0.1},
        {"params": given[1:], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=0.02, **options)
    decay = np.repeat(np.array([0.1, 0], dtype), [300, 200])
    mean, square = np.zeros(500, dtype), np.zeros(500, dtype)
    for step in range(1, 21):
        gradient = numbers(500, seed=step, dtype=dtype)
        for one, part in zip(given, (gradient[:300], gradient[300:]), strict=True):
            one.grad = torch.tensor(part)
        theirs.step()
        adamw(
            parameters, gradient, mean, square, rate=0.02, decay=decay, step=step, **options
        )  # fmt: skip
    close(parameters, torch.cat([one.detach() for one in given]), 5 * allowed)
