"""Tests of the counts of neighbouring words, against counts by hand."""

import math

import numpy as np
import pytest

from qkv.learn import Words
from training.neighbours import DISCOUNT, FAR, PAIRS, SKIPS, Neighbours, Table, fitted

OFTEN = np.array([0.1, 0.2, 0.3, 0.4])


def rate(count: int, kinds: int, word: int) -> float:
    """Return the log ratio of a word with this count in a context of `kinds` different words."""
    return math.log(1 + (count - DISCOUNT) / (DISCOUNT * kinds * OFTEN[word]))


def test_a_table_says_how_much_likelier_a_word_is() -> None:
    table = Table(np.array([7, 7, 7, 9, 7]), np.array([2, 1, 2, 3, 2]), OFTEN)
    words, values, less = table.row(7) or pytest.fail("there is no such context")
    assert (words.tolist(), less) == ([1, 2], 0.0)
    np.testing.assert_allclose(values, [rate(1, 2, 1), rate(3, 2, 2)], rtol=1e-6)
    assert table.row(8) is table.row(10) is None


@pytest.mark.parametrize(("target", "count"), [(1, 1), (2, 3), (3, 0)])
def test_counts_exclude_the_training_text_itself(target: int, count: int) -> None:
    table = Table(np.array([7, 7, 7, 9, 7]), np.array([2, 1, 2, 3, 2]), OFTEN)
    _, _, less = table.row(7, target) or pytest.fail("there is no such context")
    now = rate(count, 2, target) if count else 0.0
    once_less = rate(count - 1, 2, target) if count > 1 else 0.0
    assert less == pytest.approx(once_less - now, rel=1e-5)


TEXTS = [np.array([4, 5, 6, 7]), np.array([5, 4]), np.array([6, 5, 6])]
CONTENT = np.array([False] * 6 + [True, True])


def met(neighbours: Neighbours, table: int, context: int) -> list[int]:
    """Return the words that a table has for a context."""
    row = neighbours.tables[table].row(context)
    return [] if row is None else row[0].tolist()


def test_no_count_reaches_into_another_text() -> None:
    neighbours = Neighbours(TEXTS, CONTENT)
    size = len(CONTENT)
    for table, skips in enumerate([*((skip,) for skip in SKIPS), *PAIRS]):
        for context, words in enumerate(np.ndindex(*[size] * len(skips))):
            expected = {
                int(text[at])
                for text in TEXTS
                for at in range(len(text))
                if all(0 <= at + skip < len(text) for skip in skips)
                and tuple(text[at + skip] for skip in skips) == words
            }
            assert met(neighbours, table, context) == sorted(expected), (skips, words)
    assert met(neighbours, -1, 6) == [6, 7]
    assert met(neighbours, -1, 7) == [6]
    assert met(neighbours, -1, 5) == []  # token 5 is not a content word


def test_only_nearby_words_are_counted_together() -> None:
    for apart, together in ((FAR, True), (FAR + 1, False)):
        text = np.array([6, *[4] * (apart - 1), 7])
        assert (met(Neighbours([text], CONTENT), -1, 6) == [7]) == together


def test_logits_are_the_weighted_sum_without_the_text_itself() -> None:
    """The scores from the context do not count the target's own occurrence in this text.

    The target, word 6, occurs nowhere else. So all its scores from the context are 0, and only the
    score from its frequency remains.
    """
    text = np.array([4, 5, 6, 7])
    neighbours = Neighbours([text], CONTENT)
    neighbours.weights = np.linspace(0.5, 1.5, 1 + len(neighbours.tables), dtype=np.float32)
    batch = Words(np.concatenate([[5], text]), np.array([0, 1, 5]), np.array([3]), np.array([6]))
    found = neighbours.logits(batch)
    features = neighbours.features(text.tolist(), 2)
    # Besides the score from its frequency, word 6 has six scores: three from the words at the
    # distances -2, -1 and 1, two from the pairs of words at (-2, -1) and (-1, 1), and one from word
    # 7, which is a nearby content word.
    assert (features[1:, 6] > 0).sum() == 6
    expected = neighbours.weights @ features
    expected[6] = neighbours.weights[0] * features[0, 6]
    np.testing.assert_allclose(found, [expected], rtol=1e-5)


def test_the_probability_of_a_word_that_is_in_a_text() -> None:
    neighbours = Neighbours([*TEXTS, np.array([4, 5, 6])], CONTENT)
    text = np.array([4, 5, 6, 7])
    [found] = neighbours.probabilities([text], [2])
    gap = Words(text, np.array([0, 4]), np.array([2]), np.array([6]))
    shares = np.exp(neighbours.logits(gap)[0].astype(np.float64))
    shares[7] = 0  # a visible content word
    assert found == pytest.approx(shares[6] / shares.sum(), rel=1e-5)
    assert 0 < found < 1


def test_fitted_recovers_the_weights_of_drawn_targets() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4000, 2, 5))
    logits = features[:, 0] * 1.0 - features[:, 1] * 0.5
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    targets = (rng.random((4000, 1)) > shares.cumsum(-1)).sum(-1)
    np.testing.assert_allclose(fitted(features, targets, steps=60), [1.0, -0.5], atol=0.1)
