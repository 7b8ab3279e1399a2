"""Tests that unfinished functions get no points and one clear sentence in every task."""

import numpy as np
import pytest

from qkv_marking import TASKS, check

from .formulas import hide, scaled, softmax as right

pytestmark = pytest.mark.attack

X = "x,w_q,w_k,w_v"
# for each task: its parameters, and an array of the right shape
WRITTEN = [
    ("softmax", "x", "np.zeros(x.shape)"),
    ("attention", "q, k, v", "np.zeros((*q.shape[:-1], v.shape[-1]))"),
    ("attention", "q, k, v, mask=None, is_causal=False", "np.zeros((len(q), v.shape[1]))"),
    ("attention", "x, w_q, w_k, w_v, num_heads=1", "np.zeros((len(x), w_v.shape[1]))"),
    ("mask", "q, k, v, mask", "np.zeros((*q.shape[:-1], v.shape[-1]))"),
    ("mask", "length", "np.zeros((length, length))"),
    ("heads", "x, w_q, w_k, w_v, w_o, num_heads", "np.zeros((len(x), w_o.shape[1]))"),
    ("heads", "x, w_q, w_k, w_v, num_heads", "np.zeros((len(x), w_v.shape[1]))"),
    ("positions", "length, dim", "np.zeros((length, dim))"),
    ("self-attention-class", "x", "np.zeros(x.shape)"),
    ("block", "x, parameters, num_heads=1", "np.zeros(x.shape)"),
    ("kv-cache", "x, cache, w_q, w_k, w_v", "np.zeros((len(x), w_v.shape[1])), cache"),
    ("decoder", "ids, weights, config", "np.zeros((len(ids), config['vocab_size']))"),
    ("recurrence-table", "length, keep", "np.zeros((length, length))"),
    ("score-needed", "weight, others", "np.zeros(())"),
    ("ids", "sentence, vocabulary", "np.zeros(len(sentence.split()), int)"),
    ("batched-attention", "query, key, value", "np.zeros((*query.shape[:-1], value.shape[-1]))"),
    ("tiles", "query, key, value, size=2", "np.zeros((len(query), value.shape[1]))"),
    ("batched-mask", "query, key, value, mask", "np.zeros((*query.shape[:-1], value.shape[-1]))"),
    ("rotation", "dim, steps", "np.zeros((dim, dim))"),
    ("neighbour-score", "weights, step", "np.zeros(())"),
    ("closeness", "heads", "np.zeros(())"),
    ("softmax-back", "weights, d_weights", "np.zeros(weights.shape)"),
    (
        "gradients",
        "x, w_q, w_k, w_v, d_context",
        "np.zeros(w_q.shape), np.zeros(w_k.shape), np.zeros(w_v.shape)",
    ),
    ("self-attention", "x, w_q, w_k, w_v", "np.zeros((len(x), w_v.shape[1]))"),
    (
        "cross-attention",
        "x, context, w_q, w_k, w_v, mask",
        "np.zeros((*x.shape[:-1], w_v.shape[1]))",
    ),
    ("decoder-block", "x, context, parameters, mask", "np.zeros(x.shape)"),
    ("writing-step", "x, context, cache, parameters", "np.zeros(x.shape), cache"),
    ("induction-score", "weights, ids, names", "np.zeros(())"),
    ("next-token-loss", "logits, ids, padding", "np.zeros(())"),
    ("learning-rate", "step, steps, warmup, highest", "np.zeros(())"),
    ("top-k", "logits, k, temperature", "np.zeros(len(logits))"),
    ("top-p", "probabilities, p", "np.zeros(len(probabilities))"),
]
OF_TEXTS = {"story"}  # this function returns a text; test_stories.py tests wrong texts
NOTHING = [
    ("...", "returns-nothing", "nothing is filled in yet"),
    ("return None", "returns-nothing", "nothing is filled in yet"),
    ("1 + 1", "returns-nothing", "nothing is filled in yet"),
    ("len('to do')", "returns-nothing", "it returns None"),
    ("return 'to do'", "wrong-type", "it returns a str"),
    ("return NotImplemented", "wrong-type", "it returns a NotImplementedType"),
    ("raise NotImplementedError('to do')", "raises", "NotImplementedError: to do"),
    ("return no_such_name", "name-unknown", "NameError: name 'no_such_name' is not defined"),
    ("return []", "wrong-shape", "the shape (0,)"),
]
# tasks whose function returns several objects have their own messages
SEVERAL = {
    "writing-step": ("cache-not-returned", "not (out, cache)"),
    "kv-cache": ("cache-not-returned", "not (out, cache)"),
    "gradients": ("wrong-parts", "but should return d_w_q, d_w_k, d_w_v"),
}
OF_WORDS = ("ids", "closeness", "learning-rate")  # tasks whose first input is not an array


def marked(task, parameters, body):
    """Mark a function with this body; for the class task, a class with this __call__."""
    source = f"def mine({parameters}):\n    {body}"
    if task == "self-attention-class":
        source = (
            "class mine:\n    def __init__(self, embed_dim, num_heads): ...\n"
            f"    def __call__(self, {parameters}):\n        {body}"
        )
    names = {"np": np}
    exec(source, names)
    way = X if (task, parameters[0]) == ("attention", "x") else "qkv"
    return check(names["mine"], way, task=task)


def test_every_task_is_here():
    functions = {task.name for task in TASKS.values() if not task.values}
    assert {task for task, *_ in WRITTEN} == functions - OF_TEXTS


@pytest.mark.parametrize(("body", "key", "said"), NOTHING)
@pytest.mark.parametrize(("task", "parameters", "zeros"), WRITTEN)
def test_an_unfinished_function_gets_no_points(task, parameters, zeros, body, key, said):
    result = marked(task, parameters, body)
    if task in SEVERAL and key in ("wrong-type", "wrong-shape"):
        key, said = SEVERAL[task]
    assert (result.mistakes, result.fragile, result.conventions) == ((key,), (), ()), str(result)
    assert (result.points, result.passed) == (0, False)
    assert said in " ".join(result.message.split())
    assert "Also" not in result.message


@pytest.mark.parametrize("added", [0, 1])
@pytest.mark.parametrize(("task", "parameters", "zeros"), WRITTEN)
def test_one_number_everywhere_gets_nothing(task, parameters, zeros, added):
    zeros = zeros.replace("np.zeros(", f"{added} + np.zeros(")
    result = marked(task, parameters, f"return {zeros}")
    key = "causal-everything" if parameters == "length" else "constant"
    assert (result.mistakes, result.fragile, result.conventions) == ((key,), (), ()), str(result)
    assert result.points == 0
    if key == "constant":
        assert f"every number of the output is {added}" in result.message


@pytest.mark.parametrize(
    ("task", "parameters"),
    [
        (task, given)
        for task, given, _ in WRITTEN
        if not given.startswith("length") and task not in (*OF_WORDS, "gradients")
    ],
)
def test_an_input_returned_as_it_is_gets_nothing(task, parameters):
    first = parameters.partition(",")[0]
    both = ", cache" if task in ("kv-cache", "writing-step") else ""
    result = marked(task, parameters, f"return {first}{both}")
    assert result.mistakes == ("returns-input",), str(result)
    assert result.points == 0
    assert f"it returns its input {'query' if first == 'q' else first} unchanged" in result.message


def test_a_mask_of_only_false_gets_no_points():
    result = check(lambda length: np.zeros((length, length), dtype=bool), task="mask")
    assert (result.mistakes, result.points) == (("causal-nothing",), 0)


def test_random_numbers_get_nothing():
    def mine(length, dim):
        return np.random.default_rng().normal(size=(length, dim))

    result = check(mine, task="positions")
    assert (result.mistakes, result.points) == (("random",), 0)


def test_an_output_without_a_cache_counts_if_it_is_right():
    def whole(x, cache, w_q, w_k, w_v):
        return hide(scaled(x @ w_q, x @ w_k), np.tri(len(x), dtype=bool)) @ x @ w_v

    result = check(whole, task="kv-cache")
    assert (result.mistakes, result.points < 9) == (("cache-not-returned",), True)
    result = check(lambda *given: whole(*given) + 1, task="kv-cache")
    assert (result.mistakes, result.points) == (("cache-not-returned",), 0)


def test_a_late_error_keeps_the_points_of_earlier_tests():
    def softmax(x, axis=-1):
        if axis == 0:
            raise ValueError("only the last axis")
        return right(x, axis)

    result = check(softmax, task="softmax")
    assert (result.mistakes, result.points < 9) == (("raises",), True)
    said = " ".join(result.message.split())
    assert "it raises an error (another axis)" in said
    assert "ValueError: only the last axis, in line " in said
    assert ': raise ValueError("only the last axis"), on x (2, 3), axis = 0' in said
    assert list(result.example) == ["x", "axis", "yours", "right"]


def test_an_error_in_the_first_test_gets_at_most_one_point():
    def softmax(x):
        if x.shape[1] > 2:
            raise ValueError("two columns only")
        return right(x)

    result = check(softmax, task="softmax")
    assert (result.mistakes, result.points <= 1) == (("raises",), True)
    assert "on x (3, 3)" in " ".join(result.message.split())
