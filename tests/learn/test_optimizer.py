"""Tests of AdamW and the schedule, against manual arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qkv.learn import AdamW, Schedule

from .support import network


def test_two_steps_by_hand() -> None:
    net = network(dtype=np.float64)
    optimizer = AdamW(net, betas=(0.9, 0.98), eps=0.1, decay=0.5, clip=math.inf)
    matrix, vector = 0, net.flat.size - 1
    net.flat[[matrix, vector]] = 2.0
    net.gradient[:] = 0
    net.gradient[[matrix, vector]] = 3.0
    optimizer.step(0.01)
    # The running means are 0.3 and 0.18, or 3 and 9 after their correction, so each number moves
    # by 0.01 * 3 / (3 + 0.1).
    moved = 0.03 / 3.1
    np.testing.assert_allclose(net.flat[vector], 2 - moved, rtol=1e-12)
    np.testing.assert_allclose(net.flat[matrix], 2 * (1 - 0.005) - moved, rtol=1e-12)
    net.gradient[[matrix, vector]] = -1.0
    before = net.flat[vector]
    optimizer.step(0.02)
    mean = (0.9 * 0.3 - 0.1) / (1 - 0.9**2)
    square = (0.98 * 0.18 + 0.02) / (1 - 0.98**2)
    expected = before - 0.02 * mean / (math.sqrt(square) + 0.1)
    np.testing.assert_allclose(net.flat[vector], expected, rtol=1e-12)
    assert optimizer.count == 2


def test_decay_is_for_matrices_alone() -> None:
    net = network()
    net.flat[:] = 1
    net.gradient[:] = 0
    AdamW(net, decay=0.1).step(0.5)
    for array in net.parameters.values():
        np.testing.assert_allclose(array, 0.95 if array.ndim > 1 else 1.0, rtol=1e-6)


def test_a_large_gradient_is_clipped() -> None:
    found = []
    for size, clip in ((1.0, 2.0), (1000.0, 2.0), (0.5, 1.0)):
        net = network()
        optimizer = AdamW(net, clip=clip, decay=0.0)
        net.gradient[:] = 0
        net.gradient[:4] = size * np.array([1, -1, 1, 1])  # of length 2 * size
        assert optimizer.length() == pytest.approx(2 * size)
        optimizer.step(0.1)
        found.append(optimizer.mean[:4])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    np.testing.assert_allclose(found[2], found[0] / 2, rtol=1e-6)


def test_a_non_finite_gradient_is_refused() -> None:
    net = network()
    optimizer = AdamW(net)
    before = net.flat.copy()
    net.gradient[5] = np.inf
    with pytest.raises(FloatingPointError, match="not finite"):
        optimizer.step(0.1)
    np.testing.assert_array_equal(net.flat, before)
    assert optimizer.count == 0


@pytest.mark.parametrize(
    ("fall", "expected"),
    [
        ("linear", [0.0, 1.0, 2.0, 1.55, 1.1, 0.2]),
        ("cosine", [0.0, 1.0, 2.0, 0.2 + 1.8 * 0.5, 0.2 + 1.8 * 0.5, 0.2]),
        ("none", [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]),
    ],
)
def test_the_schedule(fall: str, expected: list[float]) -> None:
    schedule = Schedule(2.0, warmup=0.2, fall=fall, least=0.1)
    shares = [0.0, 0.1, 0.2, 0.4, 0.6, 1.0]
    if fall == "cosine":
        shares[3] = 0.6
    assert [schedule(share) for share in shares] == pytest.approx(expected)
    assert schedule(1.5) == schedule(1.0)


def test_what_a_schedule_refuses() -> None:
    for given, words in (
        ({"rate": 0.0}, "above 0"),
        ({"rate": math.nan}, "above 0"),
        ({"rate": 1.0, "warmup": 1.0}, "below 1"),
        ({"rate": 1.0, "fall": "off"}, "choose linear"),
        ({"rate": 1.0, "least": -0.1}, "from 0 to 1"),
        ({"rate": 1.0, "least": math.nan}, "from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=words):
            Schedule(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -0.1)},
        {"betas": (0.9,)},
        {"eps": -1e-8},
        {"decay": math.nan},
        {"clip": 0.0},
    ],
)
def test_what_the_optimizer_refuses(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=f"^AdamW: {name} (is|are) "):
        AdamW(network(), **given)
