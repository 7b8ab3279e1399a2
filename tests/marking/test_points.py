"""Tests of points for wrong functions: what works counts, and not the mistake's name."""

import numpy as np
import pytest

from qkv_marking import check

from .formulas import plain as right, softmax


def unscaled(q, k, v):
    return softmax(q @ np.swapaxes(k, -1, -2)) @ v


def unscaled_for_large_heads(q, k, v):
    return right(q, k, v) if q.shape[-1] < 4 else unscaled(q, k, v)


def shifted(q, k, v):
    return right(q, k, v) + 0.001


def mean_of_values(q, k, v):
    return np.broadcast_to(v.mean(axis=-2, keepdims=True), (*q.shape[:-1], v.shape[-1]))


def noise(q, k, v):
    return np.sin(1e3 * (q.sum() + k.sum() + v.sum())) * np.ones((*q.shape[:-1], v.shape[-1]))


def raising(q, k, v):
    raise RuntimeError("not finished")


def points(function, **options):
    return check(function, **options).points


def test_an_unnamed_mistake_is_rated_by_what_works():
    assert check(shifted).mistakes == ("unknown",)
    # every result is wrong, but depends on the right inputs: 5 points for this alone
    assert points(shifted) == 5


def test_more_right_results_earn_more_points():
    assert points(unscaled) < points(unscaled_for_large_heads) <= 8


def test_a_function_that_ignores_inputs_earns_little():
    # of query, key and value, only the last one has an effect: 5 points / 3
    assert points(mean_of_values) <= 2 < points(shifted)


@pytest.mark.parametrize(
    "function", [raising, lambda q, k, v: None, lambda q, k, v: 0 * q @ k.T @ v]
)
def test_a_function_that_computes_nothing_earns_nothing(function):
    assert points(function) == 0


def test_results_that_follow_no_input_rightly_earn_less_than_a_named_mistake():
    assert points(noise) <= points(unscaled)


def test_one_known_mistake_leaves_four_points_and_two_leave_two():
    def columns(x):
        e = np.exp(x - x.max(axis=0))
        return e / e.sum(axis=0)

    assert points(columns, task="softmax") >= 4
    assert points(lambda x: columns(-x), task="softmax") >= 2
