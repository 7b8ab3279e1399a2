"""Tests of the task `softmax`: right and wrong functions in the style of a learner."""

import math

import numpy as np
import pytest

from qkv_marking import check
from qkv_marking.tasks._softmax import RIGHT, Scores, compute

from ..formulas import hide, softmax as along_an_axis
from ..written import is_flawless

# -- right answers --------------------------------------------------------------------------------


def in_loops(x):
    rows = []
    for row in x:
        top = max(row)
        e = [math.exp(s - top) for s in row]
        rows.append([one / sum(e) for one in e])
    return rows


def through_logarithms(x):
    top = x.max(axis=-1, keepdims=True)
    return np.exp(x - top - np.log(np.exp(x - top).sum(axis=-1, keepdims=True)))


def with_a_row_of_nothing(x, dim=-1):
    return np.moveaxis(hide(np.moveaxis(x, dim, -1), True), -1, dim)


def with_axis_required(x, axis):
    return along_an_axis(x, axis)


def in_float32(x):
    return along_an_axis(np.asarray(x, np.float32))


RIGHT_ONES = [
    *(along_an_axis, in_loops, through_logarithms, with_a_row_of_nothing),
    *(with_axis_required, in_float32, lambda x, /: along_an_axis(x)),
]


@pytest.mark.parametrize("function", RIGHT_ONES)
def test_right_softmax_has_all_points(function):
    result = check(function, task="softmax")
    assert is_flawless(result), str(result)
    assert result.task == "softmax"


@pytest.mark.parametrize(
    ("contained", "key"),
    [
        (lambda out: (out,), "wrong-type"),
        (lambda out: (out, None), "wrong-type"),
        (lambda out: {"weights": out}, "wrong-type"),
        (lambda out: [out], "wrong-shape"),
    ],
)
def test_weights_in_a_container_are_wrong(contained, key):
    result = check(lambda x: contained(along_an_axis(x)), task="softmax")
    assert result.mistakes == (key,), str(result)
    assert result.points < 10


def test_overwritten_weights_are_a_mistake_and_not_fragile():
    kept = np.empty(100)

    def softmax(x):
        out = kept[: x.size].reshape(x.shape)
        out[...] = along_an_axis(x)
        return out

    result = check(softmax, task="softmax")
    assert (result.mistakes, result.fragile) == (("output-overwritten",), ()), str(result)
    assert result.points <= 8
    assert np.allclose(result.example["yours"], result.example["right"])
    assert not np.allclose(result.example["yours after other calls"], result.example["right"])


def test_a_table_that_is_kept_and_not_written_to_is_right():
    kept = {}

    def softmax(x):
        return kept.setdefault(x.tobytes() + bytes(x.shape), along_an_axis(x))

    assert check(softmax, task="softmax").points == 10


def test_message_names_untried_and_refused_inputs():
    said = " ".join(check(in_loops, task="softmax").message.split())
    assert "The function refuses one row: " in said
    assert "The function refuses a batch: " in said
    assert "no such parameter: axis." in said
    said = check(along_an_axis, task="softmax").message
    assert "another axis" in said
    assert "Not tried" not in said
    assert "A row of only -inf gives nan" in said
    assert "of only -inf" not in check(with_a_row_of_nothing, task="softmax").message


# -- wrong answers --------------------------------------------------------------------------------


def test_the_first_axis_of_a_batch_is_named_as_a_mistake():
    def softmax(x):
        return along_an_axis(x, axis=-1 if x.ndim == 2 else 0)

    assert check(softmax, task="softmax").mistakes == ("softmax-first-axis",)


def test_two_mistakes_at_once_are_both_named():
    result = check(lambda x: np.exp2(-x) / np.exp2(-x).sum(axis=-1, keepdims=True), task="softmax")
    assert set(result.mistakes) == {"softmax-sign", "softmax-base-two"}
    assert result.points == 2  # two mistakes that known lines explain
    assert result.fragile == ("softmax-no-max",)


def test_steps_by_hand():
    x = [[0.0, math.log(3)], [math.log(2), math.log(2)]]
    np.testing.assert_allclose(compute(Scores(np.array(x)), RIGHT), [[0.25, 0.75], [0.5, 0.5]])
    np.testing.assert_allclose(
        compute(Scores(np.array(x), axis=0), RIGHT), [[1 / 3, 0.6], [2 / 3, 0.4]], rtol=1e-12
    )


def test_the_example_is_the_smallest_input():
    example = check(lambda x: np.exp(x), task="softmax").example
    np.testing.assert_array_equal(example["x"], [[1, 0], [3, 1]])
    w = 1 / (1 + math.exp(-2))
    np.testing.assert_allclose(example["right"][1], [w, 1 - w])


def test_a_signature_of_another_task_is_an_error():
    with pytest.raises(ValueError, match="for softmax it must be left out"):
        check(along_an_axis, signature="x,w_q,w_k,w_v", task="softmax")
