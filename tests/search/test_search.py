"""Tests of `qkv.search` by hand arithmetic, and of its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qkv
from qkv import search

CORPUS = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [-1.0, 0.0]]


def test_hits_are_sorted_by_the_cosine_or_by_another_score() -> None:
    [hits] = search.semantic_search([2.0, 0.0], CORPUS)
    assert [(hit["corpus_id"], round(hit["score"], 6)) for hit in hits] == [
        *((0, 1.0), (2, 0.6), (1, 0.0), (3, -1.0))
    ]
    [hits] = search.semantic_search([2.0, 0.0], CORPUS, top_k=1, score_function=search.dot_score)
    assert hits == [{"corpus_id": 2, "score": 6.0}]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_equal_scores_are_in_the_order_of_the_corpus(chunk: int) -> None:
    corpus = np.ones((9, 2))
    [hits] = search.semantic_search([1, 1], corpus, corpus_chunk_size=chunk)
    assert [hit["corpus_id"] for hit in hits] == [*range(9)]
    assert search.semantic_search(np.empty((0, 2)), corpus) == []


def test_each_pair_is_found_once() -> None:
    pairs = search.paraphrase_mining_embeddings(CORPUS, query_chunk_size=1, corpus_chunk_size=2)
    found = {(i, j): round(score, 6) for score, i, j in pairs}
    assert found == {
        **{(1, 2): 0.8, (0, 2): 0.6, (0, 1): 0.0, (1, 3): 0.0},
        **{(2, 3): -0.6, (0, 3): -1.0},
    }
    assert len(pairs) == 6
    best = search.paraphrase_mining_embeddings(CORPUS, max_pairs=2)
    assert [pair[1:] for pair in best] == [[1, 2], [0, 2]]


def test_a_vector_that_is_not_among_its_own_best_gets_no_further_pair() -> None:
    pairs = search.paraphrase_mining_embeddings(
        [[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]], top_k=1, score_function=search.dot_score
    )
    assert pairs == [[6.0, 1, 2], [3.0, 0, 1]]


def test_inputs_do_not_change() -> None:
    vectors = np.random.default_rng(0).standard_normal((20, 4))
    before = vectors.copy()
    search.semantic_search(vectors, vectors)
    search.paraphrase_mining_embeddings(vectors)
    search.community_detection(vectors, min_community_size=2)
    np.testing.assert_array_equal(vectors, before)


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    (
        "semantic_search",
        ([[1.0]], CORPUS),
        {},
        r"queries have shape \(1, 1\) and the corpus has shape \(4, 2\)",
    ),
    ("semantic_search", ("a", CORPUS), {}, "query_embeddings"),
    (
        "semantic_search",
        (CORPUS, np.zeros((2, 2, 2))),
        {},
        r"corpus_embeddings has shape \(2, 2, 2\)",
    ),
    ("semantic_search", (CORPUS, CORPUS), {"top_k": 0}, "top_k is 0"),
    ("semantic_search", (CORPUS, CORPUS), {"query_chunk_size": 0}, "query_chunk_size is 0"),
    (
        "semantic_search",
        (CORPUS, CORPUS),
        {"score_function": lambda a, b: a},
        r"score_function returned \(4, 2\): it must return \(4, 4\)",
    ),
    ("paraphrase_mining_embeddings", (CORPUS,), {"max_pairs": 0}, "max_pairs is 0"),
    ("community_detection", (CORPUS,), {"min_community_size": 0}, "min_community_size is 0"),
    ("community_detection", (["a", "b"],), {}, "embeddings"),
]


@pytest.mark.parametrize(
    ("name", "given", "options", "words"), WRONG, ids=[f"{row[0]}-{row[3]}" for row in WRONG]
)
def test_errors(name: str, given: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{name}: .*{words}"):
        getattr(qkv.search, name)(*given, **options)
