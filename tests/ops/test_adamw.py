"""Tests of the step of AdamW and the norm of a gradient, on every backend."""

import math
from typing import Any

import numpy as np
import pytest

from qkv.ops._training import adamw, gradient_norm

from .support import close, numbers

pytestmark = pytest.mark.usefixtures("backend")  # run every test on each backend


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
