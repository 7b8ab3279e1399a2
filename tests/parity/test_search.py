"""Tests of `semantic_search` against that of sentence_transformers.util."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import util

from qkv import search

RNG = np.random.default_rng(3)
CENTERS = RNG.standard_normal((9, 16))
# 180 vectors around 9 centers, so that groups have many sizes
VECTORS = (
    CENTERS[RNG.integers(0, 9, 180) ** 2 // 9] + 0.4 * RNG.standard_normal((180, 16))
).astype(np.float32)


def test_the_signatures_are_equal() -> None:
    ours, theirs = (inspect.signature(one.semantic_search).parameters for one in (search, util))
    assert [*ours] == [*theirs]
    for name, parameter in theirs.items():
        if name == "score_function":
            assert (ours[name].default.__name__, parameter.default) == ("cos_sim", util.cos_sim)
        else:
            assert ours[name].default == parameter.default


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
    for score in (lambda a, b: a @ b.T, lambda a, b: util.dot_score(a, b).numpy()):
        same_hits(search.semantic_search(queries, corpus, score_function=score), expected)
    tensors = torch.from_numpy(queries), torch.from_numpy(corpus)
    same_hits(search.semantic_search(*tensors), util.semantic_search(*tensors))
    same_hits(search.semantic_search(queries[0], corpus), util.semantic_search(queries[0], corpus))
    assert search.semantic_search(queries, corpus[:0]) == util.semantic_search(queries, corpus[:0])
