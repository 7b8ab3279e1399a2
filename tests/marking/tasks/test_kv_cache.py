"""Tests of the task `kv-cache`: right and wrong step functions in the style of a learner."""

import numpy as np
import pytest

from qkv_marking import check

from ..formulas import softmax
from ..written import is_flawless, marked


def attend(q, k, v, visible):
    return softmax(np.where(visible, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)) @ v


def sees(new, total):
    """Return a mask (new, total): each new word sees itself and all earlier words."""
    return np.arange(total) <= total - new + np.arange(new)[:, None]


# -- right answers --------------------------------------------------------------------------------


def arrays_in_a_tuple(x, cache, w_q, w_k, w_v, positions=None):
    before = 0 if cache is None else len(cache[0])
    if positions is not None:
        x = x + positions[before : before + len(x)]
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    if cache is not None:
        k, v = np.concatenate([cache[0], k]), np.concatenate([cache[1], v])
    return attend(q, k, v, sees(len(q), len(k))), (k, v)


def empty(w_k, w_v):
    return {"k": np.empty((0, w_k.shape[1])), "v": np.empty((0, w_v.shape[1]))}


def einsum_and_a_dict(x, cache, w_q, w_k, w_v, positions=None):
    """Modify the given cache in place."""
    cache = empty(w_k, w_v) if cache is None else cache
    if positions is not None:
        position = len(cache["k"]) + np.arange(len(x))
        x = x + positions[position]
    cache["k"] = np.vstack([cache["k"], np.einsum("td,dk->tk", x, w_k)])
    cache["v"] = np.vstack([cache["v"], np.einsum("td,dk->tk", x, w_v)])
    scores = np.einsum("qd,kd->qk", x @ w_q, cache["k"]) * w_q.shape[1] ** -0.5
    scores = np.where(sees(*scores.shape), scores, -np.inf)
    return np.einsum("qk,kd->qd", softmax(scores), cache["v"]), cache


def with_words_and_weights_kept_beside(x, cache, w_q, w_k, w_v):
    out, kept = arrays_in_a_tuple(x, cache and cache["kept"], w_q, w_k, w_v)
    return out, {"kept": kept, "words": x, "weights": (w_k, w_v)}


def with_room_for_more(x, cache, w_q, w_k, w_v):
    """Write to arrays of a fixed size, and count the used rows."""
    k, v, before = cache or (np.empty((99, w_k.shape[1])), np.empty((99, w_v.shape[1])), 0)
    after = before + len(x)
    k[before:after], v[before:after] = x @ w_k, x @ w_v
    visible = np.arange(after) <= np.arange(before, after)[:, None]
    return attend(x @ w_q, k[:after], v[:after], visible), (k, v, after)


RIGHT = [
    *(arrays_in_a_tuple, einsum_and_a_dict),
    *(with_words_and_weights_kept_beside, with_room_for_more),
]


@pytest.mark.parametrize("function", RIGHT)
def test_a_right_step_gets_all_points(function):
    result = check(function, task="kv-cache")
    assert is_flawless(result), str(result)


def test_what_was_not_tried_is_said():
    assert "no such parameter: positions" in marked("kv-cache/lists").message
    assert "Not tried" not in check(arrays_in_a_tuple, task="kv-cache").message


def test_writing_to_the_cache_is_reported_without_penalty():
    said = "It writes to its cache"
    assert said in check(einsum_and_a_dict, task="kv-cache").message
    assert said not in check(arrays_in_a_tuple, task="kv-cache").message


def test_a_first_cache_other_than_none_is_reported():
    def wants_a_dict(x, cache, w_q, w_k, w_v):
        k, v = ({**empty(w_k, w_v), **cache}[name] for name in "kv")
        out, (k, v) = arrays_in_a_tuple(x, (k, v), w_q, w_k, w_v)
        return out, {"k": k, "v": v}

    result = check(wants_a_dict, task="kv-cache")
    assert (result.passed, result.points) == (True, 10)
    assert "The cache of its first call has to be {}" in result.message


# -- wrong answers --------------------------------------------------------------------------------

ARRAYS = "kv-cache/arrays"


def the_words_kept(x, cache, w_q, w_k, w_v):
    """Project every word of the text in every call."""
    before = 0 if cache is None else len(cache)
    x = x if cache is None else np.concatenate([cache, x])
    return attend(x @ w_q, x @ w_k, x @ w_v, np.tri(len(x), dtype=bool))[before:], x


def test_an_output_that_the_next_call_overwrites_is_told_so():
    buffer = np.empty(99)

    def step(x, cache, w_q, w_k, w_v):
        out, cache = arrays_in_a_tuple(x, cache, w_q, w_k, w_v)
        buffer[: out.size] = out.ravel()
        return buffer[: out.size].reshape(out.shape), cache

    result = check(step, task="kv-cache")
    assert (result.mistakes, result.points < 9) == (("output-overwritten",), True)


def test_changed_weights_reveal_recomputed_keys():
    example = check(the_words_kept, task="kv-cache").example
    assert "w_k from the second call on" in example
    assert "500,500 keys in total" in check(the_words_kept, task="kv-cache").message


def test_recomputed_keys_are_shown_as_lines():
    said = check(the_words_kept, task="kv-cache").text(3)
    assert "- words = np.concatenate([words, x]); k, v = words @ w_k, words @ w_v" in said
    assert "k = np.concatenate([cache[0], k])" in said


def test_a_single_use_cache_is_reported_as_written_to():
    def step(x, cache, w_q, w_k, w_v):
        kept = None if cache is None else cache.pop()  # a second call raises an IndexError
        out, kept = arrays_in_a_tuple(x, kept, w_q, w_k, w_v)
        return out, [kept]

    result = check(step, task="kv-cache")
    assert result.points == 10, str(result)
    assert "It writes to its cache" in result.message


def test_wrong_returns_are_described_without_internal_names():
    three = marked(ARRAYS, "@ v, (k, v) => @ v, k, v")
    assert "cannot know the words of earlier calls" not in str(three)
    assert three.example["yours"] == "a tuple of 3, not (out, cache)"
    nothing = check(lambda x, cache, w_q, w_k, w_v: None, task="kv-cache")
    assert nothing.example["yours"] == "None, not (out, cache)"
    assert "Error" not in f"{three} {nothing}"
    output = marked(ARRAYS, "@ v, (k, v) => @ v")
    assert "cannot know the words of earlier calls" in str(output)


def test_an_unrelated_error_is_no_known_mistake():
    def calls_in_a_list(x, cache, w_q, w_k, w_v):
        cache = cache or ([], [])
        cache[0].append(x @ w_k)
        cache[1].append(x @ w_v)
        k, v = np.array(cache[0]), np.array(cache[1])  # (calls, n, d), not (T, d)
        return softmax(x @ w_q @ k.T) @ v, cache

    assert check(calls_in_a_list, task="kv-cache").mistakes == ("raises",)


def test_the_first_of_two_mistakes_is_the_one_in_the_example():
    unscaled = "    scores = scores / np.sqrt(d)\\n =>"
    unmasked = "    scores = np.where(visible, scores, -np.inf)\\n =>"
    result = marked(ARRAYS, f"{unscaled} ;; {unmasked}")
    assert result.mistakes == ("no-scaling", "cache-no-mask")
    assert result.example["the calls, in order"] == "x[0:1], x[1:2]"


def test_a_cache_outside_the_function_is_found_by_a_second_text():
    kept = []

    def step(x, cache, w_q, w_k, w_v):
        kept.extend(zip(x @ w_k, x @ w_v, strict=True))
        k, v = (np.array(rows) for rows in zip(*kept, strict=True))
        return attend(x @ w_q, k, v, sees(len(x), len(k))), kept

    result = check(step, task="kv-cache")
    assert result.mistakes == ("cache-shared",), str(result)
    assert np.allclose(result.example["yours the first time"], result.example["right"])


def test_the_example_has_the_smallest_failing_calls():
    example = marked(ARRAYS, "before + np => before + 1 + np").example
    assert example["the calls, in order"] == "x[0:2]"  # a call with one word has no later words
    whole = arrays_in_a_tuple(example["x"], None, *(example[w] for w in ("w_q", "w_k", "w_v")))[0]
    assert np.allclose(example["right"], whole)
    assert not np.allclose(example["yours"], whole)
