"""Tests of errors in learners' functions: the mistakes that the marker names or does not name."""

import re

import numpy as np
import pytest

from qkv_marking import check
from qkv_marking._errors import alike, clash, line_of
from qkv_marking.files.verdicts import of_error

from .formulas import softmax as soft
from .written import marked


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
    einsum = raised(lambda: np.einsum("ij,jk->ik", ones(1, 2), ones(3, 1)))
    assert not alike(product, einsum, exactly=True)
    assert alike(product, einsum, exactly=False)
    assert not alike(product, dot, exactly=False)  # the sizes (3, 2) differ from the sizes (2, 3)
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


def test_errors_raised_outside_learner_code_have_no_line():
    assert line_of(None) == ""
    assert line_of(ValueError("made, not raised")) == ""
    assert "in line" not in check(max, task="softmax").message


def refuses(q, k, v):
    raise ValueError("query and key must have the same number of rows")


def test_an_error_raised_by_the_learner_is_no_known_mistake():
    assert check(refuses).mistakes == ("raises",)


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (lambda x, q, k, v: soft((x @ q) @ (x @ k)) @ (x @ v), "key-not-transposed"),
        (lambda x, q, k, v: soft(x @ q.T @ (x @ k.T).T) @ (x @ v.T), "projection-transposed"),
    ],
)
def test_two_mistakes_are_named_where_one_of_them_raises(function, key):
    assert {*check(function, "x,w_q,w_k,w_v").mistakes} == {"no-scaling", key}


@pytest.mark.parametrize(
    ("words", "ends"),
    [("is it a batch?", "is it a batch?"), ("not yet.", "not yet."), ("no row", "no row.")],
)
def test_words_of_an_error_get_one_full_stop_at_most(words, ends):
    def one_row_alone(x, axis=-1):
        if x.ndim < 2:
            raise ValueError(words)
        return soft(x, axis)

    (refused,) = (
        line
        for line in check(one_row_alone, task="softmax").message.splitlines()
        if line.startswith("The function refuses")
    )
    assert refused.endswith(f"ValueError: {ends}")
    shows = of_error(ValueError(words), "mine.py").message.splitlines()[1]
    assert shows == f"It shows: ValueError: {ends}"


# -- the most likely mistake behind an error ------------------------------------------------------

D = "query.shape[-1]"
MOST_LIKELY = [
    # missing names: (task, style, old text, new text, key of the mistake, part of the message)
    ("softmax", "arrays", "np.exp", "exp", "name-unknown", "exp is used, .*np.exp is meant"),
    ("softmax", "loops", "total = 0.0", "pass", "name-before-value", "total is used before"),
    ("attention", "matmul", "soft(sc", "sotf(sc", "name-unknown", "sotf is .* soft is meant"),
    ("attention", "einsum", "soft(s), c", "np.softmax(s), c", "name-unknown", "numpy has no soft"),
    ("attention", "matmul", D, "query.shap[-1]", "name-unknown", "an array has no shap .*shape is"),
    ("attention", "matmul", "soft(scores)", "scores.exp()", "name-unknown", "np.exp is meant"),
    ("attention", "matmul", "    d = query.shape[-1]", "", "name-unknown", "d is used, but not"),
    ("self-attention-class", "reshape", "@ self.w_o", "@ w_o", "self-forgotten", "w_o belongs to"),
    ("self-attention-class", "reshape", "  self.w_o = ", "  w_o = ", "self-forgotten", "w_o belo"),
    ("self-attention-class", "loop", "(self.h)", "(h)", "name-before-value", "and self.h is"),
    ("self-attention-class", "loop", "x @ self.w_q", "x @ self.w_qq", "name-unknown", "w_q is me"),
    ("block", "arrays", '["norm1_scale"]', '["norm1_scle"]', "key-unknown", "'norm1_scale' is"),
    ("block", "loops", 'par["w_k"]', 'par["W_k"]', "key-unknown", "'W_k', which .*'w_k' is meant"),
    # slips: the message is the text of the mistake
    ("softmax", "loops", "0.0", "math.exp(x[i])", "array-for-number", ""),
    ("attention", "lists", "len(k)", "len(k) + 1", "index-past-end", "n elements has the index"),
    ("attention", "tables", "range(d)", "range(d + 1)", "index-past-end", ""),
    ("attention", "matmul", "np.sqrt(d)", "d^0.5", "power-sign", "the power operator"),
    ("attention", "matmul", D, "query.shape(-1)", "not-callable", ""),
    ("attention", "tables", "q[i, n] * k[j, n]", "q[i] * k[j]", "array-for-number", ""),
    ("attention", "lists", "(len(v[0]))", "(len(v[0]), int)", "integer-table", "whole numbers"),
    ("attention", "tables", "np.zeros((len(q), dv))", "[[0.0] * dv] * len(q)", "list-as-array", ""),
    ("mask", "loops", "if mask[i][j] else", "if mask else", "array-in-if", ""),
    ("mask", "loops", "v.shape[-1]))", "v.shape[-1]), int)", "integer-table", ""),
    ("heads", "loop", "q.shape[-1] //", "q.shape[-1] /", "size-not-whole", "/ always gives"),
    ("attention", "matmul", "return e /", "e /", "none-used", "without a return statement"),
    ("heads", "reshape", "return e /", "e /", "none-used", ""),
    ("attention", "lists", "row = np.zeros(len(v[0]))", "row = out.append(1)", "none-used", ""),
    ("self-attention-class", "reshape", "def split(self, a)", "def split(a)", "call-arguments", ""),
    ("self-attention-class", "loop", "dim // heads", "dim / heads", "size-not-whole", ""),
    ("kv-cache", "arrays", "if cache is not None", "if True", "none-used", "may be None"),
    ("kv-cache", "lists", "(wv.shape[1])", "(wv.shape[1], int)", "integer-table", ""),
    ("block", "loops", "np.zeros(x.shape)", "np.zeros(x.shape, bool)", "integer-table", ""),
    ("decoder", "loops", "np.zeros(q.shape)", "np.zeros(q.shape, int)", "integer-table", ""),
    ("causal", "loops", "range(i + 1)", "range(i + 2)", "index-past-end", ""),
]  # fmt: skip


@pytest.mark.parametrize(("task", "style", "old", "new", "key", "told"), MOST_LIKELY)
def test_an_error_is_named_by_its_most_likely_mistake(task, style, old, new, key, told):
    result = marked(f"{task}/{style}", f"{old} => {new}".rstrip(" "))
    assert result.mistakes == (key,), str(result)
    assert re.search(told, result.message.splitlines()[0]), result.message
    assert all(result.hint)


def test_a_forgotten_import_is_told():
    for source, line in (("np.exp(x)", "import numpy as np"), ("math.exp(x)", "import math")):
        found = {}
        exec(f"def softmax(x):\n    return {source}", found)
        result = check(found["softmax"], task="softmax")
        assert result.mistakes == ("import-forgotten",)
        assert result.hint[2].startswith(line)
        assert line not in result.text(2)


def test_an_import_forgotten_at_module_level_is_named():
    for source in ("SIZE = np.sqrt(2)", "def softmax(x: np.ndarray): pass"):
        error = raised(lambda source=source: exec(compile(source, "mine.py", "exec"), {}))
        result = of_error(error, "mine.py")
        assert result.mistakes == ("import-forgotten",)
        assert "the name np is used, but never imported." in result.message
        assert "It shows: line 1: NameError: name 'np' is not defined" in result.message


def test_a_name_error_on_batches_is_no_refusal_of_batches():
    def softmax(x):
        if x.ndim == 3:
            return nowhere(x)  # noqa: F821
        return soft(x)

    result = check(softmax, task="softmax")
    assert (result.mistakes, result.points < 9) == (("name-unknown",), True)
