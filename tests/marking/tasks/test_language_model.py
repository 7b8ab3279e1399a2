"""Tests of the tasks of lesson 13: losses, learning rates and ways to sample."""

import numpy as np

from qkv_marking.tasks import _language_model


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
