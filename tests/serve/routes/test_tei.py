"""Tests of TEI's routes: vectors, ranking, tokens and the model, also with huggingface_hub."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from starlette.testclient import TestClient

import qkv
from models.support import Folder
from qkv.serve.settings import Settings

from ..conftest import app_client, inside, keys_in, refused, wait_until
from ..test_keys import PROMPTS, with_prompts

TEXTS = ["the cat sat.", "a dog ran", "the mat"]
QUERY = "the cat sat"
KEY = {"Authorization": "Bearer k"}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> qkv.Model:
    """A model whose vectors are not scaled, with three prompts."""
    return with_prompts(tmp_path_factory.mktemp("encoder"), PROMPTS)


@pytest.fixture(scope="module")
def client(encoder: qkv.Model) -> Iterator[TestClient]:
    with app_client(encoder, inputs=8, tokens=60) as found:
        yield found


@pytest.fixture(scope="module")
def ranking(ranker: qkv.Model) -> Iterator[TestClient]:
    with app_client(ranker) as found:
        yield found


def ask(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text[:300]
    return response.json()


def refuses(client: TestClient, path: str, key: str, *words: str, **body: Any) -> str:
    """Check that a body is refused because of a key; return the error's message."""
    return refused(client.post(path, json=body), key, *words)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.sqrt((vectors.astype(np.float64) ** 2).sum(1, keepdims=True))


@pytest.mark.parametrize("path", ["/embed", "/"])
def test_vectors_are_those_of_encode(client: TestClient, encoder: qkv.Model, path: str) -> None:
    expected = encoder.encode(TEXTS)
    assert np.abs(np.linalg.norm(expected, axis=1) - 1).min() > 0.1
    ids = [encoder.tokenize(text).ids.tolist() for text in TEXTS]
    for body, vectors in (
        ({}, unit(expected)),
        ({"inputs": TEXTS[1]}, unit(expected[1:2])),
        ({"inputs": ids}, unit(expected)),
        ({"normalize": False}, expected),
        ({"dimensions": 5}, unit(expected[:, :5])),
        ({"dimensions": 5, "normalize": False}, expected[:, :5]),
        ({"prompt_name": "query"}, unit(encoder.encode(TEXTS, prompt_name="query"))),
    ):
        close = {"rtol": 1e-5 if "normalize" in body else 0, "atol": 1e-6}
        found = ask(client, path, **{"inputs": TEXTS, **body})
        np.testing.assert_allclose(found, vectors, **close, err_msg=str(body))


def test_without_normalize_the_last_module_does_not_scale(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write()
    folder.sentence({"pooling_mode": "mean"}, normalize=True)
    model = qkv.load(folder.path)
    with app_client(model) as client:
        raw = ask(client, "/embed", inputs=TEXTS, normalize=False)
        np.testing.assert_allclose(
            raw, model.encode(TEXTS, normalize_embeddings=False), rtol=1e-5, atol=1e-6
        )
        assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
        np.testing.assert_allclose(
            ask(client, "/embed", inputs=TEXTS), model.encode(TEXTS), atol=1e-6
        )


@pytest.mark.parametrize(
    ("body", "key", "words"),
    [
        ({}, "inputs", "is missing; pass a text"),
        ({"inputs": []}, "inputs", "is an empty list"),
        ({"inputs": ["a"] * 9}, "input", "9 texts: send at most 8"),
        ({"inputs": "a", "prompt_name": "no"}, "prompt_name", "has query, document, passage"),
        ({"inputs": "a", "dimensions": 13}, "dimensions", "pass 1 to 12"),
        ({"inputs": "the " * 20, "truncate": False}, "input", "has more than the 16 tokens"),
        ({"inputs": "a", "truncation_direction": "Left"}, "truncation_direction", "at their end"),
        ({"inputs": {"source_sentence": "a", "sentences": ["b"]}}, "inputs", "is an object"),
    ],
)
def test_wrong_requests_for_vectors(
    client: TestClient, body: dict[str, Any], key: str, words: str
) -> None:
    refuses(client, "/embed", key, words, **body)


@pytest.mark.parametrize("path", ["/rerank", "/"])
def test_texts_are_ranked_as_tei_ranks_them(
    ranking: TestClient, ranker: qkv.Model, path: str
) -> None:
    logits = ranker.predict([(QUERY, text) for text in TEXTS], activation_fn=lambda x: x)
    for raw in (True, False):
        scores = logits if raw else 1 / (1 + np.exp(-logits))
        answer = ask(ranking, path, query=QUERY, texts=TEXTS, raw_scores=raw)
        assert [one["index"] for one in answer] == np.argsort(-scores).tolist()
        np.testing.assert_allclose([one["score"] for one in answer], np.sort(scores)[::-1], 1e-5)
        assert all(one.keys() == {"index", "score"} for one in answer)
    answer = ask(ranking, path, query=QUERY, texts=TEXTS, return_text=True)
    assert [one["text"] for one in answer] == [TEXTS[one["index"]] for one in answer]


@pytest.mark.parametrize("path", ["/v2/rerank", "/rerank", "/"])
def test_documents_are_ranked_as_at_v1_rerank(ranking: TestClient, path: str) -> None:
    body = {"query": QUERY, "documents": TEXTS, "top_n": 2, "return_documents": True}
    assert ask(ranking, path, **body) == ask(ranking, "/v1/rerank", **body)
    refuses(ranking, path, "texts", **body, texts=TEXTS)


def test_wrong_requests_to_rank(client: TestClient, ranking: TestClient) -> None:
    refuses(client, "/rerank", "model", query=QUERY, texts=TEXTS)
    message = refuses(ranking, "/rerank", "texts", query=QUERY)
    assert message == "/rerank: texts is missing; pass a list of texts"
    refuses(ranking, "/rerank", "top_n", query=QUERY, texts=TEXTS, top_n=1)
    long = ["a", "the " * 30]
    assert len(ask(ranking, "/rerank", query=QUERY, texts=long)) == 2
    message = refuses(ranking, "/rerank", "texts", query=QUERY, texts=long, truncate=False)
    assert message.startswith("/rerank: texts[1]")


def test_tokens_have_their_positions(client: TestClient, encoder: qkv.Model) -> None:
    first, second = ask(client, "/tokenize", inputs=["The cats.", "a"])
    assert first == [
        {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None},
        *(
            {"id": encoder.tokenizer.vocabulary[token], "text": text, "special": False}
            | {"start": start, "stop": start + len(text)}
            for token, text, start in (
                *(("the", "The", 0), ("cat", "cat", 4), ("##s", "s", 7), (".", ".", 8)),
            )
        ),
        {"id": 3, "text": "[SEP]", "special": True, "start": None, "stop": None},
    ]
    assert [token["text"] for token in second] == ["[CLS]", "a", "[SEP]"]
    [bare] = ask(client, "/tokenize", inputs="The cats.", add_special_tokens=False)
    assert bare == first[1:-1]
    [asked] = ask(client, "/tokenize", inputs="the", prompt_name="query")
    assert [token["text"] for token in asked[1:-1]] == ["a", "cat", "the"]
    for wrong in ("the " * 60, "a" * (2**20 + 1), [3]):
        refuses(client, "/tokenize", "inputs", inputs=wrong)
    message = refuses(client, "/tokenize", "input", inputs=["a"] * 9)
    assert message == "input has 9 texts: send at most 8 in one request"


def test_answers_that_exceed_the_memory_are_refused_before_they_are_computed(
    encoder: qkv.Model,
) -> None:
    with app_client(encoder, memory=1000) as it:
        wait_until(lambda: it.get("/readyz").status_code == 200)
        [before] = re.findall(r"^qkv_texts .*$", it.get("/metrics").text, re.M)
        many = ["a"] * 1500  # for each text, at least 72 bytes of numbers, or 3 tokens
        for path, body in (
            ("/embed", {"inputs": many}),
            ("/v1/embeddings", {"input": many}),
            ("/tokenize", {"inputs": many}),
        ):
            answer = it.post(path, json=body)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1"), path
            assert "hold more than 1000 bytes" in answer.text
        assert before in it.get("/metrics").text
        assert "qkv_held_bytes 0.0" in it.get("/metrics").text
        assert it.post("/embed", json={"inputs": ["a"] * 9}).status_code == 200
    with app_client(encoder, answer=1000) as it:
        assert it.post("/tokenize", json={"inputs": "a"}).status_code == 200
        answer = it.post("/tokenize", json={"inputs": many})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "answer_too_large")


def test_info_describes_the_model(client: TestClient, ranking: TestClient) -> None:
    about = client.get("/info").json()
    assert about["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (about["model_dtype"], about["max_input_length"]) == ("float32", 16)
    assert (about["max_client_batch_size"], about["version"]) == (8, qkv.__version__)
    assert [*ranking.get("/info").json()["model_type"]] == ["reranker"]


def test_health_needs_no_key_and_the_model_does(encoder: qkv.Model, tmp_path: Path) -> None:
    with app_client(encoder, keys=keys_in(tmp_path, "k")) as client:
        assert client.get("/").status_code == 200
        for path in ("/", "/embed", "/tokenize"):
            assert client.post(path, json={"inputs": TEXTS}).status_code == 401
            assert client.post(path, json={"inputs": TEXTS}, headers=KEY).status_code == 200
        assert client.get("/info").status_code == 401
        wait_until(lambda: client.get("/readyz").status_code == 200)
        assert client.get("/health", headers={"Host": "10.0.0.1"}).status_code == 200
        client.app.ending = True
        assert client.get("/health").status_code == 503


def test_huggingface_hub_gets_the_same_vectors(
    encoder: qkv.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)  # only for this server
    with inside(encoder, Settings(keys=keys_in(tmp_path, "k"))) as server:
        client = InferenceClient(base_url=f"http://127.0.0.1:{server.port}", api_key="k")
        found = client.feature_extraction(TEXTS, truncate=True, truncation_direction="right")
        np.testing.assert_allclose(found, unit(encoder.encode(TEXTS)), atol=1e-6)
        found = client.feature_extraction(TEXTS[0], prompt_name="query", normalize=False)
        np.testing.assert_allclose(
            found, encoder.encode(TEXTS[:1], prompt_name="query"), rtol=1e-5, atol=1e-6
        )
        with pytest.raises(HfHubHTTPError, match="prompt_name is"):
            client.feature_extraction(TEXTS, prompt_name="no")


def test_requests_with_and_without_scaling_may_share_a_turn(encoder: qkv.Model) -> None:
    bodies = [{"inputs": TEXTS, "normalize": normalize} for normalize in (True, False)]
    with inside(encoder) as server, ThreadPoolExecutor(2) as pool:
        url = f"http://127.0.0.1:{server.port}/embed"
        with server.held():
            answers = [pool.submit(httpx.post, url, json=body) for body in bodies]
            wait_until(lambda: server.worker.waiting == 3)
        scaled, raw = (answer.result(60).json() for answer in answers)
    np.testing.assert_allclose(raw, encoder.encode(TEXTS), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scaled, unit(encoder.encode(TEXTS)), atol=1e-6)
