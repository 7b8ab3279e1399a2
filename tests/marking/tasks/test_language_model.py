"""Tests of the tasks of lesson 13: losses, learning rates and ways to sample."""

import numpy as np
import pytest

from qkv_marking.tasks import _language_model
from qkv_marking.tasks._task import Exercise

EXERCISES = [one for one in vars(_language_model).values() if isinstance(one, Exercise)]
WAYS = [
    pytest.param(exercise, one.key, way, id=f"{one.key}-{number}")
    for exercise in EXERCISES
    for one in exercise.table.group()
    for number, way in enumerate(one.variants)
]


@pytest.mark.parametrize(("exercise", "key", "way"), WAYS)
def test_the_lines_of_a_way_are_named_and_printed(exercise, key, way):
    result = exercise.task().mark(lambda *arguments: exercise.solve(*arguments, lines=way), "")
    assert result.mistakes + result.fragile == (key,), str(result)
    assert [*result.diffs[key]] == [
        (exercise.table.formula.lines[name], line) for name, line in way.items()
    ]


def test_the_loss_is_that_of_a_hand_calculation():
    logits = np.log([[[1.0, 1, 2], [3.0, 1, 0.5], [1.0, 1, 1]]])
    assert np.isclose(_language_model.LOSS.solve(logits, np.array([[0, 2, 1]]), -1),
                      -(np.log(2 / 4) + np.log(1 / 4.5)) / 2)  # fmt: skip
    assert np.isclose(_language_model.LOSS.solve(logits, np.array([[0, 2, 1]]), 1), np.log(2))


def test_the_rate_rises_and_falls_evenly():
    rates = [_language_model.LEARNING_RATE.solve(step, 7, 3, 6.0) for step in range(7)]
    assert np.allclose(rates, [2, 4, 6, 6, 4.5, 3, 1.5])


def test_sampling_is_that_of_a_hand_calculation():
    kept = _language_model.TOP_K.solve(np.log([1.0, 4, 9, 2]), 2, 2.0)  # roots: 1, 2, 3, 1.4
    assert np.allclose(kept, [0, 2 / 5, 3 / 5, 0])
    kept = _language_model.TOP_P.solve(np.array([0.125, 0.5, 0.25, 0.125]), 0.6)
    assert np.allclose(kept, [0, 2 / 3, 1 / 3, 0])
