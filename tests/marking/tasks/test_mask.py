"""Tests of the task `mask`: right and wrong functions in the style of a learner."""

import numpy as np
import pytest

from qkv_marking import check

from ..formulas import hide, scaled, softmax
from ..written import is_flawless

# -- right answers --------------------------------------------------------------------------------


def of_bools(query, key, value, mask):
    return hide(scaled(query, key), mask) @ value


def of_numbers_to_add(q, k, v, mask=None):
    scores = scaled(q, k)
    return hide(scores if mask is None else scores + mask, True) @ v


def lower(length):
    return np.tril(np.ones((length, length), dtype=bool))


def to_add(length):
    return np.triu(np.full((length, length), -np.inf), k=1)


@pytest.mark.parametrize("function", [of_bools, of_numbers_to_add, to_add])
def test_right_masks_and_masked_attention_have_all_points(function):
    result = check(function, task="mask")
    assert is_flawless(result), str(result)
    assert result.task == "mask"


def test_message_says_what_was_tried():
    said = " ".join(check(of_bools, task="mask").message.split())
    for tried in ("a mask", "a row masked out", "a mask on scores of 1000", "padding of two texts"):
        assert tried in said
    said = check(of_numbers_to_add, task="mask").message
    assert "to add to the scores, not a mask of True and False" in said


# -- wrong answers --------------------------------------------------------------------------------


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
    def adds(q, k, v, mask):
        return softmax(scaled(q, k) + (1 - mask) * 1e9) @ v

    result = check(adds, task="mask")
    assert result.example["mask"].dtype == bool


# -- the causal mask itself -----------------------------------------------------------------------


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
