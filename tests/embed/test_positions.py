"""Tests of sinusoidal and learned positions, and of ALiBi slopes against the paper's numbers."""

import math

import numpy as np
import pytest

from qkv.embed import LearnedPositions, alibi_slopes, sinusoidal_positions
from rows import failing

TABLE = [[9.0, 9.0], [8.0, 8.0], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize(("length", "dim"), [(1, 1), (6, 4), (5, 7), (3, 2), (300, 16)])
@pytest.mark.parametrize("base", [10000.0, 100])
def test_sinusoidal_by_the_paper(length: int, dim: int, base: float) -> None:
    table = sinusoidal_positions(length, dim, base)
    assert table.shape == (length, dim)
    assert table.dtype == np.float64
    for position in range(length):
        for column in range(dim):
            pair = column // 2
            angle = position / math.pow(base, 2 * pair / dim)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[position, column] == pytest.approx(expected, abs=1e-12)


def test_sinusoidal_without_rows() -> None:
    assert sinusoidal_positions(0, 6).shape == (0, 6)
    assert sinusoidal_positions(np.int32(2), np.int64(6)).shape == (2, 6)


def test_refused() -> None:
    def make(weight: object, offset: object) -> LearnedPositions:
        return LearnedPositions(weight, offset=offset)

    learned, sinusoidal = LearnedPositions(TABLE, offset=2), sinusoidal_positions
    names = {sinusoidal: "sinusoidal_positions", alibi_slopes: "alibi_slopes"}
    for call, arguments, error, match in (
        (sinusoidal, (-1, 4), ValueError, "length is -1: it must be 0 or more"),
        (sinusoidal, (3, 0), ValueError, "dim is 0: it must be 1 or more"),
        (sinusoidal, (3.0, 4), TypeError, "length is 3.0; pass a whole number"),
        (sinusoidal, (3, 4, 0), ValueError, "base is 0.0: it must be finite and greater than 0"),
        (sinusoidal, (3, 4, math.inf), ValueError, "base is inf"),
        (sinusoidal, (3, 4, None), TypeError, "base is None; pass a number"),
        (learned, (4,), ValueError, "the text has 4 tokens, but the table has only.*3"),
        (learned, (1.0,), TypeError, "length is 1.0"),
        (learned.rows, ([0, 3],), ValueError, "no row for position 3: the table has 3 rows"),
        (learned.rows, ([0.5],), TypeError, "positions are float64; pass integers"),
        (make, (TABLE, 5), ValueError, "offset is 5 and weight has 5 rows"),
        (make, (TABLE, 0.5), TypeError, "offset is 0.5"),
        (make, (TABLE[0], 0), ValueError, r".*shape \(2,\)"),
        (make, (np.zeros((0, 3)), 0), ValueError, ".*weight has 0 rows"),
        (alibi_slopes, (0,), ValueError, "num_heads is 0: it must be 1 or more"),
        (alibi_slopes, (8.0,), TypeError, "num_heads is 8.0; pass a whole number"),
    ):
        name = names.get(call, "LearnedPositions")
        with failing(name, arguments), pytest.raises(error, match=f"^{name}: {match}"):
            call(*arguments)


def test_learned_rows_from_the_offset_on() -> None:
    positions = LearnedPositions(TABLE, offset=2)
    assert len(positions) == 3
    assert positions(2).tolist() == [[1, 2], [3, 4]]
    assert positions(3).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert positions(0).shape == (0, 2)
    assert positions.rows([0, 1, 0, 2]).tolist() == [[1, 2], [3, 4], [1, 2], [5, 6]]
    assert LearnedPositions(TABLE)(1).tolist() == [[9, 9]]


def test_learned_table_keeps_its_type_and_is_fixed() -> None:
    given = np.array(TABLE, dtype=np.float32)
    positions = LearnedPositions(given)
    given[:] = 0
    assert positions(1).tolist() == [[9, 9]]
    assert positions(1).dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        positions(1)[:] = 1


# ALiBi

EIGHT = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [1 / 256]),
        (2, [1 / 16, 1 / 256]),
        # the slopes of 2 heads, then the first slope of 4 heads
        (3, [1 / 16, 1 / 256, 1 / 4]),
        # the slopes of 4 heads, then the first and third slopes of 8 heads
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        # the slopes of 8 heads, then the first, third, fifth and seventh slopes of 16 heads; the
        # first slope of 16 heads is sqrt(1/2)
        (12, [*EIGHT, 0.5**0.5, 0.5**1.5, 0.5**2.5, 0.5**3.5]),
        (16, [0.5 ** (0.5 * n) for n in range(1, 17)]),
    ],
)
def test_slopes(heads: int, expected: list[float]) -> None:
    np.testing.assert_allclose(alibi_slopes(heads), expected, rtol=1e-15)
