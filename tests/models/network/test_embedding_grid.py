"""Tests of position embeddings that are interpolated for another grid.

The tests compare with results computed by hand, check invariants, and check the gradient.
"""

import numpy as np
import pytest

from qkv.models.network._embedding import for_grid, for_grid_back, resampling


def test_a_row_by_hand() -> None:
    # The 4 given values lie at positions 0 to 3, and the first of the 2 results at position 0.5.
    # This result depends on the values at positions -1, 0, 1 and 2. Position -1 has the value of
    # position 0. The weight is 19/32 at distance 1/2, and -3/32 at distance 3/2.
    near, far = 19 / 32, -3 / 32
    expected = [[near + far, near, far, 0], [0, far, near, near + far]]
    np.testing.assert_allclose(resampling(4, 2), expected, atol=1e-15)


@pytest.mark.parametrize(("given", "wanted"), [(1, 3), (2, 5), (7, 3), (5, 5), (16, 37)])
def test_resampling_preserves_constants_and_symmetry(given: int, wanted: int) -> None:
    matrix = resampling(given, wanted)
    assert matrix.shape == (wanted, given)
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-12)  # constants are unchanged
    np.testing.assert_allclose(matrix, matrix[::-1, ::-1], atol=1e-12)
    if given == wanted:
        np.testing.assert_array_equal(matrix, np.eye(given))


def test_a_grid_and_its_gradient() -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((1 + 3 * 4, 5))
    found = for_grid(table, (3, 4), (5, 2))
    np.testing.assert_array_equal(found[0], table[0])
    down, across, cells = resampling(3, 5), resampling(4, 2), table[1:].reshape(3, 4, 5)
    for row in range(5):
        for column in range(2):
            weights = down[row][:, None] * across[column]
            expected = (weights[..., None] * cells).sum((0, 1))
            np.testing.assert_allclose(found[1 + row * 2 + column], expected, atol=1e-12)
    grad, way = rng.standard_normal(found.shape), rng.standard_normal(table.shape)
    back = for_grid_back(grad, (3, 4), (5, 2))
    assert (back * way).sum() == pytest.approx((grad * for_grid(way, (3, 4), (5, 2))).sum())
    half = for_grid(table.astype(np.float32), (3, 4), (5, 2))
    assert half.dtype == np.float32
