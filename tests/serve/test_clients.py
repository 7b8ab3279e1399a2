"""Tests of common clients, which get the vectors of `encode` from a server in another process."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import qkv
from models.decoders import writer
from models.tasks.test_chat import ASKED, PROMPT, with_template
from qkv.serve.settings import Settings

from .conftest import Served, inside, keys_in, serve

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
        ({"input": ""}, "input", 'input is "": give a text'),
        ({"input": [[30522]]}, "input", "30522: the ids run from 0 to 30521"),
        ({"input": "a", "dimensions": 385}, "dimensions", "give 1 to 384"),
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


OTHERS = {
    "langchain": """
from langchain_openai import OpenAIEmbeddings

client = OpenAIEmbeddings(
    base_url=url, api_key=key, model="minilm", check_embedding_ctx_length=False
)
found = [client.embed_query(texts[0]), *client.embed_documents(texts[1:])]
small = OpenAIEmbeddings(
    base_url=url, api_key=key, check_embedding_ctx_length=False, dimensions=64
).embed_query(texts[0])
""",
    "llama_index": """
from llama_index.embeddings.openai import OpenAIEmbedding

client = OpenAIEmbedding(api_base=url, api_key=key, model_name="minilm")
found = [client.get_text_embedding(texts[0]), *client.get_text_embedding_batch(texts[1:])]
small = OpenAIEmbedding(
    api_base=url, api_key=key, model_name="minilm", dimensions=64
).get_query_embedding(texts[0])
""",
    "chroma": """
import chromadb
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

os.environ["CHROMA_OPENAI_API_KEY"] = key
function = OpenAIEmbeddingFunction(api_base=url, model_name="minilm")
found = function(texts)
store = chromadb.EphemeralClient().create_collection("texts", embedding_function=function)
store.add(ids=["0", "1", "2"], documents=texts)
assert store.query(query_texts=["a boat on the water"], n_results=1)["ids"] == [["1"]]
kept = store.get(include=["embeddings"])
found = [kept["embeddings"][kept["ids"].index(name)] for name in ("0", "1", "2")]
small = OpenAIEmbeddingFunction(
    api_base=url, model_name="text-embedding-3-small", dimensions=64
)(texts[:1])[0]
""",
}
PROGRAM = """
import json
import os
import sys

url, key, texts = json.loads(sys.argv[1])
{code}
print(json.dumps([[list(map(float, one)) for one in found], list(map(float, small))]))
"""
# Turn off telemetry; any other access of these packages to the network is an error.
ENVIRONMENT = os.environ | {
    "ANONYMIZED_TELEMETRY": "False",
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "0",  # offline.py refuses all other machines; "1" would refuse this one too
}


def run_offline(code: str, folder: Path, given: Any) -> Any:
    """Run a program in a process that may only connect to this machine, and read what it prints."""
    program = folder / "_program.py"
    program.write_text(code)
    run = subprocess.run(
        [sys.executable, HERE / "offline.py", program, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRONMENT,
        cwd=folder,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", OTHERS)
def test_other_clients_get_the_same_vectors(server: Served, name: str, tmp_path: Path) -> None:
    found, small = run_offline(
        PROGRAM.format(code=OTHERS[name]), tmp_path, [f"{server.url}/v1", KEY, TEXTS]
    )
    assert np.abs(np.array(found) - EXPECTED).max() < 1e-6
    kept = EXPECTED[0, :64].astype(np.float64)
    assert np.abs(small - kept / np.sqrt((kept**2).sum())).max() < 1e-6


CHATS = {
    "langchain": """
from langchain_openai import ChatOpenAI

client = ChatOpenAI(base_url=f"{url}/v1", api_key=key, model="any", temperature=0, max_tokens=9)
whole = client.invoke(messages).content
pieces = [piece.content for piece in client.stream(messages)]
""",
    "huggingface_hub": """
from huggingface_hub import InferenceClient

client = InferenceClient(base_url=url, api_key=key)
asked = {"messages": messages, "temperature": 0, "max_tokens": 9}
whole = client.chat_completion(**asked).choices[0].message.content
pieces = [
    part.choices[0].delta.content
    for part in client.chat_completion(**asked, stream=True)
    if part.choices
]
""",
}
CHAT_PROGRAM = """
import json
import sys

url, key, messages = json.loads(sys.argv[1])
{code}
print(json.dumps([whole, "".join(piece or "" for piece in pieces)]))
"""


@pytest.mark.parametrize("name", CHATS)
def test_other_clients_get_the_same_answers(name: str, tmp_path: Path) -> None:
    model = with_template(writer(tmp_path / "decoder", PROMPT, "sat on the mat"))
    with inside(model, Settings(keys=keys_in(tmp_path, KEY))) as server:
        code = CHAT_PROGRAM.format(code=CHATS[name])
        answers = run_offline(code, tmp_path, [f"http://127.0.0.1:{server.port}", KEY, ASKED])
    assert answers == [model.chat(ASKED, max_new_tokens=9)] * 2
    assert answers[0].startswith("sat")
