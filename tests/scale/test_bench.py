"""Tests of the benchmarks of several processes.

Results are correct, and each goal can be computed from the measured times.
"""

import pytest

from benchmarks import scale, texts

SMALL = 32  # the divisor of the benchmarks' lengths


@pytest.mark.attack
def test_every_benchmarked_way_is_within_its_allowed_error() -> None:
    if not (texts.WORDNET / "data.noun").is_file():
        pytest.skip("its texts are from WordNet: apt-get install wordnet-base")
    names = []
    for row in scale.rows(SMALL):
        names.append(row.name)
        for name, way in row.ways.items():
            assert way is not None
            assert way.error(way.call()) <= way.allowed, f"{row.name}: {name}"
        measured = {"ways": {name: {"seconds": 2.0} for name in row.ways}}
        for goal in row.goals:
            assert goal.judged(measured)["value"] is not None, goal.text
    assert len(names) == len(set(names)) == 5
