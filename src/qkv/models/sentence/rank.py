"""Compare vectors, and score pairs of texts: `similarity`, `rank`, `predict` of a cross-encoder."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qkv.arrays import ArrayLike, whole_number
from qkv.attend import softmax
from qkv.extras import need
from qkv.models.core import Core
from qkv.models.run.inputs import check_device
from qkv.models.sentence import vectors
from qkv.models.sentence.ranker import Ranker, best, need_ranking
from qkv.progress import progress
from qkv.text.tokenizer import check_text, check_texts


def similarity(model: Core, a: ArrayLike, b: ArrayLike) -> Any:
    """Return the similarity of each vector of `a` to each vector of `b`: larger is more similar.

    The measure, `similarity_fn_name`, is the cosine unless the model's files name another: the dot
    product, or the negative Euclidean or Manhattan distance.

    Args:
        a: (n, D), or (D,) for one vector.
        b: (m, D), or (D,) for one vector.

    Returns:
        (n, m), float64 if either input is float64, otherwise float32.
        If either input is a torch tensor, the result is a torch tensor.

    Raises:
        TypeError: `a` or `b` does not hold numbers.
        ValueError: `a` or `b` has the wrong shape.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> vectors = model.encode(["I love you", "the cat sat", "I love you"])
    >>> model.similarity(vectors[0], vectors).round(4)[0, [0, 2]].tolist()
    [1.0, 1.0]
    """
    return vectors.as_given(vectors.similarity(a, b, model.sentence.similarity), a, b)


def similarity_pairwise(model: Core, a: ArrayLike, b: ArrayLike) -> Any:
    """Return the similarity of each vector of `a` to the vector of `b` at the same index.

    Args:
        a: (n, D), or (D,) for one vector.
        b: (n, D), or (D,) for one vector.

    Returns:
        (n,), float64 if either input is float64, otherwise float32.
        If either input is a torch tensor, the result is a torch tensor.

    Raises:
        TypeError: `a` or `b` does not hold numbers.
        ValueError: `a` or `b` has the wrong shape.

    >>> import qkv
    >>> vectors = qkv.load("random").encode(["I love you", "the cat sat"])
    >>> qkv.load("random").similarity_pairwise(vectors, vectors).round(4).tolist()
    [1.0, 1.0]
    """
    return vectors.as_given(vectors.similarity_pairwise(a, b, model.sentence.similarity), a, b)


def rank(
    model: Core,
    query: str,
    documents: Iterable[str],
    top_k: int | None = None,
    return_documents: bool = False,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
    activation_fn: Any = None,
    device: Any = None,
) -> list[dict[str, Any]]:
    """Rank documents by how well they answer a query; the model must be a cross-encoder.

    If a query and a document together have more tokens than `max_seq_length`, the longer text is
    cut first.

    Args:
        query: the question.
        documents: texts that may answer the query.
        top_k: the number of documents to return; None returns all.
        return_documents: whether the results include the documents' texts.
        prompt_name: the name of the prompt before the query, as in `encode`.
        prompt: the text of a prompt, instead of `prompt_name`.
        batch_size: the number of pairs per batch if each pair has 128 tokens, as in `encode`.
        show_progress_bar: as in `encode`.
        activation_fn: applied to the logits: a function of an array, or one of torch.nn's
            activations; None for the activation in the model's files, or else a sigmoid.
        device: None or "cpu".

    Returns:
        One dict per document, the best first; documents with equal scores keep their order.
        "corpus_id" is the index of the document, and "score" is the score of the pair.
        "text" is the document; this key exists only with `return_documents`.

    Raises:
        TypeError: a text is not a string.
        ValueError: the model does not rank, the query has no token, or an argument is invalid.

    Source:
        Nogueira and Cho 2019, "Passage Re-ranking with BERT".

    >>> import qkv
    >>> qkv.load("random").rank("a river", ["the bank", "the sun"])
    Traceback (most recent call last):
    ValueError: rank: random has no head and does not rank: ...
    """
    check_device(device, "rank")
    scorer = ranker(model, prompt_name, prompt, activation_fn)
    check_text(query, call="rank", name="query")
    texts = check_texts(documents, call="rank")
    batch_size = whole_number(batch_size, call="rank", name="batch_size", least=1)
    if top_k is not None:
        top_k = whole_number(top_k, call="rank", name="top_k", least=1)
    pairs = scorer.pairs(query, texts)
    with progress("rank", len(pairs), show_progress_bar) as advance:
        scores = scorer.all(pairs, batch_size, advance)
    scorer.warn(pairs)
    return best(scores, texts, top_k, return_documents)


def ranker(
    model: Core,
    prompt_name: str | None = None,
    prompt: str | None = None,
    activation_fn: Any = None,
) -> Ranker:
    """Return the `Ranker` of `rank`, for a caller that ranks documents of several users together.

    Args:
        model: the model.
        prompt_name: as in `rank`.
        prompt: as in `rank`.
        activation_fn: as in `rank`.

    Raises:
        TypeError: as in `rank`.
        ValueError: the model does not rank, or has no tokenizer; as in `rank`.
    """
    need_ranking(model.head, model.name)
    return Ranker(model, "rank", prompt_name, prompt, activation_fn)


def predict_pairs(
    model: Core,
    inputs: Sequence[str] | Iterable[Sequence[str]],
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
    activation_fn: Any = None,
    apply_softmax: bool = False,
    convert_to_numpy: bool = True,
    convert_to_tensor: bool = False,
    device: Any = None,
) -> Any:
    """Return a score for each pair of texts, or a score for each pair and class.

    Args:
        inputs: pairs of texts, or one pair.
        prompt_name: the name of the prompt before the first text of each pair, as in `encode`.
        prompt: the text of a prompt, instead of `prompt_name`.
        batch_size: the number of pairs per batch if each pair has 128 tokens.
        show_progress_bar: as in `encode`.
        activation_fn: applied to the logits: a function of an array, or one of torch.nn's
            activations; None for the activation in the model's files, or else a sigmoid for a
            single class.
        apply_softmax: whether to apply a softmax to the scores of several classes.
        convert_to_numpy: False for a list of torch tensors, one per pair.
        convert_to_tensor: True for one torch tensor.
        device: None or "cpu".

    Returns:
        (n,), or (n, C) for C classes; for one pair, a number or (C,).
        The type is float32, or float64 for a float64 model.

    Raises:
        TypeError: the inputs are not pairs of strings.
        ValueError: no text has a token, or an argument is invalid.
        ImportError: the result should be tensors, but torch is not installed.
    """
    check_device(device, "predict")
    tensors = convert_to_tensor or not convert_to_numpy
    torch = need("torch", "torch") if tensors else None
    batch_size = whole_number(batch_size, call="predict", name="batch_size", least=1)
    single, pairs = _checked_pairs(inputs)
    scorer = Ranker(model, "predict", prompt_name, prompt, activation_fn)
    scores = np.empty((0,) if scorer.classes == 1 else (0, scorer.classes))
    if pairs:
        read = scorer.each(*zip(*pairs, strict=True))
        with progress("predict", len(read), show_progress_bar) as advance:
            scores = scorer.all(read, batch_size, advance)
        scorer.warn(read, "pairs")
    if apply_softmax and scorer.classes > 1:
        scores = softmax(scores)
    scores = scores.astype(model.network.dtype, copy=False)
    if torch is not None:
        scores = vectors.as_tensors(scores, torch, joined=convert_to_tensor)
    return scores[0] if single else scores


def _checked_pairs(inputs: Any) -> tuple[bool, list[tuple[str, str]]]:
    """Return `(single, pairs)`: `single` is True for one pair; `pairs` is always a list."""
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
        raise TypeError(
            f"predict: inputs is {type(inputs).__name__}: this model reads two texts together: "
            "give pairs of strings, or one pair"
        )
    rows = [*inputs]
    single = len(rows) == 2 and all(isinstance(row, str) for row in rows)
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate([rows] if single else rows):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray) or len(row) != 2:
            count = len(row) if isinstance(row, list | tuple | np.ndarray) else 0
            about = f"{type(row).__name__}{f' of {count}' if count else ''}"
            raise TypeError(f"predict: pair {number} is {about}: give two strings")
        first, second = (check_text(text, call="predict", name=f"pair {number}") for text in row)
        pairs.append((first, second))
    return single, pairs
