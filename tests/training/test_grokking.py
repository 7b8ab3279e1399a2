"""Tests of the training run that shows grokking, and of its numbers in the documentation."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from training.grokking import FILE, PRIME, Addition, run, start

STEP, TRAIN_LOSS, TEST_LOSS, TRAIN_ACCURACY, TEST_ACCURACY = range(5)


def test_the_model_must_predict_the_sum_after_the_last_token_of_each_training_pair() -> None:
    objective = Addition(prime=5, trained=0.3)
    assert len(objective.trained) == 7  # 30% of 25
    assert {*objective.trained, *objective.tested} == set(range(25))
    batch = objective.batch(0, np.random.default_rng(0))
    texts = batch.ids.reshape(-1, 3)
    assert batch.cu_lengths.tolist() == list(range(0, 22, 3))
    assert batch.at.tolist() == list(range(2, 21, 3))
    assert (texts[:, 2] == 5).all()
    assert batch.targets.tolist() == [(a + b) % 5 for a, b, _ in texts.tolist()]


def test_the_measured_numbers_are_those_of_the_formula() -> None:
    objective, network = Addition(prime=5), start(prime=5, dim=8)
    found = objective.measure(network.model())
    logits = np.asarray(network.model(np.float64)(objective.pairs).logits)[:, -1].tolist()
    for part, indices in (("train", objective.trained), ("test", objective.tested)):
        losses, right = [], []
        for pair in indices.tolist():
            row, answer = logits[pair], (pair // 5 + pair % 5) % 5
            losses.append(math.log(sum(map(math.exp, row))) - row[answer])
            right.append(row.index(max(row)) == answer)
        assert found[f"{part}_loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
        assert found[f"{part}_accuracy"] == pytest.approx(sum(right) / len(right))
    loss, tokens = objective(network, objective.batch(0, np.random.default_rng(0)))
    assert loss == pytest.approx(found["train_loss"], abs=1e-5)
    assert tokens == 3 * len(objective.trained)


def test_a_run_is_measured_and_continues(tmp_path: Path) -> None:
    first = run(tmp_path, start(5, 8), Addition(5), steps=4, every=2)
    assert [row[STEP] for row in first] == [2, 4]
    longer = run(tmp_path, start(5, 8), Addition(5), steps=6, every=2, resume=True)
    assert longer[:2] == first
    assert [row[STEP] for row in longer] == [2, 4, 6]
    assert longer[-1][TRAIN_LOSS] < first[0][TRAIN_LOSS]


def test_the_kept_run_memorises_first_and_generalises_much_later() -> None:
    rows = np.array(json.loads(FILE.read_bytes()))
    memorised = rows[np.argmax(rows[:, TRAIN_ACCURACY] > 0.99)]
    general = rows[np.argmax(rows[:, TEST_ACCURACY] > 0.99)]
    assert (memorised[STEP], general[STEP]) == (200, 9400)  # docs/training.md says so
    assert memorised[TEST_ACCURACY] < 0.2
    assert memorised[TEST_LOSS] > math.log(PRIME)  # worse than equal probabilities
    assert rows[-1, TEST_ACCURACY] > 0.99
    assert rows[-1, TEST_LOSS] < 0.1
