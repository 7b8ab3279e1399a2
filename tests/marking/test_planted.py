"""Tests of mistakes, planted in right solutions.

Each line of `mistakes.txt` has what the marker finds, the changed solutions, and the changes.
"""

import pytest

from .written import BASES, marked, plantings


@pytest.mark.parametrize(("keys", "written", "changes"), plantings("mistakes.txt"))
def test_a_planted_mistake_is_named(keys, written, changes):
    result = marked(written, changes)
    found = [*result.mistakes, *(f"fragile:{key}" for key in result.fragile)]
    found += [f"other:{key}" for key in result.conventions]
    assert sorted(found) == sorted(keys.split()), str(result)
    fragile = len(result.fragile)
    assert result.points <= 8 if result.mistakes else result.points == 10 - fragile
    assert result.passed is (not result.mistakes)
    if result.mistakes and written.startswith("attention"):
        assert {"query", "key", "value", "yours", "right"} <= result.example.keys()
    hints = result.hint
    assert len({*hints}) == 3
    assert all(hints)


@pytest.mark.parametrize("base", BASES)
def test_the_bases_of_the_answers_are_right(base):
    result = marked(base)
    assert (result.points, result.fragile, result.conventions) == (10, (), ()), str(result)
