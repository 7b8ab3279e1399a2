"""Tests of the task `heads`: right and wrong functions in the style of a learner."""

import numpy as np
import pytest

from qkv_marking import check

from ..formulas import join, plain, scaled, softmax, split
from ..written import is_flawless

# -- right answers --------------------------------------------------------------------------------


def in_a_loop(x, w_q, w_k, w_v, num_heads=1, w_o=None):
    if w_q.shape[1] % num_heads:
        raise ValueError("num_heads must divide the columns")
    columns = zip(*(np.split(w, num_heads, axis=1) for w in (w_q, w_k, w_v)), strict=True)
    heads = [softmax(scaled(x @ a, x @ b)) @ (x @ c) for a, b, c in columns]
    joined = np.concatenate(heads, axis=-1)
    return joined if w_o is None else joined @ w_o


def with_einsum(x, w_q, w_k, w_v, n_heads):
    of_heads = (w.reshape(len(w), n_heads, -1) for w in (w_q, w_k, w_v))
    q, k, v = (np.einsum("...td,dhe->...hte", x, w) for w in of_heads)
    weights = softmax(np.einsum("...ie,...je->...ij", q, k) / q.shape[-1] ** 0.5)
    joined = np.einsum("...hij,...hje->...ihe", weights, v)
    return joined.reshape(*x.shape[:-1], -1)


def with_weights_and_a_mask(x, w_q, w_k, w_v, w_o, num_heads, mask=None):
    q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
    scores = scaled(q, k)
    weights = softmax(scores if mask is None else np.where(mask, scores, -np.inf))
    return join(weights @ v) @ w_o, weights


def with_an_added_mask(x, w_q, w_k, w_v, num_heads, mask=0.0):
    q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
    return join(softmax(scaled(q, k) + mask) @ v)


@pytest.mark.parametrize(
    "function",
    [in_a_loop, with_einsum, with_weights_and_a_mask, with_an_added_mask],
)
def test_right_heads_have_all_points(function):
    result = check(function, task="heads")
    assert is_flawless(result), str(result)
    assert result.task == "heads"


def einsum_of_one_text(x, w_q, w_k, w_v, n_heads):
    q, k, v = (np.einsum("td,dhe->hte", x, w.reshape(len(w), n_heads, -1)) for w in (w_q, w_k, w_v))
    weights = softmax(np.einsum("hie,hje->hij", q, k) / q.shape[-1] ** 0.5)
    return np.einsum("hij,hje->ihe", weights, v).reshape(len(x), -1)


def cut_from_the_front(x, w_q, w_k, w_v, w_o, num_heads):
    q, k, v = (
        (x @ w).reshape(len(x), num_heads, -1).swapaxes(0, 1) for w in (w_q, w_k, w_v)
    )  # for a batch and one head, the shape is right by chance
    joined = (softmax(scaled(q, k)) @ v).swapaxes(0, 1).reshape(len(x), -1)
    return joined @ w_o


def one_text_of_several_heads(x, w_q, w_k, w_v, num_heads):
    if x.ndim > 2 and num_heads > 1:
        raise ValueError("several heads of one text alone")
    return in_a_loop(x, w_q, w_k, w_v, num_heads)


@pytest.mark.parametrize(
    "function", [einsum_of_one_text, cut_from_the_front, one_text_of_several_heads]
)
def test_heads_of_one_text_alone_are_fragile(function):
    result = check(function, task="heads")
    found = (result.passed, result.fragile, result.points)
    assert found == (True, ("heads-one-text",), 9), str(result)
    assert result.example["x"].ndim == 3
    assert "a batch" in result.message


def test_a_batch_whose_texts_are_mixed_up_by_the_split_is_wrong():
    def mixed(x, w_q, w_k, w_v, num_heads):
        q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
        return join(plain(q, k, v[::-1] if x.ndim > 2 and num_heads > 1 else v))

    assert check(mixed, task="heads").mistakes == ("batch-wrong",)


def test_what_was_not_tried_is_said():
    said = check(with_einsum, task="heads").message
    assert "no such parameter: w_o, mask." in " ".join(said.split())
    said = check(with_weights_and_a_mask, task="heads").message
    for tried in ("two heads and three", "the output projection", "a mask on two heads"):
        assert tried in " ".join(said.split())
    assert "Not tried" not in said


# -- wrong answers --------------------------------------------------------------------------------


def test_columns_that_are_dropped_are_said():
    def multi_head_attention(x, w_q, w_k, w_v, num_heads):
        whole = (w[:, : w.shape[1] // num_heads * num_heads] for w in (w_q, w_k, w_v))
        q, k, v = (split(x @ w, num_heads) for w in whole)
        return join(plain(q, k, v))

    result = check(multi_head_attention, task="heads")
    assert result.passed
    assert (result.fragile, result.points) == ((), 10)
    assert "6 columns and 4 heads raise no error" in result.message


def test_returning_none_for_indivisible_columns_is_no_refusal():
    def multi_head_attention(x, w_q, w_k, w_v, num_heads):
        if w_q.shape[1] % num_heads:
            return None
        return with_einsum(x, w_q, w_k, w_v, num_heads)

    result = check(multi_head_attention, task="heads")
    assert result.fragile == (), str(result)
    assert "raise no error, but give a NoneType" in " ".join(result.message.split())


def test_a_mask_of_bools_that_is_added_is_wrong():
    def adds(x, w_q, w_k, w_v, num_heads, mask=None):
        q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
        scores = scaled(q, k)
        return join(softmax(scores if mask is None else scores + mask) @ v)

    result = check(adds, task="heads")
    assert (result.mistakes, result.points < 9) == (("mask-added",), True), str(result)


def test_a_mistake_of_one_head_is_found_first():
    def averages(x, w_q, w_k, w_v, num_heads):
        v = split(x @ w_v, num_heads)
        return join(np.broadcast_to(v.mean(axis=-2, keepdims=True), v.shape))

    result = check(averages, task="heads")
    assert not result
    assert "heads" not in result.mistakes[0]
