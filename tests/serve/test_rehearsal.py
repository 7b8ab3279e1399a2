"""Tests that a server is ready only when it has everything that a first request needs."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.decoders import gpt2
from models.sentence.test_encode import dense
from models.support import Folder, cross_encoder
from qkv.serve.app import BODIES, routes

from .conftest import output_of

# A process that serves the model in a folder. When the server is ready, each route gets its first
# request from a client, with the example of the documentation. The process prints the status of
# each answer, and everything that was made only now.
FIRST = """
import json, sys, time
import qkv
from qkv.ops import packing
from qkv.serve.app import create_app, routes
from starlette.testclient import TestClient

packs, pack = [], packing._pack_into
packing._pack_into = lambda *arguments: (packs.append(arguments[1].shape), pack(*arguments))[1]
folder, dtype = sys.argv[1:]
app = create_app(qkv.load(folder, dtype=dtype))
state = app.app.state
with TestClient(app, base_url="http://127.0.0.1") as client:
    end = time.monotonic() + 60
    while (ready := client.get("/readyz")).status_code != 200:
        assert time.monotonic() < end and "not ready" in ready.text
        time.sleep(0.01)
    made = len(packs)
    modules, page, schema = set(sys.modules), getattr(state, "page", None), app.app.openapi_schema
    statuses = {}
    for route in routes():
        [method] = route.methods
        extra = (route.openapi_extra or {}).get("requestBody")
        body = extra and extra["content"]["application/json"]["example"]
        if body and state.model.tokenizer is None:
            body |= {key: [1, 2] for key in ("input", "prompt") if key in body}
        headers = {"accept": "application/octet-stream"}
        path = route.path.replace("{name:path}", state.name)
        statuses[method + " " + route.path] = client.request(
            method, path, json=body, headers=headers
        ).status_code
    client.get("/openapi.json")
    same = page is state.page is not None and schema is app.app.openapi_schema is not None
    print(json.dumps({
        "statuses": statuses, "packs": packs[made:], "packed": made, "same": same,
        "modules": sorted(set(sys.modules) - modules),
    }))
"""
TEMPLATE = "{% for m in messages %}<{{ m['content'][:9] }}>{% endfor %}"


def answered_first(folder: Path, dtype: str = "float32") -> set[str]:
    """Return the paths of the first requests with a body that the model could answer."""
    found: dict[str, Any] = json.loads(output_of(sys.executable, "-c", FIRST, folder, dtype))
    assert found["packed"] > 0  # the server's own requests have packed weights
    assert found["packs"] == []
    assert found["modules"] == []
    assert found["same"]
    statuses = found["statuses"].items()
    assert {s for path, s in statuses if path.startswith("GET")} == {200}
    return {name.split()[1] for name, s in statuses if s == 200 and name.startswith("POST")}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_decoder_that_chats(tmp_path: Path, dtype: str) -> None:
    gpt2(tmp_path, seed=1)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert answered_first(tmp_path, dtype) == BODIES.keys() - {
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
    }


def test_an_encoder_with_a_dense_layer(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write()
    folder.sentence({"pooling_mode_mean_tokens": True})
    dense(folder, 2, np.ones((5, 12), np.float32))
    expected = {"/v1/embeddings", "/v1/trace", "/embed", "/tokenize", "/"}
    assert answered_first(tmp_path) == expected


def test_a_cross_encoder(tmp_path: Path) -> None:
    cross_encoder(tmp_path)
    assert {"/v1/rerank", "/v2/rerank", "/rerank", "/v1/trace"} <= answered_first(tmp_path)


def test_a_decoder_without_tokenizer(tmp_path: Path) -> None:
    gpt2(tmp_path, seed=1, tokenizer=False)
    assert answered_first(tmp_path) == {"/v1/completions", "/v1/trace"}


def test_each_route_with_a_body_is_rehearsed() -> None:
    assert list(BODIES) == [route.path for route in routes() if route.methods == {"POST"}]
