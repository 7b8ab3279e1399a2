"""`semantic_search`, as in `sentence_transformers.util`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, ArrayLike, as_array, is_float, whole_number
from qkv.models.network.pooling import to_length_one
from qkv.ops.linear import multiply

Score = Callable[[Any, Any], Any]


def cos_sim(a: Array, b: Array) -> Array:
    """Return the cosines (n, m) of each vector of `a` (n, D) with each vector of `b` (m, D)."""
    return multiply(to_length_one(a), to_length_one(b).T)


@public_call("semantic_search")
def semantic_search(
    query_embeddings: ArrayLike,
    corpus_embeddings: ArrayLike,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500000,
    top_k: int = 10,
    score_function: Score = cos_sim,
) -> list[list[dict[str, Any]]]:
    """Find the vectors that are most similar to each query.

    Args:
        query_embeddings: (n, D), or (D,) for one query.
        corpus_embeddings: (m, D), the vectors to search.
        query_chunk_size: the number of queries that are compared at once.
        corpus_chunk_size: the number of vectors of the corpus that are compared at once.
        top_k: the number of results per query.
        score_function: a function of (n, D) and (m, D) that returns scores (n, m); by default, the
            scores are cosines.

    Returns:
        For each query, a list of dicts, best first. "corpus_id" is the index of the vector, and
        "score" is its score. Vectors with equal scores are in the order of the corpus.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has the wrong shape or value.

    >>> corpus = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
    >>> semantic_search([0.0, 2.0], corpus, top_k=1)
    [[{'corpus_id': 1, 'score': 1.0}]]
    """
    queries = _vectors(query_embeddings, "query_embeddings")
    corpus = _vectors(corpus_embeddings, "corpus_embeddings")
    if len(queries) and len(corpus) and queries.shape[1] != corpus.shape[1]:
        raise value_error(
            f"queries have shape {queries.shape} and the corpus has shape {corpus.shape}; "
            "pass vectors of the same model"
        )
    at_once = whole_number(query_chunk_size, name="query_chunk_size", least=1)
    top_k = whole_number(top_k, name="top_k", least=1)
    size = whole_number(corpus_chunk_size, name="corpus_chunk_size", least=1)
    found: list[list[dict[str, Any]]] = []
    for start in range(0, len(queries), at_once):
        for indices, scores in _nearest(
            queries[start : start + at_once], corpus, size, top_k, score_function
        ):
            pairs = zip(indices.tolist(), scores.tolist(), strict=True)
            found.append([{"corpus_id": index, "score": score} for index, score in pairs])
    return found


def _nearest(
    queries: Array, corpus: Array, size: int, top_k: int, score: Score
) -> list[tuple[Array, Array]]:
    """Return `(indices, scores)` of the best vectors of the corpus for each query, best first.

    The queries are compared with `size` vectors at a time.
    """
    indices: Array = np.empty((len(queries), 0), np.int64)
    best: Array = np.empty((len(queries), 0))
    for start in range(0, len(corpus), size):
        part = corpus[start : start + size]
        scores = as_array(score(queries, part), name="the result of score_function")
        if scores.shape != (len(queries), len(part)):
            shape = f"({len(queries)}, {len(part)})"
            raise value_error(f"score_function returned {scores.shape}: it must return {shape}")
        some = _top(scores, top_k)
        indices = np.hstack([indices, some + start])
        best = np.hstack([best, np.take_along_axis(scores, some, 1)])
        order = np.argsort(-best, axis=1, kind="stable")[:, :top_k]
        indices = np.take_along_axis(indices, order, 1)
        best = np.take_along_axis(best, order, 1)
    return [*zip(indices, best, strict=True)]


def _top(scores: Array, count: int) -> Array:
    """Return the columns of the `count` largest scores of each row, in ascending order."""
    if count >= scores.shape[1]:
        return np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    return np.sort(np.argpartition(-scores, count - 1, axis=1)[:, :count], axis=1)


def _vectors(given: Any, name: str) -> Array:
    """Return vectors as (n, D) float32 or float64; a single vector becomes (1, D)."""
    vectors = as_array(given, name=name)
    if vectors.dtype.kind not in "iu" and not is_float(vectors.dtype):
        raise type_error(f"{name} is {vectors.dtype}; pass vectors of numbers")
    if vectors.ndim == 1:
        vectors = vectors.reshape(min(len(vectors), 1), len(vectors))
    if vectors.ndim != 2:
        raise value_error(f"{name} has shape {vectors.shape}; pass (n, D)")
    wide = np.float64 if vectors.dtype == np.float64 else np.float32
    return vectors.astype(wide, copy=False)
