"""Tests that compare `loops.attention` with results computed manually."""

import math

import numpy as np
import pytest

from . import loops

QUERY = np.array([[1.0, 0.0]])
KEYS = np.array([[2.0, 5.0], [0.0, 5.0], [-4.0, 5.0]])
VALUES = np.array([[1.0], [10.0], [100.0]])


def softmax(*scores: float) -> list[float]:
    exponentials = [math.exp(score) for score in scores]
    return [number / sum(exponentials) for number in exponentials]


def test_two_keys_by_hand() -> None:
    result = loops.attention(QUERY, KEYS[:2], VALUES[:2], scale=0.5)
    e = math.e
    np.testing.assert_allclose(result.weights, [[e / (e + 1), 1 / (e + 1)]])
    np.testing.assert_allclose(result.out, [[(e + 10) / (e + 1)]])
    np.testing.assert_allclose(result.lse, [math.log(e + 1)])


def test_the_default_scale_is_one_over_the_root_of_d() -> None:
    result = loops.attention(QUERY, KEYS, VALUES)
    root = math.sqrt(2)
    np.testing.assert_allclose(result.weights, [softmax(2 / root, 0, -4 / root)])


@pytest.mark.parametrize(
    ("options", "scores"),
    [
        ({}, (2, 0, -4)),
        ({"softcap": 3.0}, (3 * math.tanh(2 / 3), 0, 3 * math.tanh(-4 / 3))),
        ({"bias": np.array([[1.0, 2.0, 3.0]])}, (3, 2, -1)),
        ({"attn_mask": np.array([[1.0, 2.0, 3.5]])}, (3, 2, -0.5)),
        ({"alibi_slopes": [0.5], "q_offset": 1}, (1.5, 0, -4.5)),
        ({"alibi_slopes": [0.5], "q_offset": "end"}, (1, -0.5, -4)),
        (
            {"softcap": 3.0, "bias": np.array([[9.0, 0, 0]])},
            (9 + 3 * math.tanh(2 / 3), 0, -2.610185),
        ),
    ],
)
def test_scores_by_hand(options: dict, scores: tuple[float, ...]) -> None:
    result = loops.attention(QUERY, KEYS, VALUES, scale=1.0, **options)
    np.testing.assert_allclose(result.stages["scores"], [scores], rtol=1e-6)
    np.testing.assert_allclose(result.weights, [softmax(*scores)], rtol=1e-6)
    np.testing.assert_allclose(result.out, [[np.dot(softmax(*scores), [1, 10, 100])]], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        ({"attn_mask": np.array([True, False, True])}, "101"),
        ({"attn_mask": np.array([-np.inf, 0.5, 0.0])}, "011"),
        ({"bias": np.array([0.0, 0.5, -np.inf])}, "110"),
        ({"is_causal": True, "q_offset": "start"}, "100"),
        ({"is_causal": True, "q_offset": "end"}, "111"),
        ({"is_causal": True, "q_offset": 1}, "110"),
        ({"is_causal": True, "q_offset": -1}, "000"),
        ({"window": (1, 0), "q_offset": 2}, "011"),
        ({"window": (0, 0), "q_offset": 1}, "010"),
        ({"window": (None, 1), "q_offset": 0}, "110"),
        ({"window": (0, None), "q_offset": 1}, "011"),
        ({"window": (1, None), "q_offset": -5}, "111"),
        ({"window": (None, 1), "q_offset": -5}, "000"),
        ({"key_lengths": 2}, "110"),
        ({"query_lengths": 0}, "000"),
        ({"attn_mask": np.array([True, False, True]), "key_lengths": 2}, "100"),
    ],
)
def test_visible_by_hand(options: dict, visible: str) -> None:
    result = loops.attention(QUERY, KEYS, VALUES, **options)
    assert "".join(str(int(cell)) for cell in result.visible[0]) == visible
    assert ((result.weights[0] > 0) == result.visible[0]).all()


def test_sinks_take_weight_and_give_nothing() -> None:
    result = loops.attention(QUERY, KEYS, VALUES, scale=1.0, sinks=[[1.0, -2.0]])
    expected = softmax(2, 0, -4, 1, -2)
    np.testing.assert_allclose(result.weights, [expected[:3]])
    np.testing.assert_allclose(result.out, [[np.dot(expected[:3], [1, 10, 100])]])


def test_masked_numbers_are_not_used() -> None:
    keys, values = KEYS.copy(), VALUES.copy()
    keys[1] = values[1] = np.nan
    hidden = loops.attention(QUERY, keys, values, key_lengths=1)
    assert hidden.out == [[1.0]]
    seen = loops.attention(QUERY, keys, values, key_lengths=2)
    assert np.isnan(seen.out).all()


def test_a_query_without_visible_keys_gives_zeros() -> None:
    result = loops.attention(QUERY, KEYS, VALUES, key_lengths=0)
    assert (result.out == 0).all()
    assert (result.weights == 0).all()
    assert result.lse == [-np.inf]
    result = loops.attention(QUERY, KEYS, VALUES, key_lengths=0, sinks=[[1.0, 2.0]])
    np.testing.assert_allclose(result.lse, [math.log(math.e + math.e**2)])


def test_grouped_heads_read_their_own_key_head() -> None:
    values = np.array([[[1.0]], [[2.0]]])  # (Hkv, S, dv) with Hkv = 2
    result = loops.attention(np.ones((6, 1, 1)), np.ones((2, 1, 1)), values)
    assert result.out.reshape(-1).tolist() == [1, 1, 1, 2, 2, 2]
