"""ALiBi slopes against the paper's numbers."""

import numpy as np
import pytest

from qkv.embed import alibi_slopes

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
        # those of 2 heads, then the first of 4
        (3, [1 / 16, 1 / 256, 1 / 4]),
        # those of 4 heads, then the first and third of 8
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
        # those of 8 heads, then every second one of 16, whose first is the root of a half
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
        (8.0, TypeError, "num_heads is 8.0: give a whole number"),
        (True, TypeError, "num_heads is True"),
        (2**64, ValueError, "num_heads is 18446744073709551616: it must be at most"),
        (None, TypeError, "num_heads is None"),
    ],
)
def test_refused(heads, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=f"^alibi_slopes: {match}"):
        alibi_slopes(heads)
