"""Tests of the task `softmax`: right and wrong functions in the style of a learner."""

import math

import numpy as np
import pytest

from qkv_marking import check
from qkv_marking.tasks._softmax import AXIS, BATCHES, CORE, LARGE, RIGHT, Scores, compute

# -- right answers --------------------------------------------------------------------------------


def along_an_axis(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def in_loops(x):
    rows = []
    for row in x:
        top = max(row)
        e = [math.exp(s - top) for s in row]
        rows.append([one / sum(e) for one in e])
    return rows


def with_einsum(scores):
    e = np.exp(scores - np.max(scores, axis=-1)[..., None])
    return np.einsum("...s,...->...s", e, 1 / np.einsum("...s->...", e))


def through_logarithms(x):
    top = x.max(axis=-1, keepdims=True)
    return np.exp(x - top - np.log(np.exp(x - top).sum(axis=-1, keepdims=True)))


def with_a_row_of_nothing(x, dim=-1):
    top = np.max(x, axis=dim, keepdims=True)
    e = np.exp(x - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=dim, keepdims=True)
    return e / np.where(total == 0, 1, total)


def with_axis_required(x, axis):
    return along_an_axis(x, axis)


def in_float32(x):
    return along_an_axis(np.asarray(x, np.float32))


@pytest.mark.parametrize(
    "function",
    [
        along_an_axis,
        in_loops,
        with_einsum,
        through_logarithms,
        with_a_row_of_nothing,
        with_axis_required,
        in_float32,
        lambda x, /: along_an_axis(x),
    ],
)
def test_right_softmax_has_all_points(function):
    result = check(function, task="softmax")
    assert result.passed, str(result)
    assert result.mistakes == result.fragile == result.conventions == result.hint == ()
    assert result.points == 10
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


def unshifted(over):
    return lambda x: np.exp(x) / over(np.exp(x))


def unshifted_sum(x):
    return np.exp(x).sum(axis=-1, keepdims=True)


def of_shifted(over):
    def softmax(x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / over(e)

    return softmax


def shifted_by(of_row):
    def softmax(x):
        e = np.exp(x - of_row(x))
        return e / e.sum(axis=-1, keepdims=True)

    return softmax


def then(last):
    return lambda x: last(along_an_axis(x))


def into_integers(x):
    out = np.zeros_like(x)
    out[...] = along_an_axis(x)
    return out


def in_place(x):
    x -= x.max(axis=-1, keepdims=True)
    return along_an_axis(x)


def of_one_row(x):
    e = [math.exp(s - max(x)) for s in x]
    return [one / sum(e) for one in e]


def one_hot(x):
    return np.eye(x.shape[-1])[x.argmax(axis=-1)]


def last_axis_of_a_matrix(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def shifted_from_the_middle(x):
    return shifted_by(lambda x: x.mean(axis=-1, keepdims=True))(x)


def random(x):
    return along_an_axis(x + np.random.default_rng().normal(size=x.shape))


def without_infinities(x):
    if np.isinf(x).any():
        raise ValueError("scores must be finite")
    return along_an_axis(x)


def with_python_exp(x):
    return [[math.exp(s) / sum(math.exp(t) for t in row) for s in row] for row in x]


def calls_itself(x):
    return calls_itself(x)


WRONG = [
    ("no-exp", lambda x: x / x.sum(axis=-1, keepdims=True)),
    ("softmax-whole-matrix", of_shifted(np.sum)),
    ("softmax-whole-matrix", lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum()),
    ("softmax-columns", lambda x: along_an_axis(x, axis=0)),
    ("softmax-keepdims", of_shifted(lambda e: e.sum(axis=-1))),
    ("softmax-keepdims", unshifted(lambda e: e.sum(axis=-1))),
    ("softmax-keepdims", shifted_by(lambda x: x.max(axis=-1))),
    ("softmax-not-normalised", np.exp),
    ("softmax-not-normalised", of_shifted(lambda e: 1)),
    ("softmax-not-normalised", of_shifted(lambda e: e.max(axis=-1, keepdims=True))),
    (
        "softmax-other-function",
        lambda x: np.maximum(x, 0) / np.maximum(x, 0).sum(axis=-1, keepdims=True),
    ),
    ("softmax-divided-by-mean", of_shifted(lambda e: e.mean(axis=-1, keepdims=True))),
    ("softmax-divided-by-norm", of_shifted(lambda e: np.linalg.norm(e, axis=-1, keepdims=True))),
    ("softmax-sum-unshifted", lambda x: np.exp(x - x.max(-1, keepdims=True)) / unshifted_sum(x)),
    ("softmax-twice", then(along_an_axis)),
    ("softmax-logarithm", then(np.log)),
    ("softmax-sign", lambda x: along_an_axis(-x)),
    ("softmax-base-two", lambda x: 2.0**x / (2.0**x).sum(axis=-1, keepdims=True)),
    ("softmax-sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    ("softmax-hard", one_hot),
    ("softmax-rounded", then(lambda w: w.round(3))),
    ("softmax-rounded", then(lambda w: w.round(1))),
    ("returns-input", lambda x: x),
    ("softmax-second-axis", last_axis_of_a_matrix),
    ("axis-ignored", lambda x, axis=-1: along_an_axis(x)),
    ("one-row-only", of_one_row),
    ("integer-inputs", into_integers),
    ("inputs-modified", in_place),
    ("random", random),
    ("returns-nothing", lambda x: print(x)),
    ("wrong-type", lambda x: "weights"),
    ("wrong-shape", lambda x: along_an_axis(x).sum(axis=-1)),
    ("raises", lambda x: x.softmax()),
    ("asks-for-input", lambda x: input()),
    ("endless-recursion", calls_itself),
]


FRAGILE = [
    ("softmax-no-max", unshifted(lambda e: e.sum(axis=-1, keepdims=True))),
    ("softmax-no-max", with_python_exp),
    ("softmax-global-max", shifted_by(np.max)),
    ("softmax-mean-subtracted", shifted_from_the_middle),
    ("softmax-min-subtracted", shifted_by(lambda x: x.min(axis=-1, keepdims=True))),
    ("large-scores", lambda x: along_an_axis(np.clip(x, -100, 100))),
    ("softmax-minus-inf", without_infinities),
    ("softmax-minus-inf", lambda x: along_an_axis(x) + 0 * x),
]


@pytest.mark.parametrize(("key", "function"), WRONG)
def test_mistake_is_named(key, function):
    result = check(function, task="softmax")
    assert not result
    assert result.mistakes == (key,), str(result)
    assert len(result.hint) == 3
    assert {"x", "yours", "right"} <= result.example.keys()


@pytest.mark.parametrize(("key", "function"), FRAGILE)
def test_what_is_fragile_passes_with_a_point_less(key, function):
    result = check(function, task="softmax")
    assert result.passed, str(result)
    assert result.fragile == (key,), str(result)
    assert result.points == 9


def test_the_first_axis_of_a_batch_is_named_as_a_mistake():
    def softmax(x):
        if x.ndim == 2:
            return along_an_axis(x)
        return along_an_axis(x, axis=0)

    assert check(softmax, task="softmax").mistakes == ("softmax-first-axis",)


def test_two_mistakes_at_once_are_both_named():
    result = check(lambda x: np.exp2(-x) / np.exp2(-x).sum(axis=-1, keepdims=True), task="softmax")
    assert set(result.mistakes) == {"softmax-sign", "softmax-base-two"}
    assert result.points == 2  # two mistakes that known lines explain
    assert result.fragile == ("softmax-no-max",)


def test_every_known_mistake_is_made_above():
    made = {key for key, _ in WRONG + FRAGILE} | {"softmax-first-axis"}
    assert {one.key for one in (*CORE, *BATCHES, *LARGE, *AXIS) if not one.alone} <= made


def test_each_known_mistake_has_a_hint_of_three_grades_that_differ():
    for one in (*CORE, *BATCHES, *LARGE, *AXIS):
        assert len({*one.hint}) == 3, one.key
        assert one.nudge
        assert one.where


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


@pytest.mark.parametrize("function", [lambda: 0, lambda x, heads: x])
def test_a_function_that_takes_something_else_is_an_error(function):
    with pytest.raises(TypeError, match="give all other parameters a default"):
        check(function, task="softmax")


def test_a_signature_of_another_task_is_an_error():
    with pytest.raises(ValueError, match="for softmax it must be left out"):
        check(along_an_axis, signature="x,w_q,w_k,w_v", task="softmax")
