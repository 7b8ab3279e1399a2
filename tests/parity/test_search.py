"""Tests of `qkv.search` against the functions of sentence_transformers.util."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, util

import qkv
from qkv import search

from .test_sentence_transformers import TEXTS, write

RNG = np.random.default_rng(3)
CENTERS = RNG.standard_normal((9, 16))
# 180 vectors around 9 centers, so that groups have many sizes
VECTORS = (
    CENTERS[RNG.integers(0, 9, 180) ** 2 // 9] + 0.4 * RNG.standard_normal((180, 16))
).astype(np.float32)
NAMES = [name for name in search.__all__ if name not in ("cos_sim", "dot_score")]


@pytest.mark.parametrize("name", NAMES)
def test_the_signatures_are_equal(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(one, name)) for one in (search, util))
    assert [*ours.parameters] == [*theirs.parameters]
    for key, parameter in theirs.parameters.items():
        default = ours.parameters[key].default
        assert default == parameter.default or default is search.cos_sim
        assert key != "score_function" or parameter.default is util.cos_sim


def same_hits(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for some, others in zip(found, expected, strict=True):
        assert [hit["corpus_id"] for hit in some] == [hit["corpus_id"] for hit in others]
        scores = [[hit["score"] for hit in hits] for hits in (some, others)]
        np.testing.assert_allclose(*scores, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 3, "query_chunk_size": 7, "corpus_chunk_size": 11},
        {"top_k": 500, "corpus_chunk_size": 50},
        {"top_k": 1, "query_chunk_size": 1},
    ],
    ids=str,
)
def test_semantic_search(options: dict[str, Any], dtype: Any) -> None:
    queries, corpus = VECTORS[:20].astype(dtype), VECTORS[20:].astype(dtype)
    same_hits(
        search.semantic_search(queries, corpus, **options),
        util.semantic_search(queries, corpus, **options),
    )


def test_semantic_search_by_dot_product_and_of_tensors() -> None:
    queries, corpus = VECTORS[:20], VECTORS[20:]
    expected = util.semantic_search(queries, corpus, score_function=util.dot_score)
    for function in (search.dot_score, util.dot_score):
        score: Any = function
        if function is util.dot_score:
            score = lambda a, b: util.dot_score(a, b).numpy()  # noqa: E731
        same_hits(search.semantic_search(queries, corpus, score_function=score), expected)
    tensors = torch.from_numpy(queries), torch.from_numpy(corpus)
    same_hits(search.semantic_search(*tensors), util.semantic_search(*tensors))
    same_hits(search.semantic_search(queries[0], corpus), util.semantic_search(queries[0], corpus))
    assert search.semantic_search(queries, corpus[:0]) == util.semantic_search(queries, corpus[:0])


def same_pairs(found: Any, expected: Any) -> None:
    assert [pair[1:] for pair in found] == [pair[1:] for pair in expected]
    np.testing.assert_allclose(*([pair[0] for pair in x] for x in (found, expected)), atol=2e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 2},
        {"top_k": 5, "max_pairs": 37, "query_chunk_size": 13, "corpus_chunk_size": 17},
        {"max_pairs": 1},
    ],
    ids=str,
)
def test_pairs(options: dict[str, Any]) -> None:
    vectors = VECTORS.astype(np.float64)  # in float32, rounding changes the order of some pairs
    same_pairs(
        search.paraphrase_mining_embeddings(vectors, **options),
        util.paraphrase_mining_embeddings(torch.from_numpy(vectors), **options),
    )


@pytest.mark.parametrize("threshold", [0.6, 0.75, 0.9])
@pytest.mark.parametrize("least", [1, 2, 10, 60])
@pytest.mark.parametrize("batch_size", [1024, 7])
def test_communities(threshold: float, least: int, batch_size: int) -> None:
    options = {
        "threshold": threshold,
        "min_community_size": least,
        "batch_size": batch_size,
    }
    expected = util.community_detection(VECTORS, **options)
    assert search.community_detection(VECTORS, **options) == expected
    assert least == 60 or len(expected) > 1


def test_few_vectors_have_no_communities() -> None:
    for vectors in (VECTORS[:0], VECTORS[:3], []):
        assert search.community_detection(vectors) == util.community_detection(vectors) == []


def test_paraphrases_of_texts(tmp_path: Path) -> None:
    write(tmp_path, {"pooling_mode": "mean"}, prompts={"query": "w1 w2 "})
    model, other = qkv.load(tmp_path), SentenceTransformer(str(tmp_path), device="cpu")
    texts = [text for text in dict.fromkeys(TEXTS) if len(text.split()) < 12][:40]
    for options in ({}, {"top_k": 2, "prompt_name": "query"}, {"truncate_dim": 8, "max_pairs": 9}):
        same_pairs(
            search.paraphrase_mining(model, texts, **options),
            util.paraphrase_mining(other, texts, **options),
        )
