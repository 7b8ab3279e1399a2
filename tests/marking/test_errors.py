"""What an error of a learner's function tells, and what it is not taken for."""

import numpy as np
import pytest

from qkv.marking import check
from qkv.marking.errors import alike, clash, line_of
from qkv.marking.files.found import of_error


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def ones(*shape):
    return np.ones(shape)


@pytest.mark.parametrize(
    ("call", "sizes"),
    [
        (lambda: ones(2, 3) @ ones(2, 4), {3, 2}),
        (lambda: ones(2, 5, 3) @ ones(2, 4, 3), {3, 4}),
        (lambda: np.dot(ones(2, 3), ones(4, 3)), {3, 4}),
        (lambda: ones(2, 3) + ones(4, 3), {2, 4}),
        (lambda: np.where(ones(2, 3) > 0, ones(3, 2), 0.0), {2, 3}),
        (lambda: ones(4, 1, 6) @ ones(2, 6, 1), {4, 2}),
        (lambda: np.einsum("ij,jk->ik", ones(2, 3), ones(4, 5)), {3, 4}),
        (lambda: ones(4, 2).reshape(2, 2, 4), {8, 16}),
        (lambda: ones(4, 2).reshape(-1, 3), {8, 3}),
        (lambda: ones(4, 2).reshape(3, -1), {8, 3}),
        (lambda: np.concatenate([ones(2, 3), ones(2, 4)]), {3, 4}),
        (lambda: ones(2, 3).__setitem__(0, ones(4)), {3, 4}),
        (lambda: ones(2, 3).transpose(0, 2, 1), set()),
        (lambda: int("2 3"), set()),
    ],
)
def test_the_sizes_that_clash_are_read_from_numpys_errors(call, sizes):
    assert clash(raised(call)) == sizes


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", {3, 4}),
        ("The size of tensor a (4) must match the size of tensor b (2) at", {4, 2}),
        ("Expected size for first two dimensions of tensor to be: [4, 6] but got: [4, 1].", {6, 1}),
        ("einsum(): subscript j has size 2 for operand 1 which does not broadcast with previously"
         " seen size 3", {2, 3}),
        ("Sizes of tensors must match, Expected size 3 but got size 2", {3, 2}),
        ("shape '[2, 2, 4]' is invalid for input of size 8", {8, 16}),
    ],
)  # fmt: skip
def test_the_sizes_that_clash_are_read_from_torchs_errors(words, sizes):
    assert clash(RuntimeError(words)) == sizes


def test_errors_are_alike_by_their_words_or_by_their_sizes():
    product, dot = raised(lambda: ones(2, 3) @ ones(2, 4)), raised(lambda: ones(1, 2) @ ones(3, 1))
    assert not alike(product, dot, exactly=True)
    assert alike(product, dot, exactly=False)
    other = raised(lambda: ones(2, 3) @ ones(4, 3))
    assert not alike(product, other, exactly=False)
    assert not alike(ValueError("axes don't match array"), ValueError("no"), exactly=False)
    assert alike(ValueError("no"), ValueError("no"), exactly=False)


def helper(x):
    return x.reshape(3, -1)


def test_the_line_is_the_innermost_of_the_learner_s_file():
    def softmax(x):
        return helper(x)

    said = " ".join(check(softmax, task="softmax").message.split())
    assert "in line " in said
    assert ": return x.reshape(3, -1), on x (2, 2)." in said


def test_a_line_that_is_long_is_cut():
    def softmax(x):
        return x.reshape(3, -1) + "a line that is longer than anybody would want to read at its end"

    said = " ".join(check(softmax, task="softmax").message.split())
    assert 'return x.reshape(3, -1) + "a line that is longer than anybo…, on x' in said


def test_an_error_that_no_line_of_the_learner_s_raised_has_none():
    assert line_of(None) == ""
    assert line_of(ValueError("made, not raised")) == ""
    assert "in line" not in check(max, task="softmax").message


NAMED = {
    "softmax": lambda x: np.exp(x) / no_such_name,  # noqa: F821 (the mistake that is made)
    "attention": lambda q, k, v: no_such_name,  # noqa: F821 (the same)
    "mask": lambda q, k, v, mask: no_such_name,  # noqa: F821 (the same)
    "heads": lambda x, w_q, w_k, w_v, w_o, num_heads: no_such_name,  # noqa: F821 (the same)
    "positions": lambda length, dim: no_such_name,  # noqa: F821 (the same)
    "block": lambda x, parameters: no_such_name,  # noqa: F821 (the same)
    "kv-cache": lambda x, cache, w_q, w_k, w_v: no_such_name,  # noqa: F821 (the same)
    "decoder": lambda ids, weights, config: no_such_name,  # noqa: F821 (the same)
}


@pytest.mark.parametrize("task", NAMED)
def test_an_error_of_another_reason_is_no_known_mistake(task):
    result = check(NAMED[task], task=task)
    assert (result.mistakes, result.points) == (("raises",), 0), str(result)
    assert "NameError: name 'no_such_name' is not defined" in " ".join(result.message.split())


def refuses(q, k, v):
    raise ValueError("query and key must have the same number of rows")


def test_what_a_learner_refuses_in_words_of_their_own_is_no_known_mistake():
    assert check(refuses).mistakes == ("raises",)


def soft(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (lambda x, w_q, w_k, w_v: soft((x @ w_q) @ (x @ w_k)) @ (x @ w_v), "no-scaling"),
        (lambda x, w_q, w_k, w_v: soft(x @ w_q.T @ (x @ w_k.T).T) @ (x @ w_v.T), "no-scaling"),
    ],
)
def test_two_mistakes_are_named_where_one_of_them_raises(function, key):
    result = check(function, "x,w_q,w_k,w_v")
    assert key in result.mistakes
    assert len(result.mistakes) == 2
    assert {*result.mistakes} & {"key-not-transposed", "projection-transposed"}


@pytest.mark.parametrize(
    ("words", "ends"),
    [("is it a batch?", "is it a batch?"), ("not yet.", "not yet."), ("no row", "no row.")],
)
def test_words_of_an_error_get_one_full_stop_at_most(words, ends):
    def one_row_alone(x, axis=-1):
        if x.ndim < 2:
            raise ValueError(words)
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)

    (refused,) = (
        line
        for line in check(one_row_alone, task="softmax").message.splitlines()
        if line.startswith("It refuses")
    )
    assert refused.endswith(f"ValueError: {ends}")
    shows = of_error(ValueError(words), "mine.py").message.splitlines()[1]
    assert shows == f"It shows: ValueError: {ends}"
