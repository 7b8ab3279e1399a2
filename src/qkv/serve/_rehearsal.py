"""Send requests to all routes before the server is ready, so that first answers are fast."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.types import Message

from qkv.serve._memory import Memory, Share
from qkv.serve.guard import in_one_line

_log = logging.getLogger("qkv.serve")

_SAMPLED = {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
_MESSAGES = [{"role": "user", "content": "a"}]
# The bodies that are sent to each route. The texts are short, so that they fit every model.
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/embeddings": [{"input": ["a", "b"]}, {"input": "a", "encoding_format": "base64"}],
    "/v1/completions": [
        {"prompt": "a", "max_tokens": 2, **_SAMPLED},
        {"prompt": "a", "max_tokens": 1, "logprobs": 1, "echo": True},
    ],
    "/v1/chat/completions": [
        {"messages": _MESSAGES, "max_tokens": 2, **_SAMPLED},
        {"messages": _MESSAGES, "max_tokens": 1, "logprobs": True, "top_logprobs": 1},
    ],
    "/v1/trace": [
        {"input": "a", "top_k": 1},
        {"input": "a", "include": ["text", "resid"], "inside": [0], "edits": [{"op": "causal"}]},
        {"input": "a", "at": [0]},
    ],
    **{key: [{"query": "a", "documents": ["a", "b"]}] for key in ("/v1/rerank", "/v2/rerank")},
    "/embed": [{"inputs": ["a", "b"]}],
    "/rerank": [{"query": "a", "texts": ["a", "b"]}],
    "/tokenize": [{"inputs": "a"}],
    "/": [{"inputs": "a"}],
}
_HEADERS = [(b"host", b"localhost"), (b"accept", b"application/octet-stream")]


async def rehearse(app: FastAPI) -> None:
    """Send requests to all routes of an application, one after another.

    Afterwards, everything that a client's first request needs is in memory: packed weights,
    imported modules, compiled chat templates, the page and the schema. The routes refuse requests
    that the model cannot answer. The log names any other error; later requests will raise it too.
    """
    for method, path, content in _requests(app):
        try:
            await _ask(app, method, path, content)
        except Exception as error:
            _log.error("%s: %s", path, in_one_line(error))


def _requests(app: FastAPI) -> Iterator[tuple[str, str, bytes]]:
    """Yield the method, the path and the body of each request."""
    yield "GET", "/openapi.json", b""
    for route in app.state.routes:
        if "GET" in route.methods:
            yield "GET", route.path.replace("{name:path}", app.state.name), b""
            continue
        for body in BODIES[route.path]:
            if app.state.model.tokenizer is None:
                body = body | {key: [0] for key in ("input", "prompt") if key in body}
            yield "POST", route.path, orjson.dumps(body)


async def _ask(app: FastAPI, method: str, path: str, content: bytes) -> None:
    """Send one request to the application; ignore the answer."""
    messages: list[Message] = [{"type": "http.request", "body": content}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()  # the client stays connected
        return messages.pop()

    async def send(message: Message) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": _HEADERS,
        "client": ("localhost", 0),
        "share": Share(Memory(app.state.settings.memory)),
    }
    await app(scope, receive, send)
