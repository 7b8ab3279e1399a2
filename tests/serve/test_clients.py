"""Tests of common clients, which get the vectors of `encode` from a server in another process."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

import qkv

from .conftest import Served, serve

HERE = Path(__file__).parent
KEY = "a-key-of-this-test"
MODEL = qkv.load("minilm")
TEXTS = ["The cat sat on the mat.", "I sat on the bank of the river.", "Money"]
IDS = [MODEL.tokenize(text).ids.tolist() for text in TEXTS]
EXPECTED = MODEL.encode(TEXTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of MiniLM that requires a key."""
    path = tmp_path_factory.mktemp("key") / "key.txt"
    path.write_text(f"{KEY}\n")
    with serve("--model", "minilm", "--api-key-file", path) as served:
        yield served


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_openai_by_itself_asks_for_base64(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="text-embedding-3-small", input=TEXTS)
    assert [one.index for one in answer.data] == [0, 1, 2]
    assert np.abs([one.embedding for one in answer.data] - EXPECTED).max() < 1e-6
    tokens = sum(map(len, IDS))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    assert (answer.object, answer.model) == ("list", "minilm")


@pytest.mark.parametrize("given", [TEXTS[0], TEXTS[:1], TEXTS, IDS[0], IDS], ids=type)
def test_openai_with_floats(client: openai.OpenAI, given: list[str]) -> None:
    answer = client.embeddings.create(model="m", input=given, encoding_format="float", user="u")
    found = np.array([one.embedding for one in answer.data])
    assert np.abs(found - EXPECTED[: len(found)]).max() < 1e-6
    assert len(found) == (3 if len(given) == 3 else 1)


def test_openai_base64_is_little_endian_float32(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="m", input=TEXTS[0], encoding_format="base64")
    data = answer.data[0].embedding
    assert isinstance(data, str)
    assert base64.b64decode(data, validate=True) == EXPECTED[0].astype("<f4").tobytes()


def test_openai_dimensions(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="m", input=TEXTS, dimensions=64)
    kept = EXPECTED[:, :64].astype(np.float64)
    expected = kept / np.sqrt((kept**2).sum(1, keepdims=True))
    assert np.abs([one.embedding for one in answer.data] - expected).max() < 1e-6


def test_openai_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["minilm"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input": []}, "input", "input is an empty list"),
        ({"input": ""}, "input", 'input is ""; pass a text'),
        ({"input": [[30522]]}, "input", "30522: the ids run from 0 to 30521"),
        ({"input": "a", "dimensions": 385}, "dimensions", "pass 1 to 384"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
    ],
)
def test_openai_gets_an_error_for_an_invalid_body(
    client: openai.OpenAI, body: dict[str, str], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="m", **body)
    error = caught.value
    assert (error.status_code, error.type, error.param) == (400, "invalid_request_error", param)
    assert error.code is None
    assert words in error.message


@pytest.mark.parametrize(("key", "words"), [("wrong", "is wrong"), (f"{KEY}x", "is wrong")])
def test_openai_with_another_key(server: Served, key: str, words: str) -> None:
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.embeddings.create(model="m", input="a")
    assert caught.value.type == "authentication_error"
    assert caught.value.code == "invalid_api_key"
    assert words in caught.value.message


def test_openai_gets_not_found_for_an_unknown_path(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.moderations.create(input="a")
    assert caught.value.type == "not_found_error"


def test_openai_gets_an_error_for_a_too_large_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model="m", input=["a" * 2**20] * 9)
    assert caught.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="2049 texts: send at most 2048"):
        client.embeddings.create(model="m", input=["a"] * 2049)
