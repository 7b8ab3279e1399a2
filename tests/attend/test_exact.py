"""Tests that compare `exact.attention` with `loops.attention` on the same calls."""

import numpy as np
import pytest

from . import exact, loops
from .drawn import draw
from .support import FLOATS, ON_ONE_BACKEND


@ON_ONE_BACKEND
@pytest.mark.parametrize(
    "start",
    [0, 20, *(pytest.param(start, marks=pytest.mark.attack) for start in range(40, 200, 20))],
)
def test_exact_attention_agrees_with_the_loops(start: int) -> None:
    for seed in range(start, start + 20):
        case = draw(seed, kinds=("small",), types=tuple(FLOATS), cells=300)
        found = exact.attention(*case.arrays, **case.options)
        expected = loops.attention(*case.arrays, **case.options)
        assert (found.loops.visible == expected.visible).all(), seed
        clear = found.rows == exact.NEAR
        sure = found.out == exact.NEAR
        size = np.maximum(1, np.abs(np.nan_to_num(expected.lse)))
        allowed = 1e-13 * (1 + expected.largest_score)
        for mine, theirs in (
            ((found.loops.lse / size)[clear], (expected.lse / size)[clear]),
            (found.loops.out[sure], expected.out[sure]),
        ):
            scale = max(1.0, expected.largest_value)
            np.testing.assert_allclose(mine, theirs, 0, allowed * scale, err_msg=str(seed))
        clear &= ~np.isnan(expected.lse)
        np.testing.assert_allclose(
            found.loops.weights[clear], expected.weights[clear], 0, allowed, err_msg=str(seed)
        )
        if expected.largest_score < exact.HIDES:
            np.testing.assert_allclose(found.loops.largest_score, expected.largest_score, 1e-12)
        assert found.loops.largest_value == expected.largest_value
