"""Tests of `POST /v1/embeddings` and `/v1/rerank`: accepted and refused requests, and answers."""

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import qkv
from qkv.models.sentence.encode import Encoder

from ..conftest import app_client, refused

TEXTS = ["The cat sat on the mat.", "I sat on the bank of the river.", "Money"]
MODEL = qkv.load("minilm")
IDS = [MODEL.tokenize(text).ids.tolist() for text in TEXTS]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with app_client(MODEL, inputs=64, tokens=2000) as client:
        yield client


def vectors_of(answer: dict[str, Any]) -> np.ndarray:
    """Return the vectors of an answer, and check that they are in order."""
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    assert {one["object"] for one in answer["data"]} == {"embedding"}
    found = [one["embedding"] for one in answer["data"]]
    if isinstance(found[0], str):
        found = [np.frombuffer(b64decode(one, validate=True), "<f4") for one in found]
    return np.array(found)


def asked(client: TestClient, **body: Any) -> dict[str, Any]:
    """Send a good request, and return the answer."""
    response = client.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text[:300]
    assert response.headers["content-type"] == "application/json"
    return response.json()


@pytest.mark.parametrize("encoding_format", [None, "float", "base64"])
@pytest.mark.parametrize("given", [TEXTS[0], TEXTS[:1], TEXTS, IDS[0], IDS[:1], IDS])
def test_vectors_are_those_of_encode(client: TestClient, given: Any, encoding_format: Any) -> None:
    answer = asked(client, input=given, encoding_format=encoding_format, model="any")
    texts = TEXTS if len(given) == len(TEXTS) else TEXTS[:1]
    expected = MODEL.encode(texts)
    assert np.abs(vectors_of(answer) - expected).max() < 1e-6
    tokens = sum(len(ids) for ids in IDS[: len(texts)])
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (answer["object"], answer["model"]) == ("list", "minilm")


def test_white_space_around_a_text_counts() -> None:
    model = qkv.load("books-decoder")
    with app_client(model) as client:
        answer = asked(client, input=["hi", "hi\n", " "])
    assert answer["usage"]["prompt_tokens"] == 2 + 3 + 1
    assert np.abs(vectors_of(answer) - model.encode(["hi", "hi\n", " "])).max() < 1e-6


@pytest.mark.parametrize("dimensions", [1, 5, 383, 384])
@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_dimensions_keep_the_first_numbers(
    client: TestClient, dimensions: int, encoding_format: str
) -> None:
    answer = asked(client, input=TEXTS, dimensions=dimensions, encoding_format=encoding_format)
    kept = MODEL.encode(TEXTS)[:, :dimensions].astype(np.float64)
    expected = kept / np.sqrt((kept**2).sum(1, keepdims=True))
    assert np.abs(vectors_of(answer) - expected).max() < 1e-6


@pytest.mark.filterwarnings("ignore:1 of 1 text was cut")
def test_a_long_text_is_cut_as_encode_cuts_it(client: TestClient) -> None:
    text = "the cat sat on the mat " * 100
    expected = MODEL.encode([text])
    for given in (text, [MODEL.tokenize(text).ids.tolist()]):
        answer = asked(client, input=given)
        assert np.abs(vectors_of(answer) - expected).max() < 1e-6
        assert answer["usage"]["prompt_tokens"] == 256


GOOD = {"input": TEXTS[0]}
BAD = [
    ({}, "input", "input is missing"),
    ({"input": None}, "input", "input is missing"),
    ({"input": ""}, "input", 'input is ""; pass a text'),
    ({"input": []}, "input", "is an empty list"),
    ({"input": {}}, "input", "is an object"),
    ({"input": 3}, "input", "is 3"),
    ({"input": True}, "input", "is true"),
    ({"input": ["a", ""]}, "input", 'input[1] is ""'),
    ({"input": ["a", None]}, "input", "input[1] is null"),
    ({"input": ["a", 5]}, "input", "input[1] is 5"),
    ({"input": [5, "a"]}, "input", 'input[1] is "a"'),
    ({"input": ["a", ["b"]]}, "input", "input[1] is a list"),
    ({"input": [[5], 6]}, "input", "input[1] is 6"),
    ({"input": [True]}, "input", "input[0] is true"),
    ({"input": [5, True]}, "input", "input[1] is true"),
    ({"input": [5.0]}, "input", "input[0] is 5.0"),
    ({"input": [10**30]}, "input", "input[0] is 1e+30"),
    ({"input": [[5, 6.0]]}, "input", "input[0][1] is 6.0"),
    ({"input": [[5, False]]}, "input", "input[0][1] is false"),
    ({"input": [[5, [6]]]}, "input", "input[0][1] is a list"),
    ({"input": [[5], []]}, "input", "input[1] is an empty list"),
    ({"input": [-1]}, "input", "input 0: there is no token -1: the ids run from 0 to 30521"),
    ({"input": [[5], [30522]]}, "input", "input 1: there is no token 30522"),
    ({"input": [2**64 - 1]}, "input", f"there is no token {2**64 - 1}"),
    ({"input": ["a"] * 65}, "input", "has 65 texts: send at most 64"),
    ({"input": [[5]] * 65}, "input", "has 65 texts: send at most 64"),
    ({"input": ["cat " * 50] * 64}, "input", "more than 2,000 tokens"),
    ({"input": [[5] * 50] * 64}, "input", "more than 2,000 tokens"),
    (GOOD | {"encoding_format": "int8"}, "encoding_format", "it should be 'float' or 'base64'"),
    (GOOD | {"encoding_format": []}, "encoding_format", "is an empty list"),
    (GOOD | {"dimensions": 0}, "dimensions", "is 0: it should be greater than or equal to 1"),
    (GOOD | {"dimensions": -3}, "dimensions", "is -3"),
    (GOOD | {"dimensions": 385}, "dimensions", "is 385 and vectors have 384 numbers; pass 1 to"),
    (GOOD | {"dimensions": True}, "dimensions", "is true"),
    (GOOD | {"dimensions": 2.0}, "dimensions", "is 2.0"),
    (GOOD | {"dimensions": "2"}, "dimensions", 'is "2"'),
    (GOOD | {"model": 7}, "model", "is 7"),
]


@pytest.mark.parametrize(("body", "param", "words"), BAD, ids=[words for *_, words in BAD])
def test_a_bad_request_gets_an_error_that_names_the_key(
    client: TestClient, body: dict[str, Any], param: str, words: str
) -> None:
    refused(client.post("/v1/embeddings", json=body), param, words)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"a"', b'{"input": "\xff"}'])
def test_a_body_that_is_no_object_is_refused(client: TestClient, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    for route in ("embeddings", "rerank"):
        refused(client.post(f"/v1/{route}", content=content, headers=headers), None)


def test_a_list_of_65_ids_counts_as_one_text(client: TestClient) -> None:
    answer = asked(client, input=[5] * 65)  # one text, not 65
    assert answer["usage"]["prompt_tokens"] == 65


RANKING = {"query": "a river", "documents": ["a bank", "money"], "top_n": 1}


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({}, "model", "minilm does not rank documents: compare vectors of /v1/embeddings"),
        ({"query": None}, "query", "query is missing; pass a text"),
        ({"query": ""}, "query", 'query is ""; pass a text'),
        ({"query": 3}, "query", "query is 3; pass a text"),
        ({"documents": []}, "documents", "documents is an empty list; pass a list of texts"),
        ({"documents": "a bank"}, "documents", 'documents is "a bank"; pass a list of texts'),
        ({"documents": ["a", 3]}, "documents", "documents[1] is 3; pass a list of texts"),
        ({"documents": ["a"] * 65}, "documents", "has 65 texts: send at most 64"),
        ({"top_n": 0}, "top_n", "top_n is 0: it should be greater than or equal to 1"),
        ({"top_n": True}, "top_n", "top_n is true: it should be a valid integer"),
    ],
)
def test_rerank_refuses_invalid_bodies_and_models_that_do_not_rank(
    client: TestClient, changes: dict[str, Any], param: str, words: str
) -> None:
    refused(client.post("/v1/rerank", json=RANKING | changes), param, words)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_fails_only_its_request(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """In JSON, numbers that are not finite would be null."""
    model = qkv.load("random")
    bad, pooled = model.tokenize("love").ids, Encoder.pool_texts

    def pooling(self: Encoder, batch: Any) -> Any:
        found = pooled(self, batch)
        found[[np.array_equal(row, bad) for row in batch]] = value
        return found

    monkeypatch.setattr(Encoder, "pool_texts", pooling)
    with app_client(model) as client:
        for encoding in ("float", "base64"):
            asked = {"input": ["I", "love", "you"], "encoding_format": encoding}
            response = client.post("/v1/embeddings", json=asked)
            assert refused(response, None, status=500) == (
                "embeddings: the vector of input 1 is not finite: "
                "check the values and the type of the weights"
            )
        assert client.post("/v1/embeddings", json={"input": "I"}).status_code == 200
