"""Tests of Wilson's interval, against the equation that it solves."""

import pytest

from training.shares import in_words, wilson


@pytest.mark.parametrize(("right", "tries"), [(11, 800), (112, 800), (1, 3), (400, 800)])
def test_both_ends_of_the_interval_solve_the_wilson_equation(right: int, tries: int) -> None:
    for end in wilson(right, tries):
        assert abs(right / tries - end) == pytest.approx(
            1.959964 * (end * (1 - end) / tries) ** 0.5
        )


def test_wilson_interval_at_shares_of_0_and_1() -> None:
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == pytest.approx(1)
    assert in_words(0, 0) == "0.0% (0.0 to 100.0)"
