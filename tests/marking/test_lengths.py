"""Tests of `check` on functions that are right only for some numbers of queries and keys."""

import numpy as np
import pytest

from qkv_marking import check

from .formulas import plain, scaled, softmax


def tiled(
    size,
    *,
    whole=False,
    total=True,
    out=True,
    keeps=True,
    of=lambda q, k: len(k),
    first=-np.inf,
    largest=np.maximum,
):
    """Return attention in blocks of keys; each argument can plant one mistake."""

    def function(q, k, v):
        m, sums, sofar = np.full((len(q), 1), first), 0.0, 0.0
        end = max(size, of(q, k) // size * size) if whole else of(q, k)
        for at in range(0, end, size):
            scores = q @ k[at : at + size].T / np.sqrt(q.shape[-1])
            new = largest(m, scores.max(axis=-1, keepdims=True))
            factor, powers = np.exp(m - new), np.exp(scores - new)
            sums = sums * (factor if total else 1) + powers.sum(axis=-1, keepdims=True)
            sofar = sofar * (factor if out else 1) + powers @ v[at : at + size]
            m = new if keeps else m
        return sofar / sums

    return function


def text_by_text(one):
    """Return a function that calls `one` for each text of a batch."""

    def function(q, k, v):
        if q.ndim == 2:
            return one(q, k, v)
        return np.stack([one(*text) for text in zip(q, k, v, strict=True)])

    return function


@pytest.mark.parametrize("size", [1, 2, 3, 4, 64, 128, 500])
def test_blocks_of_keys_that_are_right_pass(size):
    result = check(text_by_text(tiled(size)))
    assert result.points == 10, str(result)
    assert "131 keys and 131 queries, scores of 1000 and 2000 for 131 keys" in result.message


@pytest.mark.parametrize("size", [2, 3, 4, 16, 64, 128])
@pytest.mark.parametrize(
    "wrong", [{"whole": True}, {"total": False}, {"out": False}, {"keeps": False}]
)
def test_mistakes_of_the_second_block_are_reported_by_length(size, wrong):
    result = check(tiled(size, **wrong))
    assert result.mistakes == ("some-lengths",), str(result)
    assert "number of keys equals the number of queries" not in str(result)
    # the last block has a single key
    assert len(result.example["key"]) == max(3, size + 1)
    assert "blocks" in result.hint[1]
    assert "factor" not in result.text(2)


@pytest.mark.parametrize("size", [2, 3, 16, 64, 128])
def test_a_maximum_that_the_next_block_forgets_is_fragile(size):
    result = check(text_by_text(tiled(size, largest=lambda m, new: new)))
    assert (result.passed, result.fragile, result.points) == (True, ("maximum-forgotten",), 9)
    # The example has as few keys as possible. For the first query, the first block contains scores
    # of 2000, and the last block has only scores of 1000. With fewer keys, there would be only one
    # block.
    assert (result.example["key"][size:] == 1).all()
    assert np.isnan(result.example["yours"]).tolist() == [[True], [False]]
    # the keys with score 2000 have the values 0, 1, ...
    twos = (len(result.example["key"]) + 1) // 2
    assert np.allclose(result.example["right"][0], (twos - 1) / 2)
    assert "np.maximum" not in result.text(2)


@pytest.mark.parametrize("size", [1, 2, 64, 500])
def test_a_maximum_that_begins_at_0_is_fragile(size):
    result = check(text_by_text(tiled(size, first=0.0)))
    assert (result.passed, result.fragile, result.points) == (True, ("maximum-from-zero",), 9)
    assert np.isnan(result.example["yours"]).tolist() == [[False], [True]]
    assert len(result.example["key"]) == 2
    assert "inf" not in result.text(2)


def test_unexplained_failures_at_large_scores_are_fragile():
    def function(q, k, v):
        return tiled(500)(q, k, v) + np.abs(k[2:]).sum() * (np.abs(q) == 1000).any()

    result = check(text_by_text(function))
    assert (result.fragile, result.points) == (("large-scores",), 9)
    assert len(result.example["key"]) == 3


@pytest.mark.parametrize(("size", "d"), [(1.414213562, 2), (2.0, 4), (8.0, 64)])
def test_a_fixed_scale_is_named_and_leaves_points(size, d):
    def function(q, k, v):
        return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(d)) @ v

    result = check(function)
    assert (result.mistakes, result.points < 9) == (("scale-wrong",), True)
    assert f"divided by {size:.4g} for every size d" in result.message
    assert "q.shape[-1]" not in result.text(2)


def test_an_explained_mistake_at_three_words_leaves_points():
    result = check(tiled(2, whole=True))
    assert (result.mistakes, result.points < 9) == (("some-lengths",), True)


def test_the_lengths_that_are_right_are_told_once_each():
    said = check(tiled(2, out=False)).message
    assert "right for 1 x 2, 3 x 2, 2 x 2 (queries x keys) and wrong for 2 x 3" in said


def test_blocks_that_count_queries_are_wrong_for_more_keys():
    result = check(tiled(1, of=lambda q, k: len(q)))
    assert result.mistakes == ("square-only",)


def test_fixed_sizes_beyond_the_first_few_are_found():
    def function(q, k, v):
        weights = np.zeros((10, 10))
        weights[: len(q), : len(k)] = softmax(scaled(q, k))
        return weights[: len(q), : len(k)] @ v

    result = check(function)
    assert result.mistakes == ("some-lengths",)
    assert len(result.example["key"]) == 11
    assert "ValueError: could not broadcast" in result.message


def test_many_queries_are_tried_too():
    def function(q, k, v):
        scores = scaled(q, k)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        e[20:] *= e[20:] > 0.5
        return e / e.sum(axis=-1, keepdims=True) @ v

    result = check(function)
    assert result.mistakes == ("some-lengths",)
    assert (len(result.example["query"]), len(result.example["key"])) == (21, 2)


def test_a_mistake_for_queries_of_size_1_is_unknown():
    def function(q, k, v):
        return plain(q, k, v) + (q.shape[-1] == 1)

    assert check(function).mistakes == ("unknown",)


def test_an_example_of_many_rows_is_printed_in_part():
    text = check(tiled(64, out=False)).text(0)
    assert "...," not in text
    assert " ...\n" in text
    assert len(text.splitlines()) < 40
