"""Tests of rotary scaling: each pair's rotation speed in longer texts, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkv.models.network._rope_scaling import Dynamic, Linear, Llama3, LongRope, Proportional, Yarn


def speeds(scaling: Any, base: float, dims: int, length: int = 1) -> list[float]:
    return list(scaling.speeds(base, dims, length)[0])


# With `base=16` and `dims=8`, the speeds without scaling are 1, 1/2, 1/4 and 1/8.


def test_linear_by_hand() -> None:
    assert speeds(Linear(4.0), 16.0, 8) == [1 / 4, 1 / 8, 1 / 16, 1 / 32]
    assert Linear(4.0).speeds(16.0, 8, 1)[1] == 1


def test_dynamic_by_hand() -> None:
    scaling = Dynamic(3.0, 10)
    for length in (1, 9, 10):
        np.testing.assert_allclose(speeds(scaling, 16.0, 8, length), [1, 1 / 2, 1 / 4, 1 / 8])
    # twice as long as the limit: the last speed is divided by 3 * 2 - 2, the first is kept
    found = speeds(scaling, 16.0, 8, 20)
    np.testing.assert_allclose(found, [1, 4 ** (-1 / 3) / 2, 4 ** (-2 / 3) / 4, 1 / 32])


def test_longrope_by_hand() -> None:
    scaling = LongRope((1.0, 2.0, 2.0, 4.0), (1.0, 4.0, 8.0, 8.0), 10, 1.5)
    assert speeds(scaling, 16.0, 8, 10) == [1, 1 / 4, 1 / 8, 1 / 32]
    assert speeds(scaling, 16.0, 8, 11) == [1, 1 / 8, 1 / 32, 1 / 64]
    assert scaling.speeds(16.0, 8, 1)[1] == 1.5


def test_llama3_by_hand() -> None:
    # in 16 pi positions, the pairs make 8, 4, 2 and 1 full turns
    limit = 16 * math.pi
    found = speeds(Llama3(10.0, 1.0, 4.0, limit), 16.0, 8)  # type: ignore[arg-type]  # no whole number
    np.testing.assert_allclose(found, [1, 1 / 2, (1 / 3 + 2 / 3 / 10) / 4, 1 / 80], rtol=1e-15)


def test_yarn_by_hand() -> None:
    # in 2 pi * 16 positions, pair i makes 16 / 2**i turns
    limit = 32 * math.pi
    scaling = Yarn(4.0, limit, 1.2, fast=16.0, slow=2.0)  # type: ignore[arg-type]  # no whole number
    assert scaling.speeds(16.0, 8, 1)[1] == 1.2  # a ramp from pair 0 to pair 3
    shares = np.array([0, 1 / 3, 2 / 3, 1])
    plain = np.array([1, 1 / 2, 1 / 4, 1 / 8])
    np.testing.assert_allclose(
        speeds(scaling, 16.0, 8), plain * (1 - shares) + plain / 4 * shares, rtol=1e-15
    )
    # a ramp from pair 0.5 to pair 1.75, which rounding widens to 0 and 2
    numbers = {"fast": 2**3.5, "slow": 2**2.25}
    rounded = Yarn(4.0, limit, 1.0, **numbers)  # type: ignore[arg-type]  # no whole number
    np.testing.assert_allclose(speeds(rounded, 16.0, 8), [1, 0.3125, 1 / 16, 1 / 32])
    exact = Yarn(4.0, limit, 1.0, **numbers, truncate=False)  # type: ignore[arg-type]  # no whole number
    np.testing.assert_allclose(speeds(exact, 16.0, 8), [1, 0.35, 1 / 16, 1 / 32])


def test_proportional_by_hand() -> None:
    assert speeds(Proportional(0.5, 2.0), 16.0, 8) == [1 / 2, 1 / 4, 0, 0]
    assert speeds(Proportional(0.0, 1.0), 16.0, 8) == [0, 0, 0, 0]
