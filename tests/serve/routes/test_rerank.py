"""Tests of `POST /v1/rerank` with a model that ranks, against `model.rank`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import qkv
from qkv.models.sentence.rank import Frame, Ranker

from ..conftest import app_client, refused

QUERY = "the cat sat"
DOCUMENTS = ["a dog ran .", "the river bank", "", "a mat", "on the bank"] * 8
Served = tuple[qkv.Model, TestClient]


@pytest.fixture(scope="module")
def served(ranker: qkv.Model) -> Iterator[Served]:
    with app_client(ranker, inputs=64, tokens=550, batch_tokens=40) as client:
        yield ranker, client


def asked(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS} | body)
    assert response.status_code == 200, response.text[:300]
    return response.json()


@pytest.mark.parametrize("top_n", [None, 1, 3, 1000])
@pytest.mark.parametrize("return_documents", [None, False, True])
def test_the_order_is_that_of_rank(served: Served, top_n: Any, return_documents: Any) -> None:
    model, client = served
    answer = asked(client, top_n=top_n, return_documents=return_documents, model="any")
    expected = model.rank(QUERY, DOCUMENTS, top_n)
    assert answer["object"] == "list"
    assert answer["model"] == "ranks"
    assert [one["index"] for one in answer["results"]] == [one["corpus_id"] for one in expected]
    for found, other in zip(answer["results"], expected, strict=True):
        assert found["relevance_score"] == pytest.approx(other["score"], abs=1e-6)
        text = {"document": {"text": DOCUMENTS[found["index"]]}} if return_documents else {}
        assert found == found | text
        assert found.keys() == {"index", "relevance_score", *text}


def test_tokens_are_counted(served: Served) -> None:
    answer = asked(served[1], documents=["a dog", ""])
    # each pair has 3 special tokens, 3 of the query, and 2 or 0 of the document
    assert answer["usage"] == {"prompt_tokens": 14, "total_tokens": 14}


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"query": " \n"}, "query", "the query is empty; pass a query with at least one token"),
        ({"documents": ["a dog ran"] * 64}, "documents", "have more than 550 tokens: send them in"),
        ({"return_documents": "yes"}, "return_documents", "it should be a valid boolean"),
        ({"return_documents": 1}, "return_documents", "it should be a valid boolean"),
    ],
)
def test_invalid_or_too_large_requests_are_refused(
    served: Served, changes: Any, param: str, words: str
) -> None:
    _, client = served
    body = {"query": QUERY, "documents": DOCUMENTS} | changes
    refused(client.post("/v1/rerank", json=body), param, words)
    assert asked(client, documents=["a dog"])["results"][0]["index"] == 0  # the server still works


def test_a_ranking_model_also_serves_vectors(served: Served) -> None:
    response = served[1].post("/v1/embeddings", json={"input": QUERY})
    assert len(response.json()["data"][0]["embedding"]) == 12


def test_a_long_query_is_refused_before_all_pairs_are_built(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with empty documents, 64 pairs of query and document exceed the limit of 550 tokens.

    Each pair has the 9 tokens of the query and 3 special tokens.
    """
    made, pair = [], Frame.pair
    monkeypatch.setattr(Frame, "pair", lambda *given: made.append(given) or pair(*given))
    body = {"query": "the cat sat " * 3, "documents": [""] * 64}
    refused(served[1].post("/v1/rerank", json=body), "documents")
    assert len(made) == 1


def test_a_score_that_is_not_finite_is_an_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranker, "scores", lambda self, pairs: np.full(len(pairs), np.nan))
    response = served[1].post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS})
    assert refused(response, None, status=500) == (
        "rerank: the score of document 0 is not finite: "
        "check the values and the type of the weights"
    )
