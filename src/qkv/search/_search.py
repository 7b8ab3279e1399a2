"""Search, pair and group vectors of texts, like the functions of `sentence_transformers.util`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv._progress import progress
from qkv.arrays import Array, ArrayLike, as_array, is_float, whole_number
from qkv.models.network.pooling import to_length_one
from qkv.ops.linear import multiply

Score = Callable[[Any, Any], Any]


@public_call("cos_sim")
def cos_sim(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the cosines (n, m) of each vector of `a` (n, D) with each vector of `b` (m, D).

    >>> cos_sim([[3.0, 4.0]], [[6.0, 8.0], [-3.0, -4.0]]).round(6).tolist()
    [[1.0, -1.0]]
    """
    first, second = _vectors(a, "a"), _vectors(b, "b")
    return multiply(to_length_one(first), to_length_one(second).T)


@public_call("dot_score")
def dot_score(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the dot products (n, m) of each vector of `a` (n, D) with each vector of `b` (m, D).

    >>> dot_score([3.0, 4.0], [[6.0, 8.0]]).tolist()
    [[50.0]]
    """
    return multiply(_vectors(a, "a"), _vectors(b, "b").T)


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
        score_function: a function of (n, D) and (m, D) that returns scores (n, m).

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


@public_call("paraphrase_mining")
def paraphrase_mining(
    model: Any,
    sentences: Sequence[str],
    show_progress_bar: bool = False,
    batch_size: int = 32,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100000,
    max_pairs: int = 500000,
    top_k: int = 100,
    score_function: Score = cos_sim,
    truncate_dim: int | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
) -> list[list[float | int]]:
    """Find the most similar pairs of texts.

    Args:
        model: a model with an `encode` method.
        sentences: the texts.
        show_progress_bar: as in `Model.encode`.
        batch_size: as in `Model.encode`.
        query_chunk_size: as in `paraphrase_mining_embeddings`.
        corpus_chunk_size: as in `paraphrase_mining_embeddings`.
        max_pairs: the maximum number of pairs.
        top_k: the number of other texts with which each text is paired.
        score_function: a function of (n, D) and (m, D) that returns scores (n, m).
        truncate_dim: as in `Model.encode`.
        prompt_name: as in `Model.encode`.
        prompt: as in `Model.encode`.

    Returns:
        A list of `[score, i, j]` with `i < j`, best first.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has an invalid value.

    >>> import qkv
    >>> [[score, i, j]] = paraphrase_mining(qkv.load("random"), ["a cat", "a dog"])
    >>> i, j
    (0, 1)
    """
    embeddings = model.encode(
        sentences,
        show_progress_bar=show_progress_bar,
        batch_size=batch_size,
        truncate_dim=truncate_dim,
        prompt_name=prompt_name,
        prompt=prompt,
    )
    return paraphrase_mining_embeddings(
        embeddings,
        query_chunk_size=query_chunk_size,
        corpus_chunk_size=corpus_chunk_size,
        max_pairs=max_pairs,
        top_k=top_k,
        score_function=score_function,
    )


@public_call("paraphrase_mining_embeddings")
def paraphrase_mining_embeddings(
    embeddings: ArrayLike,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100000,
    max_pairs: int = 500000,
    top_k: int = 100,
    score_function: Score = cos_sim,
) -> list[list[float | int]]:
    """Find the most similar pairs of vectors.

    Args:
        embeddings: (n, D).
        query_chunk_size: the number of vectors whose pairs are found at once.
        corpus_chunk_size: the number of vectors that are compared at once with `query_chunk_size`
            vectors.
        max_pairs: the maximum number of pairs.
        top_k: the number of other vectors with which each vector is paired.
        score_function: a symmetric function of (n, D) and (m, D) that returns scores (n, m).

    Returns:
        A list of `[score, i, j]` with `i < j`, best first.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has the wrong shape or value.

    >>> paraphrase_mining_embeddings([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]], max_pairs=1)
    [[1.0, 1, 2]]
    """
    vectors = _vectors(embeddings, "embeddings")
    at_once = whole_number(query_chunk_size, name="query_chunk_size", least=1)
    size = whole_number(corpus_chunk_size, name="corpus_chunk_size", least=1)
    max_pairs = whole_number(max_pairs, name="max_pairs", least=1)
    top_k = whole_number(top_k, name="top_k", least=1)
    scores, keys, count = np.empty(0), np.empty(0, np.int64), max(len(vectors), 1)
    for start in range(0, len(vectors), at_once):
        part = vectors[start : start + at_once]
        all_keys, all_scores = [keys], [scores]
        for number, (others, found) in enumerate(
            _nearest(part, vectors, size, top_k + 1, score_function), start
        ):
            kept = np.flatnonzero(others != number)[:top_k]
            others = others[kept]
            all_keys.append(np.minimum(others, number) * count + np.maximum(others, number))
            all_scores.append(found[kept])
        keys, first = np.unique(np.concatenate(all_keys), return_index=True)
        scores = np.concatenate(all_scores)[first]
        order = np.argsort(-scores, kind="stable")[:max_pairs]
        keys, scores = keys[order], scores[order]
    pairs = zip(scores.tolist(), keys.tolist(), strict=True)
    return [[score, *divmod(key, count)] for score, key in pairs]


@public_call("community_detection")
def community_detection(
    embeddings: ArrayLike,
    threshold: float = 0.75,
    min_community_size: int = 10,
    batch_size: int = 1024,
    show_progress_bar: bool = False,
) -> list[list[int]]:
    """Find groups of vectors that are similar to a central vector.

    Args:
        embeddings: (n, D).
        threshold: the minimum cosine between each vector of a group and the group's central vector.
        min_community_size: the minimum number of vectors in a group, including the central vector.
        batch_size: the number of vectors that are compared at once with all vectors.
        show_progress_bar: as in `Model.encode`.

    Returns:
        The groups, largest first. No vector is in more than one group. A group is a list
        of indices: the central vector, then the other vectors, most similar first.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has the wrong shape or value.

    >>> vectors = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.9, 0.1]]
    >>> community_detection(vectors, min_community_size=2)
    [[0, 2, 3]]
    """
    vectors = to_length_one(_vectors(embeddings, "embeddings"))
    least = whole_number(min_community_size, name="min_community_size", least=1)
    batch_size = whole_number(batch_size, name="batch_size", least=1)
    limit = np.float32(threshold)
    groups: list[tuple[int, Array]] = []
    with progress("group", len(vectors), show_progress_bar) as advance:
        for start in range(0, len(vectors), batch_size):
            scores = multiply(vectors[start : start + batch_size], vectors.T)
            close = scores >= limit
            for row in np.flatnonzero(close.sum(1) >= least).tolist():
                members = np.flatnonzero(close[row])
                order = np.argsort(-scores[row, members], kind="stable")
                groups.append((start + row, members[order]))
            advance(len(scores))
    groups.sort(key=lambda group: -len(group[1]))
    apart, used = list[list[int]](), np.zeros(len(vectors), bool)
    for center, members in groups:
        free = members[~used[members]]
        if not used[center] and len(free) >= least:
            group = [center, *free[free != center].tolist()]
            used[group] = True
            apart.append(group)
    return sorted(apart, key=len, reverse=True)


def _nearest(
    queries: Array, corpus: Array, size: int, top_k: int, score: Score
) -> list[tuple[Array, Array]]:
    """Return `(indices, scores)` of the best vectors of the corpus for each query, best first.

    The queries are compared with `size` vectors at a time.
    """
    indices: Array = np.empty((len(queries), 0), np.int64)
    best: Array = np.empty((len(queries), 0))
    if score is cos_sim:
        queries = to_length_one(queries)
    for start in range(0, len(corpus), size):
        part = corpus[start : start + size]
        if score is cos_sim:
            scores = multiply(queries, to_length_one(part).T)
        else:
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
