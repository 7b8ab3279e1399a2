"""Tests of the requests that Open WebUI sends to a server of OpenAI's API, replayed.

Open WebUI itself is not installed. The requests are those of its files `routers/openai.py`,
`routers/tasks.py`, `retrieval/utils.py` and `retrieval/models/external.py`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import qkv
from models.decoders import END, writer
from models.tasks.test_chat import with_template
from qkv.models import Model
from qkv.serve.settings import Settings

from .conftest import inside, keys_in

VERSION = "0.12.4"
KEY = "a-key-of-this-test"
HEADERS = {
    "Content-Type": "application/json",
    "Authorization": f"Bearer {KEY}",
    # with ENABLE_FORWARD_USER_INFO_HEADERS
    "X-OpenWebUI-User-Name": "Ada%20L",
    "X-OpenWebUI-User-Id": "4f3c",
    "X-OpenWebUI-User-Email": "ada@example.org",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "9be1",
}
USER = {"role": "user", "content": "the cat"}
SYSTEM = {"role": "system", "content": "Be brief."}
EARLIER = [USER, {"role": "assistant", "content": "sat"}]
# The bodies of requests for chat completions.
CHATS: dict[str, dict[str, Any]] = {
    "a message": {"stream": True, "messages": [USER]},
    "the capability Usage": {
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [SYSTEM, USER],
    },
    "the parameters of a chat": {
        "stream": True,
        "messages": [*EARLIER, USER],
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 20,
        "seed": 7,
        "stop": ["\n"],
    },
    "a message in parts": {
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "the cat"}]}],
    },
    "the title, tags or follow-ups of a chat": {
        "stream": False,
        "messages": [{"role": "user", "content": "### Task:\nname the chat\n<chat>cat</chat>"}],
    },
}


@contextmanager
def webui(model: Model, folder: Path) -> Iterator[httpx.Client]:
    """Serve a model, and yield a client that has the headers of Open WebUI."""
    with (
        inside(model, Settings(keys=keys_in(folder, KEY))) as server,
        httpx.Client(
            base_url=f"http://127.0.0.1:{server.port}/v1", headers=HEADERS, trust_env=False
        ) as client,
    ):
        yield client


def read_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream as Open WebUI reads them, line by line."""
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_connection_is_verified_and_its_models_are_listed(tmp_path: Path) -> None:
    with webui(qkv.load("books"), tmp_path) as client:
        listed = client.get("/models").json()["data"]
        assert [one["id"] for one in listed] == ["books"]
        refused = client.get("/models", headers={"Authorization": "Bearer no"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_is_answered(name: str, tmp_path: Path) -> None:
    body = {"model": "decoder", **CHATS[name]}
    said = [(one["role"], one["content"]) for one in body["messages"]]
    texts = [(role, text if isinstance(text, str) else text[0]["text"]) for role, text in said]
    prompt = "".join(f"{role}:{text}{END}" for role, text in texts) + "assistant:"
    model = with_template(writer(tmp_path / "decoder", prompt, "on the mat"))
    with webui(model, tmp_path) as client:
        answer = client.post("/chat/completions", json={"temperature": 0.0, **body})
        assert answer.status_code == 200, answer.text
        if not body["stream"]:
            [choice] = answer.json()["choices"]
            assert choice["message"] == {"role": "assistant", "content": "on the mat"}
            return
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = read_events(answer.text)
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert "".join(one["delta"].get("content", "") for one in choices) == "on the mat"
    assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["stop"]
    usage = [event["usage"] for event in events if event.get("usage")]
    assert len(usage) == ("stream_options" in body)
    assert all(one["completion_tokens"] >= len("on the mat") - 3 for one in usage)


def test_tools_are_refused_with_the_name_of_the_key(tmp_path: Path) -> None:
    """With Function Calling: Native, which is the default, each chat has tools."""
    tool = {"name": "get_current_timestamp", "parameters": {"type": "object", "properties": {}}}
    body = {"model": "any", **CHATS["a message"], "tools": [{"type": "function", "function": tool}]}
    with webui(with_template(writer(tmp_path / "decoder", "a", "b")), tmp_path) as client:
        refused = client.post("/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools"


def test_documents_get_vectors_and_scores(ranker: Model, tmp_path: Path) -> None:
    query, documents = "the cat sat", ["a dog ran", "the cat", "the mat"]
    ranking = {"model": "any", "query": query, "documents": documents, "top_n": 3}
    with webui(ranker, tmp_path) as client:
        vectors = client.post("/embeddings", json={"input": documents, "model": "any"}).json()
        results = client.post("/rerank", json=ranking).json()["results"]
    found = [one["embedding"] for one in vectors["data"]]
    np.testing.assert_allclose(found, ranker.encode(documents), atol=1e-6)
    scores = [one["relevance_score"] for one in sorted(results, key=lambda one: one["index"])]
    expected = ranker.predict([(query, document) for document in documents])
    np.testing.assert_allclose(scores, expected, atol=1e-6)
