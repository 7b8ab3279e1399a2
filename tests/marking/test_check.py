"""Tests of `check`: right and wrong attention functions in the style of a learner."""

import gc
import math
import textwrap
import warnings
from itertools import chain, cycle, product

import numpy as np
import pytest

import qkv
from qkv.attend import attention
from qkv_marking import check
from qkv_marking._library_calls import Watch
from qkv_marking.tasks import TASKS
from qkv_marking.tasks.attention.mistakes import FORMULA
from qkv_marking.tasks.attention.steps import Trial, answer, cases, compute

from .formulas import hide, join, plain, scaled, softmax, split
from .written import marked, planted, plantings

X = "x,w_q,w_k,w_v"


# -- right answers --------------------------------------------------------------------------------


def with_output_and_weights(q, k, v):
    weights = softmax(scaled(q, k))
    return weights @ v, weights


def with_mask(q, k, v, mask=None):
    scores = scaled(q, k)
    return hide(scores, True if mask is None else mask) @ v


def with_causal(q, k, v, is_causal=False):
    scores = scaled(q, k)
    if is_causal:
        scores = scores + np.triu(np.full(scores.shape[-2:], -1e9), k=1)
    return softmax(scores) @ v


def with_everything(q, k, v, attn_mask=None, *, is_causal=False, q_offset=0, return_weights=False):
    scores = scaled(q, k)
    L, S = scores.shape[-2:]
    visible = np.ones((L, S), dtype=bool)
    if is_causal:
        visible = np.arange(S) <= np.arange(L)[:, None] + q_offset
    if attn_mask is not None:
        visible = visible & attn_mask
    weights = hide(scores, visible)
    return (weights @ v, weights) if return_weights else weights @ v


def with_everything_required(q, k, v, mask, causal, q_offset):
    assert mask.dtype == bool
    return with_everything(q, k, v, mask, is_causal=causal, q_offset=q_offset)


def that_warns(q, k, v):
    warnings.warn("careful", stacklevel=1)
    np.log(np.zeros(1))
    return plain(q, k, v)


def that_prints(q, k, v):
    print("shape of q", q.shape)
    return plain(q, k, v)


def that_refuses_whole_numbers(q, k, v):
    if q.dtype.kind != "f":
        raise TypeError("query must be float")
    return plain(q, k, v)


def of_this_package(query, key, value, attn_mask=None, *, is_causal=False, q_offset=None):
    options = {"is_causal": is_causal, "q_offset": q_offset}
    return attention(query, key, value, attn_mask, **options, return_weights=True)


def with_mask_added(q, k, v, mask=None):
    """Add a mask of 0 and -inf to the scores; fully masked rows give 0."""
    scores = scaled(q, k)
    return hide(scores if mask is None else scores + mask, True) @ v


def with_added_mask_by_default(q, k, v, attn_mask=0.0):
    return hide(scaled(q, k) + attn_mask, True) @ v


def with_either_mask(q, k, v, mask=None, causal=False):
    if mask is not None and mask.dtype != bool:
        mask = mask == 0
    return with_everything(q, k, v, mask, is_causal=causal)


def with_mask_as_index(q, k, v, mask=None):
    """Index the scores with the mask; a mask (L, S) raises an error for a batch (B, L, S)."""
    scores = scaled(q, k)
    if mask is not None:
        scores[~mask] = -np.inf
    return hide(scores, True) @ v


def with_mask_in_loops(q, k, v, mask=None):
    out = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if mask is None or mask[i][j]]
        scores = [q[i] @ k[j] / math.sqrt(len(q[i])) for j in seen]
        e = [math.exp(s - max(scores)) for s in scores]
        for j, x in zip(seen, e, strict=True):
            out[i] += x / sum(e) * v[j]
    return out


def that_refuses_both_masks(q, k, v, attn_mask=None, is_causal=False):
    """Raise an error for a mask with is_causal=True, as torch's attention does."""
    if attn_mask is not None and is_causal:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    return with_everything(q, k, v, attn_mask, is_causal=is_causal)


class Tensor:
    """A tensor that NumPy cannot read before `detach`, as in libraries with automatic gradients."""

    def __init__(self, array, watched=True):
        self.array, self.watched = array, watched

    def detach(self):
        return Tensor(self.array, watched=False)

    def __array__(self, dtype=None, copy=None):
        if self.watched:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")
        return np.asarray(self.array, dtype)


def with_tensors(q, k, v):
    return Tensor(plain(q, k, v)), Tensor(softmax(scaled(q, k)))


class Module:
    """A learner's layer: a class with `__call__`, as in other libraries."""

    def __call__(self, q, k, v, mask=None):
        return with_mask(q, k, v, mask)


RIGHT_ONES = [
    with_everything,
    with_everything_required,
    that_warns,
    that_refuses_whole_numbers,
    with_mask_added,
    with_added_mask_by_default,
    with_either_mask,
    with_mask_as_index,
    with_mask_in_loops,
    with_tensors,
    that_refuses_both_masks,
    Module(),
    *(planted(case.values[1], case.values[2]) for case in plantings("right.txt")),
]


@pytest.mark.parametrize("function", RIGHT_ONES, ids=lambda f: getattr(f, "__name__", "object"))
def test_right_function_passes(function):
    result = check(function)
    assert result.passed, str(result)
    assert result
    assert result.mistake is None
    assert result.mistakes == result.fragile == result.conventions == ()
    assert result.points == 10
    assert result.example == {}
    assert " is right. Tried: " in " ".join(result.message.splitlines())


def test_this_package_answers_right_but_does_the_task_for_the_learner():
    for function in (attention, of_this_package):
        assert TASKS["attention"].mark(function, "qkv").points == 10
        assert (check(function).points, check(function).helped_by) == (0, ("qkv.attention",))


def project(x, w_q, w_k, w_v):
    return plain(x @ w_q, x @ w_k, x @ w_v)


def project_in_einsum(x, w_q, w_k, w_v):
    q, k, v = (np.einsum("...ti,io->...to", x, w) for w in (w_q, w_k, w_v))
    return with_output_and_weights(q, k, v)


def several_heads(x, w_q, w_k, w_v, num_heads=1):
    q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
    weights = softmax(scaled(q, k))
    return join(weights @ v), weights


def weights_averaged_over_heads(x, w_q, w_k, w_v, num_heads=1):
    out, weights = several_heads(x, w_q, w_k, w_v, num_heads)
    return out, weights.mean(axis=-3)


def one_head_after_another(x, w_q, w_k, w_v, n_heads, mask=None, causal=False):
    if causal:
        lower = np.tril(np.ones((x.shape[-2], x.shape[-2]), dtype=bool))
        mask = lower if mask is None else mask & lower
    columns = zip(*(np.split(w, n_heads, axis=1) for w in (w_q, w_k, w_v)), strict=True)
    outs = [with_mask(x @ a, x @ b, x @ c, mask) for a, b, c in columns]
    return np.concatenate(outs, axis=-1)


def heads_with_an_added_mask(x, w_q, w_k, w_v, mask=None, num_heads=1):
    q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
    return join(with_mask_added(q, k, v, mask))


OF_WORDS = [
    *(project, project_in_einsum, several_heads, weights_averaged_over_heads),
    *(one_head_after_another, heads_with_an_added_mask),
]


@pytest.mark.parametrize("function", OF_WORDS)
def test_right_function_of_word_vectors_passes(function):
    result = check(function, signature=X)
    assert result.passed, str(result)
    assert result.points == 10


def below_its_maximum(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + 1e-9)


def in_powers_of_two(s):
    s = s * np.log2(np.e)
    e = np.exp2(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


WAYS_TO_SCORE = [
    scaled,
    lambda q, k: np.einsum("...id,...jd->...ij", q * q.shape[-1] ** -0.5, k),
    lambda q, k: scaled(q.astype(np.float32), k.astype(np.float32)),
]


def of_numbers(mask):
    if mask.dtype == bool:
        raise TypeError("give 0 and -inf")
    return mask


WAYS_TO_HIDE = [
    lambda s, m: np.where(m, s, -np.inf),
    lambda s, m: np.where(m == 1, s, -1e9),
    lambda s, m: np.where(m, s, np.finfo(np.float32).min),
    lambda s, m: s * m + (1 - m) * -1e9,
    lambda s, m: s - ~m * 1e9,
    lambda s, m: s + np.log(m.astype(float)),
    lambda s, m: s + of_numbers(m),
    lambda s, m: np.where(np.isneginf(m), -1e9, s),
    lambda s, m: np.where(m, s, -np.inf) if m.dtype == bool else s + m,
]
WAYS_TO_WEIGH = [
    softmax,
    below_its_maximum,
    in_powers_of_two,
    lambda s: np.exp(s) / np.exp(s).sum(-1, keepdims=True),
]


def test_no_combination_of_right_steps_is_called_wrong():
    for score, steps in zip(cycle(WAYS_TO_SCORE), product(WAYS_TO_HIDE, WAYS_TO_WEIGH)):

        def mine(q, k, v, mask=None, causal=False, score=score, steps=steps):
            conceal, weigh = steps
            scores = score(q, k)
            if mask is not None:
                scores = conceal(scores, mask)
            if causal:
                scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
            return weigh(scores) @ v

        result = check(mine)
        assert result.passed, f"{score} {steps}: {result}"
        assert result.conventions == ()
        assert any(key.startswith("masked-row") for key in result.fragile)


# -- wrong answers --------------------------------------------------------------------------------


def attend(scores_of=scaled, weights_of=softmax, out_of=np.matmul):
    """Return attention in three steps; a test replaces one of these steps by a wrong step."""

    def function(q, k, v):
        return out_of(weights_of(scores_of(q, k)), v)

    return function


def axes(shift, total, keep=True):
    """Return a softmax with the maximum along axis `shift` and the sum along axis `total`.

    With `shift=False`, no maximum is subtracted.
    """

    def weights_of(x):
        top = 0 if shift is False else x.max(axis=shift, keepdims=keep)
        e = np.exp(x - top)
        return e / e.sum(axis=total, keepdims=keep)

    return weights_of


def scaled_by(number):
    def scores_of(q, k):
        return q @ np.swapaxes(k, -1, -2) * number(q, k)

    return scores_of


def into_square_scores(q, k, v):
    tokens = len(q)
    scores = [[q[i] @ k[j] / np.sqrt(q.shape[1]) for j in range(tokens)] for i in range(tokens)]
    return softmax(np.array(scores)) @ v


def that_scales_the_callers_queries(q, k, v):
    q = np.divide(q, np.sqrt(q.shape[-1]), out=q if q.dtype.kind == "f" else None)
    return softmax(q @ np.swapaxes(k, -1, -2)) @ v


def in_pythons_own_math(shift):
    def function(q, k, v):
        scores = scaled(q, k).tolist()
        top = max(map(max, scores)) if shift else 0
        e = [[math.exp(s - top) for s in row] for row in scores]
        return np.array([[x / sum(row) for x in row] for row in e]) @ v

    return function


def with_new_random_projection(q, k, v):
    w = np.random.default_rng().normal(size=(q.shape[-1], q.shape[-1]))
    return plain(q @ w, k @ w, v)


def that_raises(q, k, v):
    raise RuntimeError("not finished yet")


# wrong only for batches, so that the task batched-attention finds them
WRONG_BATCH = [
    ("batch-axis softmax-no-max", attend(weights_of=axes(False, 1))),
    ("batch-transpose", lambda q, k, v: softmax(q @ k.T / np.sqrt(q.shape[-1])) @ v),
    ("batch-axis", attend(weights_of=axes(1, 1))),
    ("batch-axis", attend(weights_of=axes(-1, 1))),
    ("batch-axis", attend(weights_of=lambda s: with_none(np.exp(s - s.max(axis=-1)[:, None])))),
    ("batch-axis", attend(weights_of=lambda s: with_none(np.exp(s - s.max(-1, keepdims=True))))),
    ("batch-wrong", attend(scaled_by(lambda q, k: q.shape[1] ** -0.5))),
]


def with_none(e):
    return e / e.sum(axis=-1)[:, None]


def masked(hiding):
    """Return attention that turns scores and a mask into weights with `hiding`."""

    def function(q, k, v, mask=None):
        scores = scaled(q, k)
        weights = softmax(scores) if mask is None else hiding(scores, mask)
        return weights @ v

    return function


def that_adds_a_mask(q, k, v, mask=None):
    """Add a mask of 0 and -inf to the scores."""
    return softmax(scaled(q, k) + (0 if mask is None else mask)) @ v


def that_adds_a_mask_by_default(q, k, v, mask=0.0):
    return that_adds_a_mask(q, k, v, mask)


def triangle(make, *, fill=-np.inf):
    def function(q, k, v, is_causal=False):
        scores = scaled(q, k)
        if is_causal:
            visible = make(np.ones(scores.shape[-2:], dtype=bool))
            scores = np.where(visible, scores, fill)
        return softmax(scores) @ v

    return function


def with_offset(allow):
    def function(q, k, v, is_causal=False, q_offset=None):
        scores = scaled(q, k)
        queries, keys = scores.shape[-2:]
        i, j = np.arange(queries)[:, None], np.arange(keys)
        visible = allow(i, j, q_offset or 0, keys - queries) if is_causal else True
        return hide(scores, visible) @ v

    return function


def with_maximum_of_the_keys_it_sees(q, k, v, mask=None):
    out = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if mask is None or mask[i][j]]
        scores = [q[i] @ k[j] / math.sqrt(len(q[i])) for j in seen]
        top = max(scores)  # raises a ValueError for an empty list
        e = [math.exp(s - top) for s in scores]
        for j, x in zip(seen, e, strict=True):
            out[i] += x / sum(e) * v[j]
    return out


def with_mask_of_keys_of_each_text(q, k, v, mask=None):
    """Compute attention on a batch (B, L, d) with a mask of keys (B, S)."""
    scores = np.einsum("bid,bjd->bij", q, k) / np.sqrt(q.shape[-1])
    return hide(scores, True if mask is None else mask[:, None, :]) @ v


@pytest.mark.parametrize(
    ("fragile", "conventions", "function"),
    [
        (("softmax-no-max",), (), in_pythons_own_math(shift=False)),
        (("softmax-global-max",), (), in_pythons_own_math(shift=True)),
        (("masked-row-raises",), (), with_maximum_of_the_keys_it_sees),
        ((), ("mask-per-key",), with_mask_of_keys_of_each_text),
    ],
)
def test_fragile_and_unconventional_functions_pass_and_are_named(fragile, conventions, function):
    result = check(function)
    assert result.passed, str(result)
    assert (result.mistake, result.mistakes) == (None, ())
    assert (result.fragile, result.conventions) == (fragile, conventions), str(result)
    assert result.points == 10 - len(fragile)
    first = "but fragile" if fragile else "but follows another convention"
    assert f" is right, {first}: " in " ".join(result.message.splitlines())
    assert "\nTried: scores" in result.message
    assert {"query", "key", "value", "yours", "right"} <= result.example.keys()


@pytest.mark.parametrize(("keys", "function"), WRONG_BATCH)
def test_a_mistake_in_batches_counts_only_where_batches_are_asked_for(keys, function):
    result = check(function, task="batched-attention")
    mistake, *fragile = keys.split()
    assert (result.mistakes, result.fragile) == ((mistake,), tuple(fragile)), str(result)
    assert (result.conventions, result.points <= 8) == ((), True)
    alone = check(function, task="attention")
    assert alone.passed, str(alone)
    assert "It takes one text at a time" in alone.message


def in_heads(split=split, join=join, scale=lambda q, heads: q.shape[-1]):
    def function(x, w_q, w_k, w_v, num_heads=1):
        q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
        return join(softmax(q @ k.swapaxes(-1, -2) / np.sqrt(scale(q, num_heads))) @ v)

    return function


def join_by_reshape(a):
    return a.reshape(*a.shape[:-3], a.shape[-2], -1)


# -- messages -------------------------------------------------------------------------------------


def test_message_has_mistake_evidence_and_correction():
    def mine(q, k, v):
        scores = q @ k.T / np.sqrt(q.shape[-1])
        e = np.exp(scores - scores.max())
        return e / e.sum() @ v

    result = check(mine)
    assert result.message == (
        "mine: softmax runs over the whole matrix, not over each row.\n"
        "It shows: all weights of the matrix sum to 1, so each row sums to less than 1.\n"
        "Correction: scores = scores - scores.max(axis=-1, keepdims=True);"
        " weights = e / e.sum(axis=-1, keepdims=True)"
    )
    text = str(result)
    assert repr(result) == text
    assert text.startswith(
        "mine: softmax runs over the whole matrix, not over each row.\n"
        "It shows: all weights of the matrix sum to 1, so each row sums to less than 1.\n"
        "\nThe smallest input that shows it:\n"
    )
    assert "query = [[1. 1.]\n           [2. 1.]]" in text
    assert "your output = [[" in text
    assert "should be = [[" in text
    batch = str(check(lambda q, k, v: softmax(q @ k.T / np.sqrt(q.shape[-1])) @ v))
    assert batch == "\n".join(line.rstrip() for line in batch.splitlines())


def test_example_has_the_smallest_input_and_actual_and_right_outputs():
    example = check(lambda q, k, v: softmax(q @ k.T) @ v).example
    q, k, v = example["query"], example["key"], example["value"]
    assert q.shape == k.shape == v.shape == (2, 2)
    scores = [[sum(q[i] * k[j]) for j in range(2)] for i in range(2)]
    for i in range(2):
        for name, scale in (("yours", 1.0), ("right", 2**-0.5)):
            e = [math.exp(s * scale) for s in scores[i]]
            expected = (e[0] * v[0] + e[1] * v[1]) / (e[0] + e[1])
            np.testing.assert_allclose(example[name][i], expected, rtol=1e-12)


def test_example_of_an_option_shows_the_option():
    example = check(triangle(np.triu)).example
    assert example["is_causal"] is True
    example = check(masked(lambda s, m: softmax(s * m))).example
    np.testing.assert_array_equal(example["mask"], [[True, False], [False, True]])
    example = check(with_offset(lambda i, j, offset, ahead: j <= i)).example
    assert example["q_offset"] == 1
    assert check(in_heads(join=join_by_reshape), X).example["num_heads"] == 2


def test_example_shows_changed_inputs_weights_and_errors():
    example = check(that_scales_the_callers_queries).example
    np.testing.assert_allclose(example["query afterwards"], example["query"] / 2**0.5)
    np.testing.assert_allclose(example["yours"], example["right"])
    example = check(lambda q, k, v: (plain(q, k, v), scaled(q, k))).example
    np.testing.assert_allclose(example["your weights"], scaled(example["query"], example["key"]))
    np.testing.assert_allclose(softmax(example["your weights"]), example["right weights"])
    example = check(with_new_random_projection).example
    assert not np.allclose(example["yours"], example["yours the second time"])
    assert check(that_raises).example["yours"] == "RuntimeError: not finished yet"
    assert check(lambda q, k, v: "context").example["yours"] == "context"


def wrong_twice(q, k, v):
    e = np.exp(q @ k.T)
    return e / e.sum(axis=0) @ v


def test_two_mistakes_at_once_are_both_named():
    result = check(wrong_twice)
    assert set(result.mistakes) >= {"no-scaling", "softmax-columns"}
    assert "Also: " in result.message

    without_max = check(attend(weights_of=axes(False, None)))
    assert "Also fragile: softmax does not subtract" in without_max.message
    assert without_max.message.count("Correction") == 2


def test_hints_are_given_only_where_they_hold():
    def with_positions(q, k, v):
        return plain(q, k + 0.1 * np.arange(len(k))[:, None], v)

    assert "do not sum to 1" not in check(with_positions).message
    message = check(lambda *arrays: project(*arrays) + 0.001, X).message
    assert "no known mistake explains it" in message
    assert "order of the keys" not in message


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (that_raises, ["RuntimeError: not finished yet", "query (2, 2), key (2, 2), value (2, 2)"]),
        (into_square_scores, ["query (1, 2), key (2, 2)"]),
        (lambda q, k, v: None, ["returns None", "return weights @ v"]),
        (lambda q, k, v: "context", ["returns a str"]),
        (lambda q, k, v: plain(q, k, v)[0], ["shape (2,)", "(2, 2)"]),
        (
            attend(scaled_by(lambda q, k: 1 / 8)),
            ["the scores are divided by 8 for every size d", "only the sharpness"],
        ),
        (
            attend(scaled_by(lambda q, k: 1 / 8 / q.shape[-1])),
            ["0.0625 instead of 0.7071 (d = 2)", "only the sharpness"],
        ),
        (
            attend(scaled_by(lambda q, k: -1 / np.sqrt(q.shape[-1]))),
            ["-0.7071 instead of 0.7071 (d = 2)", "the order of the weights is reversed"],
        ),
        (attend(scaled_by(lambda q, k: 0)), ["0 instead of", "get the same weight"]),
        (lambda q, k, v: plain(q, k, v) + 0.001, ["off by as much as 0.001"]),
        (lambda q, k, v: 0.9 * plain(q, k, v), ["sum to 1 but to 0.9, 0.9"]),
        (lambda q, k, v: -plain(q, k, v), ["below zero"]),
        (lambda q, k, v: plain(q, k + 0.1 * np.arange(len(k))[:, None], v), ["order of the keys"]),
        (lambda q, k, v: plain(q, k, v) * np.nan, ["nan or inf"]),
        (lambda q, k, v: plain(q, k, q), ["key is used as key, and the query"]),
        (lambda q, k, v: (plain(q, k, v), scaled(q, k)), ["scores before softmax"]),
        (lambda q, k, v: "x" + q, ["raises an error"]),
    ],
)
def test_messages_describe_mistakes_without_a_formula(function, words):
    message = check(function).message
    for part in words:
        assert part in message


def test_right_function_says_what_was_tried_and_what_it_refused():
    message = marked("attention/lists").message
    assert "scores of 1000" in message
    assert "It takes one text at a time" in message
    of_batches = 'query @ key.swapaxes(-1, -2) => np.einsum("bid,bjd->bij", query, key)'
    message = marked("attention/matmul", of_batches).message
    assert "It takes only arrays of 3 dimensions" in message
    assert "TypeError: query must be float" in check(that_refuses_whole_numbers).message
    message = check(with_everything).message
    tried = ("a row masked out", "a causal mask", "both masks together", "q_offset", "batches")
    assert [words for words in tried if words not in message] == []
    assert "two heads" in check(several_heads, X).message
    assert "Not tried" not in message
    message = check(plain).message
    assert message.endswith(
        "Not tried, because the function has no such parameter: mask, is_causal, q_offset."
    )
    assert "no such parameter: mask, is_causal." in check(several_heads, X).message


def test_additive_masks_are_named_and_shown_as_additive():
    said = "It expects a mask of 0 and -inf to add to the scores, not a mask of True and False."
    assert said in check(with_mask_added).message
    for function in (with_mask, with_either_mask, plain):
        assert "to add" not in check(function).message
    by_default = check(that_adds_a_mask_by_default)
    assert (by_default.fragile, by_default.points) == (("masked-row-nan",), 9), str(by_default)
    np.testing.assert_array_equal(by_default.example["mask"], [[0, 0], [-np.inf, -np.inf]])
    assert np.isnan(by_default.example["yours"][1]).all()
    np.testing.assert_array_equal(by_default.example["right"][1], 0)


def test_adding_a_boolean_mask_to_the_scores_is_wrong():
    """A function may add its mask only if it expects 0 and -inf, or if it rejects bools."""

    def refuses(q, k, v, mask=None):
        return that_adds_a_mask(q, k, v, None if mask is None else of_numbers(mask))

    result = check(that_adds_a_mask)
    assert (result.passed, result.points < 9) == (False, True)
    assert result.example["mask"].dtype == bool
    assert check(refuses).fragile == ("masked-row-nan",)
    for function in (with_mask_added, with_added_mask_by_default, with_either_mask):
        assert check(function).points == 10


@pytest.mark.parametrize("beside", [False, True])
def test_a_reused_output_buffer_is_named(beside):
    kept = {}

    def into_a_buffer(q, k, v):
        arrays = with_output_and_weights(q, k, v)
        given = [kept.setdefault((n, a.shape), np.empty(a.shape)) for n, a in enumerate(arrays)]
        for buffer, a in zip(given, arrays, strict=True):
            buffer[...] = a
        return (arrays[0], given[1]) if beside else given[0]

    result = check(into_a_buffer)
    assert (result.mistakes, result.points < 9) == (("output-overwritten",), True), str(result)
    assert result.fragile == ()
    arrays = (result.example[name] for name in ("query", "key", "value"))
    right = with_output_and_weights(*arrays)[beside]
    assert not np.allclose(result.example["yours after other calls"], right)


def test_message_names_refused_masks():
    message = check(with_mask_as_index).message
    assert "The function refuses a mask on a batch: IndexError: " in message
    message = check(that_refuses_both_masks).message
    assert "The function refuses both masks together: RuntimeError: Explicit attn_mask" in message


def test_message_lists_mistakes_then_fragility_then_conventions():
    def everything(q, k, v, mask=None):
        scores = q @ np.swapaxes(k, -1, -2)
        weights = np.exp(scores if mask is None else np.where(mask, scores, -1e9))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return weights, weights @ v

    result = check(everything)
    message = result.message
    assert message.startswith("everything: the scores are not scaled")
    assert "\nAlso fragile: softmax does not subtract" in message
    assert "\nAlso another convention: the function returns the weights" in message
    assert "Tried" not in message
    assert 4 <= result.points <= 8 - 2


def test_prints_and_warnings_of_the_function_are_suppressed(capsys):
    with np.errstate(all="raise"):
        assert check(that_warns)
        assert check(that_prints).conventions == ("prints",)
        assert check(attend(weights_of=axes(False, -1))).fragile == ("softmax-no-max",)
    assert capsys.readouterr().out == ""


def test_mask_that_is_wrong_only_on_a_batch():
    def lower_by_first_axis(q, k, v, causal=False):
        scores = scaled(q, k)
        if causal:
            scores = np.where(np.tri(len(scores), scores.shape[-1], dtype=bool)[-1], scores, -1e9)
        return softmax(scores) @ v

    def mask_of_first_text(q, k, v, mask=None):
        out = with_mask(q, k, v, mask)
        return out if mask is None or q.ndim == 2 else np.stack([out[0]] * len(q))

    def causal_of_one_text(q, k, v, causal=False):
        out = with_causal(q, k, v, causal)
        return out[::-1] if causal and q.ndim == 3 else out

    assert check(lower_by_first_axis).mistake is not None
    assert "a mask on a batch" in check(mask_of_first_text).message
    assert "a causal mask on a batch" in check(causal_of_one_text).message


def test_the_third_hint_is_the_corrected_line():
    result = check(lambda q, k, v: softmax(q @ k.T) @ v)
    nudge, where, line = result.hint
    assert nudge != where != line
    assert line == "scores = scores / np.sqrt(q.shape[-1])"
    assert result.task == "attention"
    assert check(plain).hint == ()


def test_a_hint_on_the_scale_of_heads_leads_to_the_scores():
    scale = check(in_heads(scale=lambda q, heads: q.shape[-1] * heads), signature=X)
    assert scale.mistake == "heads-scale"
    assert "line that computes the scores" in scale.hint[1]
    assert "transpose" not in scale.hint[1]


def test_a_verdict_shows_the_correction_only_on_request():
    result = check(lambda q, k, v: softmax(q @ k.T) @ v)
    labels = ("Hint 1: ", "Hint 2, where to look: ", "Hint 3, correction:")
    hints = [f"{label}{hint}" for label, hint in zip(labels[:2], result.hint[:2], strict=True)]
    mends = f"{labels[2]} {result.hint[2]}".replace("mends it: ", "mends it:\n    ")
    printed = str(result)
    assert printed == (
        f"{result.text(1)}\n\n{result.points} of 10 points; result.text(2) says where to look,"
        " result.text(3) shows the correction"
    )
    assert result.text() == result.text(1) == f"{result.text(0)}\n\n{hints[0]}"
    wrapped = textwrap.fill(hints[1], 80)
    assert result.text(2) == "\n".join([result.text(1), wrapped])
    diff = "and the right results with the lines +:\n  + scores = scores / np.sqrt(q.shape[-1])\n\n"
    assert diff in result.text(3)
    assert result.text(3).endswith("\n".join([f"\n{hints[0]}", wrapped, mends]))
    assert "correction" not in result.text(2).lower()
    assert "np.sqrt" not in result.text(2)
    assert result.text(0).index("should be = ") > result.text(0).index("It shows: ")


def test_the_correction_of_a_convention_is_shown_at_once():
    def prints(q, k, v):
        print(q)
        return plain(q, k, v)

    result = check(prints)
    assert result.conventions == ("prints",)
    assert result.points == 10
    assert result.text() == result.text(2)
    assert "\n\nCorrection: print(...) after the call, outside of the function" in result.text()
    assert str(result).endswith("\n10 of 10 points")


def test_corrections_of_other_mistakes_follow_the_third_hint():
    result = check(wrong_twice)
    first, *others = (
        line.removeprefix("Correction: ")
        for line in result.message.splitlines()
        if line.startswith("Correction")
    )
    assert first == result.hint[2]
    assert others
    told = result.text(3)
    for other in others:
        assert other in told
        assert other not in result.text(2)
        assert told.index("Hint 3") < told.index("Other corrections:") < told.rindex(other)


def test_a_function_that_ends_the_program_is_a_finding():
    def leaves(q, k, v):
        raise SystemExit(3)

    result = check(leaves)
    assert result.mistakes == ("exits",)
    assert "SystemExit: 3" in result.message


# -- wrong calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("signature", ["q,k", "x", "", None, ["qkv"]])
def test_unknown_signature_is_an_error(signature):
    with pytest.raises(ValueError, match=r"signature is .* it must be"):
        check(plain, signature=signature)


def test_unknown_task_error_names_the_known_tasks():
    with pytest.raises(ValueError, match=r"task 'softmacks' is unknown: choose from .*attention"):
        check(plain, task="softmacks")


def test_spaces_in_a_signature_do_not_matter():
    assert check(project, signature="x, w_q, w_k, w_v")


def test_something_that_cannot_be_called_is_an_error():
    with pytest.raises(TypeError, match="`function` has type ndarray"):
        check(plain(np.eye(2), np.eye(2), np.eye(2)))


OTHER = "give all other parameters a default"
CLASS = type("SelfAttention", (), {"__init__": lambda self, size: None})
CALLED = r"check: <?[\w ]+>?\({}\) is called, but"


@pytest.mark.parametrize(
    ("function", "task", "said"),
    [
        (project, "attention", OTHER),
        (lambda q, k: q, "attention", OTHER),
        (lambda q, k, v, d_k: q, "attention", OTHER),
        (lambda q, k, v, *, dropout: q, "attention", OTHER),
        (lambda: 0, "softmax", OTHER),
        (lambda x, heads: x, "softmax", OTHER),
        (lambda q, k, v: v, "mask", "no parameter for a mask"),
        (lambda x, w_q, w_k, w_v: x, "heads", "no parameter for the number of heads"),
        (lambda length: length, "positions", CALLED.format("length, dim")),
        (lambda x, cache: x, "kv-cache", CALLED.format("x, cache, w_q, w_k, w_v")),
        (CLASS, "self-attention-class", CALLED.format("embed_dim, num_heads")),
    ],
)
def test_function_that_takes_something_else_is_an_error(function, task, said):
    with pytest.raises(TypeError, match=said):
        check(function, task=task)


def test_function_of_arrays_is_no_function_of_words():
    with pytest.raises(TypeError, match=OTHER):
        check(plain, signature=X)


def test_builtin_without_a_signature_is_called_all_the_same():
    assert check(max).mistake == "array-in-if"


# -- the marker's own answer ----------------------------------------------------------------------


@pytest.mark.parametrize("signature", ["qkv", X])
def test_steps_of_the_catalogue_are_the_formula(signature):
    with np.errstate(all="ignore"):  # a fully masked row divides by 0
        for case in chain.from_iterable(cases(signature).values()):
            np.testing.assert_allclose(compute(case, FORMULA.lines), answer(case).out, atol=1e-12)


def test_answer_by_hand():
    # scores [[3, 1], [4, 1]] / sqrt(2); the weights of a row are 1 / (1 + exp(difference))
    q, k, v = np.array([[[1.0, 1], [2, 1]], [[1, 2], [0, 1]], [[1, 0], [3, 2]]])
    second = [1 / (1 + math.exp(2 / math.sqrt(2))), 1 / (1 + math.exp(3 / math.sqrt(2)))]
    right = answer(Trial({"query": q, "key": k, "value": v}))
    np.testing.assert_allclose(right.pattern, [[1 - w, w] for w in second], rtol=1e-12)
    np.testing.assert_allclose(right.out, [[1 + 2 * w, 2 * w] for w in second], rtol=1e-12)
    scores = np.array([[3, 1], [4, 1]]) / math.sqrt(2)
    np.testing.assert_allclose(right.lse, np.log(np.exp(scores).sum(axis=-1)), rtol=1e-12)


def test_a_finalizer_that_runs_during_the_call_does_not_help_the_function():
    class Garbage:
        def __init__(self):
            self.me = self

        def __del__(self):
            qkv.softmax(np.zeros(2))

    watch, before = Watch(), gc.get_threshold()
    gc.set_threshold(0)
    Garbage()
    try:
        with watch.on():
            gc.set_threshold(10)
            assert [[] for _ in range(1000)]  # enough new objects to start a collection
    finally:
        gc.set_threshold(*before)
    assert gc.isenabled()
    assert watch.called == set()
