"""Tests of the task `heads`: right and wrong functions in the style of a learner."""

import numpy as np
import pytest

from qkv_marking import check
from qkv_marking.tasks._multi_head import JOINING, PROJECTED
from qkv_marking.tasks.attention.mistakes import HEADS as SHARED


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def scaled(q, k):
    return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])


def split(a, heads):
    return np.swapaxes(a.reshape(*a.shape[:-1], heads, a.shape[-1] // heads), -3, -2)


def join(a):
    a = np.swapaxes(a, -3, -2)
    return a.reshape(*a.shape[:-2], -1)


# -- right answers --------------------------------------------------------------------------------


def with_reshape(x, w_q, w_k, w_v, w_o, num_heads):
    q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
    return join(softmax(scaled(q, k)) @ v) @ w_o


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
    [with_reshape, in_a_loop, with_einsum, with_weights_and_a_mask, with_an_added_mask],
)
def test_right_heads_have_all_points(function):
    result = check(function, task="heads")
    assert result.passed, str(result)
    assert result.mistakes == result.fragile == result.conventions == ()
    assert result.points == 10
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
    assert result.passed, str(result)
    assert result.fragile == ("heads-one-text",)
    assert result.points == 9
    assert result.example["x"].ndim == 3
    assert "a batch" in result.message


def test_a_batch_whose_texts_are_mixed_up_by_the_split_is_wrong():
    def mixed(x, w_q, w_k, w_v, num_heads):
        q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
        if x.ndim > 2 and num_heads > 1:
            v = v[::-1]
        return join(softmax(scaled(q, k)) @ v)

    assert check(mixed, task="heads").mistakes == ("batch-wrong",)


def test_what_was_not_tried_is_said():
    said = check(with_einsum, task="heads").message
    assert "no such parameter: w_o, mask." in " ".join(said.split())
    said = check(with_weights_and_a_mask, task="heads").message
    for tried in ("two heads and three", "the output projection", "a mask on two heads"):
        assert tried in " ".join(said.split())
    assert "Not tried" not in said


# -- wrong answers --------------------------------------------------------------------------------


def heads(split=split, join=join, weigh=lambda w, v: w @ v, scores=scaled, axis=-1):
    def multi_head_attention(x, w_q, w_k, w_v, num_heads):
        q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
        return join(weigh(softmax(scores(q, k), axis), v))

    return multi_head_attention


def projected(how):
    def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads):
        q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
        return how(join(softmax(scaled(q, k)) @ v), w_o)

    return multi_head_attention


def in_turn(a, heads):
    return np.moveaxis(a.reshape(*a.shape[:-1], -1, heads), -1, -3)


def join_in_turn(a):
    a = np.moveaxis(a, -3, -1)
    return a.reshape(*a.shape[:-2], -1)


def without_transpose(a, heads):
    return a.reshape(*a.shape[:-2], heads, a.shape[-2], -1)


def of_all_heads(q, k):
    return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1] * q.shape[-3])


def split_of_size(a, heads, size):
    return np.swapaxes(a.reshape(*a.shape[:-1], heads, size), -3, -2)


def of_the_size_of_x(x, w_q, w_k, w_v, num_heads):
    size = x.shape[-1] // num_heads
    q, k, v = (split_of_size(x @ w, num_heads, size) for w in (w_q, w_k, w_v))
    return join(softmax(scaled(q, k)) @ v)


def projected_without_joining(x, w_q, w_k, w_v, w_o, num_heads):
    q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
    return softmax(scaled(q, k)) @ v @ w_o


def one_head_alone(x, w_q, w_k, w_v, num_heads):
    return softmax(scaled(x @ w_q, x @ w_k)) @ (x @ w_v)


def with_the_queries_of_one_head(x, w_q, w_k, w_v, num_heads):
    q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
    return join(softmax(scaled(np.broadcast_to(q[..., :1, :, :], q.shape), k)) @ v)


def words_apart(a, heads):
    return a.reshape(*a.shape[:-2], heads, -1, a.shape[-1])


def words_together(a):
    return a.reshape(*a.shape[:-3], -1, a.shape[-1])


WRONG = [
    ("heads-reshape", heads(split=without_transpose)),
    ("heads-join", heads(join=lambda a: a.reshape(*a.shape[:-3], a.shape[-2], -1))),
    ("heads-not-joined", heads(join=lambda a: a)),
    ("heads-share-query", with_the_queries_of_one_head),
    ("heads-of-words", heads(split=words_apart, join=words_together)),
    (
        "heads-ignored",
        lambda x, w_q, w_k, w_v, num_heads: softmax(scaled(x @ w_q, x @ w_k)) @ x @ w_v,
    ),
    ("heads-scale", heads(scores=of_all_heads)),
    ("heads-size", heads(split=lambda a, n: split_of_size(a, n, a.shape[-1]))),
    ("heads-size", of_the_size_of_x),
    ("key-not-transposed", heads(scores=lambda q, k: q @ k / np.sqrt(q.shape[-1]))),
    ("heads-not-joined", projected_without_joining),
    ("heads-interleaved", heads(split=in_turn, join=join_in_turn)),
    ("heads-interleaved", heads(split=in_turn)),
    ("heads-join-interleaved", heads(join=join_in_turn)),
    ("heads-reversed", heads(join=lambda a: join(a[..., ::-1, :, :]))),
    ("heads-summed", heads(join=lambda a: a.sum(axis=-3))),
    ("heads-summed", heads(join=lambda a: a.mean(axis=-3))),
    ("heads-one-returned", heads(join=lambda a: a[..., -1, :, :])),
    ("heads-one-repeated", heads(join=lambda a: join(np.broadcast_to(a[..., :1, :, :], a.shape)))),
    ("heads-share-weights", heads(weigh=lambda w, v: w[..., :1, :, :] @ v)),
    ("heads-weights-averaged", heads(weigh=lambda w, v: w.mean(axis=-3, keepdims=True) @ v)),
    ("heads-softmax-over-heads", heads(axis=-3)),
    ("heads-softmax-twice", heads(join=lambda a: softmax(join(a)))),
    ("output-missing", projected(lambda out, w_o: out)),
    ("output-transposed", projected(lambda out, w_o: out @ w_o.T)),
    ("output-from-the-left", projected(lambda out, w_o: w_o @ out)),
    ("output-added", projected(lambda out, w_o: out + out @ w_o)),
    ("no-scaling", heads(scores=lambda q, k: q @ np.swapaxes(k, -1, -2))),
    ("projections-swapped", lambda x, a, b, c, num_heads: with_einsum(x, c, b, a, num_heads)),
    ("returns-nothing", lambda x, w_q, w_k, w_v, num_heads: None),
]


@pytest.mark.parametrize(("key", "function"), WRONG)
def test_mistake_is_named(key, function):
    result = check(function, task="heads")
    assert not result
    assert result.mistakes == (key,), str(result)
    assert len({*result.hint}) == 3


def test_columns_that_are_dropped_are_said():
    def multi_head_attention(x, w_q, w_k, w_v, num_heads):
        size, dv = w_q.shape[1] // num_heads, w_v.shape[1] // num_heads
        outs = []
        for h in range(num_heads):
            one, other = slice(h * size, (h + 1) * size), slice(h * dv, (h + 1) * dv)
            outs.append(softmax(scaled(x @ w_q[:, one], x @ w_k[:, one])) @ (x @ w_v[:, other]))
        return np.concatenate(outs, axis=-1)

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
    result = check(heads(scores=lambda q, k: np.zeros((*q.shape[:-1], k.shape[-2]))), task="heads")
    assert not result
    assert "heads" not in result.mistakes[0]


def test_a_function_without_num_heads_is_a_type_error():
    with pytest.raises(TypeError, match="no parameter for the number of heads"):
        check(lambda x, w_q, w_k, w_v: x, task="heads")


def test_every_known_mistake_is_made_above():
    known = (*SHARED, *JOINING, *PROJECTED)
    assert {one.key for one in known if not one.alone} <= {key for key, _ in WRONG}
    for one in (*JOINING, *PROJECTED):
        assert one.nudge
        assert len({*one.hint}) == 3
