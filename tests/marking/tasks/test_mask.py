"""Tests of the task `mask`: right and wrong functions in the style of a learner."""

import numpy as np
import pytest

from qkv_marking import check


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def scaled(q, k):
    return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])


def hide(scores, visible):
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


# -- right answers --------------------------------------------------------------------------------


def of_bools(query, key, value, mask):
    return hide(scaled(query, key), mask) @ value


def of_numbers_to_add(q, k, v, mask=None):
    scores = scaled(q, k)
    return hide(scores if mask is None else scores + mask, True) @ v


RIGHT = [of_bools, of_numbers_to_add]


@pytest.mark.parametrize("function", RIGHT)
def test_right_masked_attention_has_all_points(function):
    result = check(function, task="mask")
    assert result.passed, str(result)
    assert result.mistakes == result.fragile == result.conventions == result.hint == ()
    assert result.points == 10
    assert result.task == "mask"


def test_message_says_what_was_tried():
    said = " ".join(check(of_bools, task="mask").message.split())
    for tried in ("a mask", "a row masked out", "a mask on scores of 1000", "padding of two texts"):
        assert tried in said
    said = check(of_numbers_to_add, task="mask").message
    assert "to add to the scores, not a mask of True and False" in said


# -- wrong answers --------------------------------------------------------------------------------


def masked(before=lambda s, m: s, after=lambda w, m: w, read=lambda m: m):
    def attention(q, k, v, mask):
        return after(softmax(before(scaled(q, k), read(mask))), read(mask)) @ v

    return attention


def hidden_before_softmax_and_after(q, k, v, mask):
    """Swap the arguments of the first np.where, so that visible keys are masked too."""
    weights = softmax(np.where(mask, -1e9, scaled(q, k)))
    return np.where(mask, weights, 0) @ v


def test_masking_every_key_is_shown_with_the_mask_and_has_points():
    result = check(hidden_before_softmax_and_after, task="mask")
    assert result.points <= 8
    assert np.array_equal(result.example["mask"], np.eye(2))
    assert not result.example["yours"].any()


def test_adding_a_large_number_is_shown_with_a_boolean_mask():
    result = check(masked(lambda s, m: s + (1 - m) * 1e9), task="mask")
    assert result.example["mask"].dtype == bool


def test_attention_without_a_mask_parameter_is_a_type_error():
    with pytest.raises(TypeError, match="no parameter for a mask"):
        check(lambda q, k, v: v, task="mask")


# -- the causal mask itself -----------------------------------------------------------------------


def lower(length):
    return np.tril(np.ones((length, length), dtype=bool))


def to_add(length):
    return np.triu(np.full((length, length), -np.inf), k=1)


def test_an_added_causal_mask_has_all_points():
    result = check(to_add, task="mask")
    assert (result.points, result.fragile, result.conventions) == (10, (), ()), str(result)


@pytest.mark.parametrize(
    ("function", "right"),
    [
        (lambda n: ~lower(n), lower(2)),
        (lambda n: lower(n).astype(int), lower(2)),
        (lambda n: np.triu(np.full((n, n), -1e9), k=1), to_add(2)),
    ],
)
def test_a_mask_of_another_kind_is_shown_as_it_came_back(function, right):
    example = check(function, task="mask").example
    assert np.array_equal(example["yours"], function(2))
    assert np.array_equal(example["right"], right)
    assert example["yours"].dtype == function(2).dtype
