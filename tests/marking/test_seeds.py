"""Tests that other seeds draw other inputs: right functions pass, memorized outputs fail."""

import numpy as np
import pytest

from qkv_marking import check, check_file
from qkv_marking._engine import by_seed, generator, per_seed, use_seed

from .files.test_check_file import SOFTMAX
from .formulas import plain, softmax
from .written import FRAGILE, STYLES, marked


def by_heart(function):
    """Return a function that has memorized the outputs for the inputs of seed 0."""
    known = {}

    def learn(*given):
        out = function(*given)
        known[tuple(a.tobytes() for a in given)] = out
        return out

    def repeat(*given):
        return known.get(tuple(a.tobytes() for a in given), np.zeros_like(given[-1]))

    return learn, repeat


@pytest.mark.parametrize(("function", "task"), [(softmax, "softmax"), (plain, "attention")])
def test_an_answer_known_by_heart_earns_nothing(function, task):
    learn, repeat = by_heart(function)
    assert check(learn, task=task).points == 10
    assert check(repeat, task=task).points == 10
    for seed in (1, 2, 12345):
        result = check(repeat, task=task, seed=seed)
        assert (result.passed, result.points) == (False, 0), str(result)


@pytest.mark.parametrize("seeds", [(1, 2), pytest.param(range(3, 13), marks=pytest.mark.attack)])
@pytest.mark.parametrize("written", STYLES)
def test_right_functions_pass_with_every_seed(written, seeds):
    for seed in seeds:
        result = marked(written, seed=seed)
        assert (result.points, result.conventions) == (10, ()), f"seed {seed}: {result}"


def test_a_fragile_function_loses_a_point_with_every_seed():
    assert [marked(FRAGILE, seed=seed).points for seed in (1, 2)] == [9, 9]


def test_inputs_depend_only_on_the_seed():
    seen = {}
    for seed in (0, 1, 1, 2):
        given = []
        check(lambda q, k, v, given=given: given.append(q.copy()) or q, seed=seed)
        inputs = np.concatenate([q.ravel() for q in given])
        if seed in seen:
            np.testing.assert_array_equal(inputs, seen[seed])
        seen[seed] = inputs
    assert not any(
        np.array_equal(seen[one], seen[other]) for one, other in ((0, 1), (0, 2), (1, 2))
    )


def test_a_seed_ends_with_the_call():
    @per_seed
    def drawn():
        return float(generator(0).random())

    first = drawn()
    with use_seed(3):
        assert by_seed()
        assert drawn() != first
    assert not by_seed()
    assert drawn() == first


def test_a_file_is_marked_by_its_seed(file, quick):
    path = file(SOFTMAX)
    assert [result.points for result in check_file(path, seed=7)] == [10]
    with pytest.raises(ValueError, match="seed"):
        check_file(path, seed=-1)
    with pytest.raises(TypeError, match="seed"):
        check(softmax, task="softmax", seed=0.5)
