"""Tests of the task `kv-cache`: right and wrong step functions in the style of a learner."""

import math

import numpy as np
import pytest

from qkv import KVCache, attention
from qkv_marking import check


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


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


def loops_and_a_list(x, cache, w_q, w_k, w_v):
    rows, out = list(cache or []), []
    for word in x:
        rows.append((word @ w_k, word @ w_v))
        q = word @ w_q
        scores = [
            sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)) for k, _ in rows
        ]
        e = [math.exp(s - max(scores)) for s in scores]
        out.append(sum(w * v for w, (_, v) in zip(e, rows, strict=True)) / sum(e))
    return out, rows


def einsum_and_a_dict(x, cache, w_q, w_k, w_v, positions=None):
    """Modify the given cache in place."""
    cache = (
        {"k": np.empty((0, w_k.shape[1])), "v": np.empty((0, w_v.shape[1]))}
        if cache is None
        else cache
    )
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


def of_this_library(x, cache, w_q, w_k, w_v):
    cache = KVCache() if cache is None else cache
    q, k, v = ((x @ w)[None, None] for w in (w_q, w_k, w_v))
    return attention(q, **cache.append(k, v), is_causal=True)[0, 0], cache


@pytest.mark.parametrize(
    "function",
    [
        arrays_in_a_tuple,
        loops_and_a_list,
        einsum_and_a_dict,
        with_words_and_weights_kept_beside,
        with_room_for_more,
    ],
)
def test_a_right_step_gets_all_points(function):
    result = check(function, task="kv-cache")
    assert (result.passed, result.points) == (True, 10), str(result)
    assert (result.fragile, result.conventions) == ((), ())


def test_a_step_of_this_library_is_right_but_nobodys_own():
    result = check(of_this_library, task="kv-cache")
    assert (result.mistakes, result.points) == (("answered-by-library",), 0)


def test_what_was_not_tried_is_said():
    assert "no such parameter: positions" in check(loops_and_a_list, task="kv-cache").message
    assert "Not tried" not in check(arrays_in_a_tuple, task="kv-cache").message


def test_writing_to_the_cache_is_reported_without_penalty():
    said = "It writes to its cache"
    assert said in check(einsum_and_a_dict, task="kv-cache").message
    assert said not in check(arrays_in_a_tuple, task="kv-cache").message


def test_a_first_cache_other_than_none_is_reported():
    def wants_a_dict(x, cache, w_q, w_k, w_v):
        k, v = (
            cache.get("k", np.empty((0, w_k.shape[1]))),
            cache.get("v", np.empty((0, w_v.shape[1]))),
        )
        out, (k, v) = arrays_in_a_tuple(x, (k, v), w_q, w_k, w_v)
        return out, {"k": k, "v": v}

    result = check(wants_a_dict, task="kv-cache")
    assert (result.passed, result.points) == (True, 10)
    assert "The cache of its first call has to be {}" in result.message


# -- wrong answers --------------------------------------------------------------------------------


def joined(cache, k, v):
    return (
        (k, v) if cache is None else (np.concatenate([cache[0], k]), np.concatenate([cache[1], v]))
    )


def overwritten(x, cache, w_q, w_k, w_v):
    q, new = x @ w_q, (x @ w_k, x @ w_v)
    k, v = joined(cache, *new)
    return attend(q, k, v, sees(len(q), len(k))), new


def unused(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    return attend(q, k, v, sees(len(q), len(k))), joined(cache, k, v)


def twice(x, cache, w_q, w_k, w_v):
    q, new = x @ w_q, (x @ w_k, x @ w_v)
    k, v = joined(cache, *new)
    return attend(
        q, k, v, np.arange(len(k)) <= len(k) - len(q) + np.arange(len(q))[:, None]
    ), joined((k, v), *new)


def twice_at_first(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    k, v = joined(cache or (k, v), k, v)
    return attend(q, k, v, sees(len(q), len(k))), (k, v)


def not_transposed(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    visible = sees(len(q), len(k))
    return softmax(np.where(visible, q @ k / np.sqrt(q.shape[-1]), -np.inf)) @ v, (k, v)


def late(x, cache, w_q, w_k, w_v):
    q, new = x @ w_q, (x @ w_k, x @ w_v)
    k, v = new if cache is None else cache
    before = 0 if cache is None else len(cache[0])
    visible = np.arange(len(k)) <= before + np.arange(len(q))[:, None]
    return attend(q, k, v, visible), joined(cache, *new)


def without_mask(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return attend(q, k, v, True), (k, v)


def mask_from_the_start(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return attend(q, k, v, np.tri(len(q), len(k), dtype=bool)), (k, v)


def mask_without_the_diagonal(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return attend(q, k, v, np.tri(len(q), len(k), len(k) - len(q) - 1, dtype=bool)), (k, v)


def mask_one_ahead(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return attend(q, k, v, np.tri(len(q), len(k), len(k) - len(q) + 1, dtype=bool)), (k, v)


def in_front(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    if cache is not None:
        k, v = np.concatenate([k, cache[0]]), np.concatenate([v, cache[1]])
    return attend(q, k, v, sees(len(q), len(k))), (k, v)


def placed(rows):
    """Return a step that adds position vectors; rows(new, before, count) gives their indices.

    All other parts of the step are right.
    """

    def step(x, cache, w_q, w_k, w_v, positions=None):
        count, kept = (0, None) if cache is None else cache
        before = 0 if kept is None else len(kept[0])
        if positions is not None:
            x = x + positions[rows(len(x), before, count)]
        out, kept = arrays_in_a_tuple(x, kept, w_q, w_k, w_v)
        return out, (count + 1, kept)

    return step


restart = placed(lambda new, before, count: np.arange(new))
by_calls = placed(lambda new, before, count: count + np.arange(new))
from_one = placed(lambda new, before, count: before + 1 + np.arange(new))
after_counting = placed(lambda new, before, count: before + new + np.arange(new))
nowhere = placed(lambda new, before, count: [-1] * new)  # the last row of the table is zeros


def without_scale(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return softmax(np.where(sees(len(q), len(k)), q @ k.T, -np.inf)) @ v, (k, v)


def scaled_by_keys(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return softmax(np.where(sees(len(q), len(k)), q @ k.T / np.sqrt(len(k)), -np.inf)) @ v, (k, v)


def keys_alone(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    if cache is not None:
        k = np.concatenate([cache[0], k])
    return attend(q, k, v, sees(len(q), len(k))), (k, v)


def values_alone(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    if cache is not None:
        v = np.concatenate([cache[1], v])
    return attend(q, k, v, sees(len(q), len(k))), (k, v)


def summed(x, cache, w_q, w_k, w_v):
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    if cache is not None:
        k, v = cache[0] + k, cache[1] + v
    return attend(q, k, v, sees(len(q), len(k))), (k, v)


def mask_in_the_first_call(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return attend(q, k, v, np.tri(len(q), dtype=bool) if cache is None else True), (k, v)


def mask_but_in_the_first_call(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return attend(q, k, v, True if cache is None else sees(len(q), len(k))), (k, v)


def mask_of_a_row(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return attend(q, k, v, np.arange(len(k)) <= np.arange(len(k) - len(q), len(k))), (k, v)


def mask_after_two(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    before = 0 if cache is None else len(cache)
    return attend(q, k, v, np.arange(len(k)) <= before + np.arange(len(q))[:, None]), (k, v)


def mask_of_later_words(x, cache, w_q, w_k, w_v):
    q = x @ w_q
    k, v = joined(cache, x @ w_k, x @ w_v)
    return attend(q, k, v, ~np.tri(len(q), len(k), len(k) - len(q) - 1, dtype=bool)), (k, v)


def cache_as_it_came(x, cache, w_q, w_k, w_v):
    return arrays_in_a_tuple(x, cache, w_q, w_k, w_v)[0], cache


def right_for_one_word_alone(x, cache, w_q, w_k, w_v):
    out, cache = arrays_in_a_tuple(x, cache, w_q, w_k, w_v)
    return out[0], cache


def cache_first(x, cache, w_q, w_k, w_v):
    return arrays_in_a_tuple(x, cache, w_q, w_k, w_v)[::-1]


def three_things(x, cache, w_q, w_k, w_v):
    out, (k, v) = arrays_in_a_tuple(x, cache, w_q, w_k, w_v)
    return out, k, v


def all_words(x, cache, project):
    """Project every word of the text in every call."""
    before = 0 if cache is None else len(cache)
    x = x if cache is None else np.concatenate([cache, x])
    return attend(*project(x), np.tri(len(x), dtype=bool))[before:], x


def the_words_kept(x, cache, w_q, w_k, w_v):
    return all_words(x, cache, lambda x: (x @ w_q, x @ w_k, x @ w_v))


def the_words_kept_in_loops(x, cache, w_q, w_k, w_v):
    def project(x):
        return [
            np.array([[sum(row * column) for column in w.T] for row in x]) for w in (w_q, w_k, w_v)
        ]

    return all_words(x, cache, project)


def words_and_keys_kept(x, cache, w_q, w_k, w_v):
    words, k = (x, x @ w_k) if cache is None else cache
    if cache is not None:
        words, k = np.concatenate([words, x]), np.concatenate([k, x @ w_k])
    return attend(x @ w_q, k, words @ w_v, sees(len(x), len(k))), (words, k)


def words_and_values_kept(x, cache, w_q, w_k, w_v):
    words, v = (x, x @ w_v) if cache is None else cache
    if cache is not None:
        words, v = np.concatenate([words, x]), np.concatenate([v, x @ w_v])
    return attend(x @ w_q, words @ w_k, v, sees(len(x), len(v))), (words, v)


def into_one_buffer(x, cache, w_q, w_k, w_v):
    """Return the same array from each call."""
    out, cache = arrays_in_a_tuple(x, cache, w_q, w_k, w_v)
    BUFFER[: out.size] = out.ravel()
    return BUFFER[: out.size].reshape(out.shape), cache


BUFFER = np.empty(99)


def only_the_output(x, cache, w_q, w_k, w_v):
    return arrays_in_a_tuple(x, cache, w_q, w_k, w_v)[0]


@pytest.mark.parametrize(
    ("function", "key", "points"),
    [
        (overwritten, "cache-overwritten", 6),
        (unused, "cache-unused", 6),
        (twice, "cache-twice", 6),
        (twice_at_first, "cache-twice-at-first", 6),
        (late, "cache-late", 6),
        (not_transposed, "key-not-transposed", 6),  # two words of two numbers give no error
        (without_mask, "cache-no-mask", 6),
        (mask_from_the_start, "cache-mask-start", 6),
        (mask_without_the_diagonal, "cache-mask-diagonal", 6),
        (mask_one_ahead, "cache-mask-ahead", 6),
        (in_front, "cache-front", 6),
        (restart, "cache-positions-restart", 6),
        (by_calls, "cache-positions-calls", 6),
        (from_one, "cache-positions-off", 6),
        (after_counting, "cache-positions-off", 6),
        (nowhere, "cache-positions-ignored", 6),
        (without_scale, "no-scaling", 6),
        (scaled_by_keys, "scale-tokens", 6),
        (only_the_output, "cache-not-returned", 6),
        (three_things, "cache-not-returned", 6),
        (the_words_kept, "cache-recomputed", 6),
        (the_words_kept_in_loops, "cache-recomputed", 6),
        (words_and_keys_kept, "cache-recomputed", 6),
        (words_and_values_kept, "cache-recomputed", 6),
        (into_one_buffer, "output-overwritten", 6),
        (cache_first, "cache-first", 6),
        (mask_of_later_words, "cache-mask-upper", 6),
        (cache_as_it_came, "cache-not-filled", 6),
        (right_for_one_word_alone, "return-in-loop", 6),
        (keys_alone, "cache-one-of-two", 6),
        (values_alone, "cache-one-of-two", 6),
        (summed, "cache-summed", 6),
        (mask_in_the_first_call, "cache-mask-first-call", 6),
        (mask_but_in_the_first_call, "cache-mask-no-first", 6),
        (mask_of_a_row, "cache-mask-row", 6),
        (mask_after_two, "cache-counts-arrays", 6),
    ],
)
def test_a_mistake_is_told_by_its_name(function, key, points):
    result = check(function, task="kv-cache")
    assert result.mistakes == (key,), str(result)
    assert (result.points > 0, result.points < 9) == (points > 0, True)
    assert len(result.hint) == 3
    assert all(result.hint)


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


def test_caching_only_keys_is_named_beside_a_missing_mask():
    def step(x, cache, w_q, w_k, w_v):
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        if cache is not None:
            k = np.concatenate([cache[0], k])
        e = np.exp(q @ k.T / np.sqrt(q.shape[1]))
        return e / e.sum(axis=-1, keepdims=True) @ v, (k, v)

    result = check(step, task="kv-cache")
    assert {*result.mistakes} == {"cache-one-of-two", "cache-no-mask"}, str(result)


def test_wrong_returns_are_described_without_internal_names():
    result = check(three_things, task="kv-cache")
    nothing = check(lambda x, cache, w_q, w_k, w_v: None, task="kv-cache")
    assert "Error" not in f"{result} {nothing}"
    assert nothing.example["yours"] == "None, not (out, cache)"
    # the function returns the cache as two objects
    assert "cannot know the words of earlier calls" not in str(result)
    assert result.example["yours"] == "a tuple of 3, not (out, cache)"
    assert "cannot know the words of earlier calls" in str(check(only_the_output, task="kv-cache"))


def test_a_scale_by_the_width_of_x_points_to_the_scores():
    def step(x, cache, w_q, w_k, w_v):
        q = x @ w_q
        k, v = joined(cache, x @ w_k, x @ w_v)
        scores = np.where(sees(len(q), len(k)), q @ k.T / np.sqrt(x.shape[1]), -np.inf)
        return softmax(scores) @ v, (k, v)

    result = check(step, task="kv-cache")
    assert result.mistakes == ("scale-model-width",)
    assert "the line that computes the scores" in result.hint[1]


def test_an_unrelated_error_is_no_known_mistake():
    def calls_in_a_list(x, cache, w_q, w_k, w_v):
        cache = cache or ([], [])
        cache[0].append(x @ w_k)
        cache[1].append(x @ w_v)
        k, v = np.array(cache[0]), np.array(cache[1])  # (calls, n, d), not (T, d)
        return softmax(x @ w_q @ k.T) @ v, cache

    assert check(calls_in_a_list, task="kv-cache").mistakes == ("raises",)


def test_a_step_that_ends_the_program_is_told_so():
    def step(x, cache, w_q, w_k, w_v):
        raise SystemExit

    assert check(step, task="kv-cache").mistakes == ("exits",)


def test_two_mistakes_are_told_apart():
    def both(x, cache, w_q, w_k, w_v):
        q, new = x @ w_q, (x @ w_k, x @ w_v)
        k, v = joined(cache, *new)
        return softmax(np.where(sees(len(q), len(k)), q @ k.T, -np.inf)) @ v, new

    assert {*check(both, task="kv-cache").mistakes} == {"cache-overwritten", "no-scaling"}


def test_the_first_of_two_mistakes_is_the_one_in_the_example():
    def no_scale_no_mask(x, cache, w_q, w_k, w_v):
        k, v = joined(cache, x @ w_k, x @ w_v)
        return softmax(x @ w_q @ k.T) @ v, (k, v)

    result = check(no_scale_no_mask, task="kv-cache")
    assert result.mistakes == ("no-scaling", "cache-no-mask")
    assert result.example["the calls, in order"] == "x[0:1], x[1:2]"


def test_calls_with_several_words_separate_two_mistakes():
    def columns_no_mask(x, cache, w_q, w_k, w_v):  # with one query, all weights are 1
        q = x @ w_q
        k, v = joined(cache, x @ w_k, x @ w_v)
        return softmax((q @ k.T / np.sqrt(q.shape[1])).T).T @ v, (k, v)

    found = {*check(columns_no_mask, task="kv-cache").mistakes}
    assert found == {"softmax-columns", "cache-no-mask"}


def test_a_cache_outside_the_function_is_found_by_a_second_text():
    kept = []

    def step(x, cache, w_q, w_k, w_v):
        kept.extend(zip(x @ w_k, x @ w_v, strict=True))
        k, v = (np.array(rows) for rows in zip(*kept, strict=True))
        return attend(x @ w_q, k, v, sees(len(x), len(k))), kept

    result = check(step, task="kv-cache")
    assert result.mistakes == ("cache-shared",), str(result)
    assert np.allclose(result.example["yours the first time"], result.example["right"])


def test_softmax_without_maximum_is_fragile():
    def step(x, cache, w_q, w_k, w_v):
        q = x @ w_q
        k, v = joined(cache, x @ w_k, x @ w_v)
        e = np.where(sees(len(q), len(k)), np.exp(q @ k.T / np.sqrt(q.shape[1])), 0)
        return e / e.sum(axis=-1, keepdims=True) @ v, (k, v)

    result = check(step, task="kv-cache")
    assert (result.fragile, result.points) == (("softmax-no-max",), 9), str(result)


def test_the_example_has_the_smallest_failing_calls():
    example = check(mask_one_ahead, task="kv-cache").example
    assert example["the calls, in order"] == "x[0:2]"  # a call with one word has no later words
    whole = arrays_in_a_tuple(example["x"], None, *(example[w] for w in ("w_q", "w_k", "w_v")))[0]
    assert np.allclose(example["right"], whole)
    assert not np.allclose(example["yours"], whole)


def test_a_function_of_other_parameters_is_a_type_error():
    with pytest.raises(
        TypeError, match=r"check: <?[\w ]+>?\(x, cache, w_q, w_k, w_v\) is called, but"
    ):
        check(lambda x, cache: x, task="kv-cache")
