"""Tests of sinusoidal and learned positions, and of ALiBi slopes against the paper's numbers."""

import math

import numpy as np
import pytest

from qkv.embed import LearnedPositions, alibi_slopes, sinusoidal_positions

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


def test_sinusoidal_by_hand() -> None:
    # dim 4: the angles are p and p / 100
    expected = [
        [0, 1, 0, 1],
        [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
        [0.9092974268, -0.4161468365, 0.0199986667, 0.9998000067],
    ]
    np.testing.assert_allclose(sinusoidal_positions(3, 4), expected, atol=1e-10)


def test_sinusoidal_without_rows() -> None:
    assert sinusoidal_positions(0, 6).shape == (0, 6)
    assert sinusoidal_positions(np.int32(2), np.int64(6)).shape == (2, 6)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((-1, 4), ValueError, "length is -1: it must be 0 or more"),
        ((3, 0), ValueError, "dim is 0: it must be 1 or more"),
        ((3, -2), ValueError, "dim is -2"),
        ((3.0, 4), TypeError, "length is 3.0; pass a whole number"),
        ((3, "4"), TypeError, "dim is '4'"),
        ((True, 4), TypeError, "length is True"),
        ((3, 4, 0), ValueError, "base is 0.0: it must be finite and greater than 0"),
        ((3, 4, -1.0), ValueError, "base is -1.0"),
        ((3, 4, math.inf), ValueError, "base is inf"),
        ((3, 4, math.nan), ValueError, "base is nan"),
        ((3, 4, None), TypeError, "base is None; pass a number"),
        ((3, 4, "10000"), TypeError, "base is '10000'"),
        ((3, 4, 10**400), ValueError, "base is 10*[.]{3}, which is too large for a float"),
        ((3, 4, np.ones((2, 1))), TypeError, r"base is array\(.*\); pass one number$"),
        ((2**64, 4), ValueError, "length is 18446744073709551616: it must be at most"),
        ((3, 10**5000), ValueError, "dim is a very large int: it must be at most"),
    ],
)
def test_sinusoidal_refused(arguments, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=f"^sinusoidal_positions: {match}"):
        sinusoidal_positions(*arguments)


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


@pytest.mark.parametrize(
    ("length", "error", "match"),
    [
        (4, ValueError, "the text has 4 tokens, but the table has only.*3"),
        (-1, ValueError, "length is -1"),
        (1.0, TypeError, "length is 1.0"),
    ],
)
def test_learned_length_refused(length, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=f"^LearnedPositions: {match}"):
        LearnedPositions(TABLE, offset=2)(length)


@pytest.mark.parametrize(
    ("positions", "error", "match"),
    [
        ([0, 3], ValueError, "no row for position 3: the table has 3 rows"),
        ([-1], ValueError, "no row for position -1"),
        ([0.5], TypeError, "positions are float64; pass integers"),
    ],
)
def test_learned_positions_refused(positions, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=f"^LearnedPositions: {match}"):
        LearnedPositions(TABLE, offset=2).rows(positions)


@pytest.mark.parametrize(
    ("weight", "offset", "error", "match"),
    [
        (TABLE, 5, ValueError, "offset is 5 and weight has 5 rows"),
        (TABLE, -1, ValueError, "offset is -1"),
        (TABLE, 0.5, TypeError, "offset is 0.5"),
        (TABLE[0], 0, ValueError, r"shape \(2,\)"),
        ([["a"]], 0, TypeError, "weight is <U1"),
        (np.zeros((0, 3)), 0, ValueError, "weight has 0 rows"),
    ],
)
def test_learned_tables_refused(weight, offset, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=f"^LearnedPositions: .*{match}"):
        LearnedPositions(weight, offset=offset)


# ALiBi

EIGHT = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_eight_heads_as_the_paper_says() -> None:
    slopes = alibi_slopes(8)
    assert slopes.tolist() == EIGHT
    assert slopes.dtype == np.float64


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


@pytest.mark.parametrize("heads", [5, 7, 9, 24, 31, 100])
def test_other_numbers_of_heads(heads: int) -> None:
    slopes = alibi_slopes(heads)
    assert slopes.shape == (heads,)
    assert len(set(slopes.tolist())) == heads
    assert ((slopes > 0) & (slopes < 1)).all()


@pytest.mark.parametrize(
    ("heads", "error", "match"),
    [
        (0, ValueError, "num_heads is 0: it must be 1 or more"),
        (-4, ValueError, "num_heads is -4"),
        (8.0, TypeError, "num_heads is 8.0; pass a whole number"),
        (True, TypeError, "num_heads is True"),
        (2**64, ValueError, "num_heads is 18446744073709551616: it must be at most"),
        (None, TypeError, "num_heads is None"),
    ],
)
def test_slopes_refused(heads, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=f"^alibi_slopes: {match}"):
        alibi_slopes(heads)
