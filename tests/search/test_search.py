"""Tests of `semantic_search` by hand arithmetic, and of its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qkv.search import semantic_search

CORPUS = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [-1.0, 0.0]]


def test_hits_are_sorted_by_the_cosine_or_by_another_score() -> None:
    [hits] = semantic_search([2.0, 0.0], CORPUS)
    assert [(hit["corpus_id"], round(hit["score"], 6)) for hit in hits] == [
        *((0, 1.0), (2, 0.6), (1, 0.0), (3, -1.0))
    ]
    [hits] = semantic_search([2.0, 0.0], CORPUS, top_k=1, score_function=lambda a, b: a @ b.T)
    assert hits == [{"corpus_id": 2, "score": 6.0}]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_equal_scores_are_in_the_order_of_the_corpus(chunk: int) -> None:
    corpus = np.ones((9, 2))
    [hits] = semantic_search([1, 1], corpus, corpus_chunk_size=chunk)
    assert [hit["corpus_id"] for hit in hits] == [*range(9)]
    assert semantic_search(np.empty((0, 2)), corpus) == []


def test_inputs_do_not_change() -> None:
    vectors = np.random.default_rng(0).standard_normal((20, 4))
    before = vectors.copy()
    semantic_search(vectors, vectors)
    np.testing.assert_array_equal(vectors, before)


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (([[1.0]], CORPUS), {}, r"queries have shape \(1, 1\) and the corpus has shape \(4, 2\)"),
    (("a", CORPUS), {}, "query_embeddings"),
    ((CORPUS, ["a", "b"]), {}, "corpus_embeddings"),
    ((CORPUS, np.zeros((2, 2, 2))), {}, r"corpus_embeddings has shape \(2, 2, 2\)"),
    ((CORPUS, CORPUS), {"top_k": 0}, "top_k is 0"),
    ((CORPUS, CORPUS), {"query_chunk_size": 0}, "query_chunk_size is 0"),
    (
        (CORPUS, CORPUS),
        {"score_function": lambda a, b: a},
        r"score_function returned \(4, 2\): it must return \(4, 4\)",
    ),
]


@pytest.mark.parametrize(("given", "options", "words"), WRONG, ids=[row[2] for row in WRONG])
def test_errors(given: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^semantic_search: .*{words}"):
        semantic_search(*given, **options)
