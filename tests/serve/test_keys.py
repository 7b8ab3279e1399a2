"""Tests of a body's keys (supported, ignored or refused), and of the names of prompts."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import qkv
from models.decoders import gpt2
from models.files.test_modules_json import routed
from models.support import Folder
from models.tasks.test_chat import ASKED, with_template
from qkv.serve._bodies import IGNORED, Body
from qkv.serve.app import routes
from qkv.serve.routes._chat import ChatBody
from qkv.serve.routes._completions import CompletionsBody
from qkv.serve.routes._embeddings import EmbeddingsBody
from qkv.serve.routes._rerank import RerankBody
from qkv.serve.routes._tei import EmbedBody, TextsBody, TokenizeBody
from qkv.serve.routes._trace_route import TraceBody

from .conftest import app_client, refused

ROUTES: dict[str, tuple[type[Body], dict[str, Any]]] = {
    "/v1/embeddings": (EmbeddingsBody, {"input": ["the cat"]}),
    "/v1/completions": (CompletionsBody, {"prompt": "the cat", "max_tokens": 3, "temperature": 0}),
    "/v1/chat/completions": (ChatBody, {"messages": ASKED, "max_tokens": 3, "temperature": 0}),
    "/v1/rerank": (RerankBody, {"query": "the cat", "documents": ["a dog", "a mat"]}),
    "/v1/trace": (TraceBody, {"input": "the cat"}),
    "/embed": (EmbedBody, {"inputs": ["the cat"]}),
    "/rerank": (TextsBody, {"query": "the cat", "texts": ["a dog", "a mat"]}),
    "/tokenize": (TokenizeBody, {"inputs": "the cat"}),
}
BODIES = {path: body for path, (body, _) in ROUTES.items()}
GOOD = {path: good for path, (_, good) in ROUTES.items()}


@pytest.fixture(scope="module")
def clients(
    tmp_path_factory: pytest.TempPathFactory, ranker: qkv.Model
) -> Iterator[dict[str, TestClient]]:
    """A client for each route, with a model that supports the route."""
    decoder = with_template(gpt2(tmp_path_factory.mktemp("decoder"), seed=1))
    with app_client(decoder) as one, app_client(ranker) as other:
        yield {path: other if path.endswith("rerank") else one for path in BODIES}


def said(answer: Any) -> Any:
    """Return an answer without the keys whose values differ each time."""
    if isinstance(answer, list):
        return answer
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


def test_every_route_that_takes_a_body_has_its_keys() -> None:
    paths = {route.path for route in routes() if "POST" in (route.methods or ())}
    # `POST /` takes the bodies of /embed and /rerank, and /v2/rerank those of /v1/rerank.
    assert set(BODIES) == paths - {"/", "/v2/rerank"}


@pytest.mark.parametrize("path", BODIES)
def test_a_key_is_taken_or_ignored_or_refused(path: str) -> None:
    body = BODIES[path]
    all_of_them = [*body.model_fields, *IGNORED, *body.refusals]
    assert len(all_of_them) == len(set(all_of_them))


REFUSED = [(path, key) for path, body in BODIES.items() for key in body.refusals]


@pytest.mark.parametrize(("path", "key"), REFUSED, ids=lambda value: str(value))
def test_a_key_that_would_change_the_answer_is_refused(
    clients: dict[str, TestClient], path: str, key: str
) -> None:
    for value in ({"odd": 1}, "odd", 3.5):
        response = clients[path].post(path, json={**GOOD[path], key: value})
        message = refused(response, key)
        assert response.json()["error"]["code"] == "unsupported_parameter"
        assert message.startswith(f"{BODIES[path].call}: {key} is ")
        assert message.endswith(f"does not support: {BODIES[path].refusals[key].way}")


@pytest.mark.parametrize("path", BODIES)
def test_values_that_change_nothing_are_accepted(clients: dict[str, TestClient], path: str) -> None:
    """Keys that do not change the answer are accepted.

    These are optional or unsupported keys whose value is null, unsupported keys whose value is
    neutral, ignored keys, and unknown keys.
    """
    refusals, client = BODIES[path].refusals, clients[path]
    plain = client.post(path, json=GOOD[path])
    assert plain.status_code == 200, plain.text
    bodies: list[dict[str, Any]] = [
        dict.fromkeys([*refusals, *(BODIES[path].model_fields.keys() - GOOD[path].keys())]),
        {key: "anything" for key in (*IGNORED, "a key that nobody knows")},
    ]
    for values in itertools.zip_longest(*(one.neutral for one in refusals.values())):
        bodies.append(dict(zip(refusals, values, strict=True)))  # null where there is no value
    for body in bodies:
        response = client.post(path, json={**GOOD[path], **body})
        assert response.status_code == 200, response.text
        assert said(response.json()) == said(plain.json())


ONCE_IGNORED: list[tuple[str, str, Any]] = [
    ("/v1/embeddings", "prompt_name", "no such prompt"),
    ("/v1/embeddings", "input_type", "no such type"),
    ("/v1/embeddings", "input_type", ["query"]),
    ("/v1/embeddings", "truncate", "START"),
    ("/v1/embeddings", "normalize", True),
    ("/v1/completions", "response_format", {"type": "json_object"}),
    ("/v1/completions", "min_p", 0.1),
    ("/v1/completions", "repetition_penalty", 1.2),
    ("/v1/completions", "repetition_penalty", True),
    ("/v1/completions", "top_k", 1.5),
    ("/v1/completions", "top_k", -2),
    ("/v1/chat/completions", "tools", [{"type": "function"}]),
    ("/v1/chat/completions", "tool_choice", "required"),
    ("/v1/chat/completions", "logit_bias", {"5": 1}),
    ("/v1/rerank", "top_k", 1),
    ("/v1/trace", "prompt_name", "query"),
    ("/v1/trace", "hide", [1]),
]


@pytest.mark.parametrize(("path", "key", "value"), ONCE_IGNORED, ids=str)
def test_a_value_that_would_change_the_answer_is_no_longer_ignored(
    clients: dict[str, TestClient], path: str, key: str, value: Any
) -> None:
    refused(clients[path].post(path, json={**GOOD[path], key: value}), key, key)


def test_top_k_1_samples_the_likeliest_token(clients: dict[str, TestClient]) -> None:
    client, asked = clients["/v1/completions"], {"prompt": "the cat", "max_tokens": 12}

    def text(**more: Any) -> str:
        answer = client.post("/v1/completions", json={**asked, **more}).json()
        return str(answer["choices"][0]["text"])

    greedy, drawn = text(temperature=0), text(temperature=1.5, seed=1)
    assert text(temperature=1.5, seed=1, top_k=1) == greedy
    assert drawn != greedy
    for everything in (0, -1, None, 10**9):
        assert text(temperature=1.5, seed=1, top_k=everything) == drawn


# prompts of embeddings

PROMPTS = {"query": "a cat ", "passage": "the mat, ", "clustering": "a dog "}
TEXTS = ["the cat sat.", "a dog ran", "the mat"]


def with_prompts(path: Path, prompts: dict[str, str], **values: Any) -> qkv.Model:
    folder = Folder(path)
    folder.write()
    folder.sentence({"pooling_mode": "mean", "include_prompt": values.pop("included", True)})
    folder.json("config_sentence_transformers.json", {"prompts": prompts, **values})
    return qkv.load(folder.path)


def vectors(client: TestClient, given: Any = TEXTS, **body: Any) -> np.ndarray:
    response = client.post("/v1/embeddings", json={"input": given, **body})
    assert response.status_code == 200, response.text
    return np.array([one["embedding"] for one in response.json()["data"]])


# The keys of a request, and the prompt that the server then puts before each text.
NAMED: list[tuple[dict[str, Any], str]] = [
    ({"prompt_name": "query"}, "a cat "),
    ({"prompt_name": "document"}, ""),
    ({"prompt_name": "clustering"}, "a dog "),
    ({"input_type": "query"}, "a cat "),
    ({"input_type": "search_query"}, "a cat "),
    ({"input_type": "passage"}, "the mat, "),
    ({"input_type": "document"}, "the mat, "),  # the prompt "passage"
    ({"input_type": "search_document"}, "the mat, "),
    ({"input_type": "clustering"}, "a dog "),
    ({"input_type": "query", "prompt_name": "clustering"}, "a dog "),
    ({}, "the mat, "),  # the default
    ({"input_type": None, "prompt_name": None}, "the mat, "),
]


@pytest.mark.parametrize("included", [True, False])
def test_prompts_by_their_names(tmp_path: Path, included: bool) -> None:
    """For each request in `NAMED`, the vectors equal those of `encode` with the prompt."""
    model = with_prompts(tmp_path, PROMPTS, default_prompt_name="passage", included=included)
    with app_client(model) as client:
        for asked, prompt in NAMED:
            expected = model.encode(TEXTS, prompt=prompt)
            np.testing.assert_allclose(vectors(client, **asked), expected, atol=1e-6)


def test_a_model_without_prompts_accepts_common_input_types(tmp_path: Path) -> None:
    model = with_prompts(tmp_path, {})
    with app_client(model) as client:
        expected = model.encode(TEXTS)
        for name in ("query", "document", "passage", "search_query", "search_document"):
            np.testing.assert_allclose(vectors(client, input_type=name), expected, atol=1e-6)


def test_queries_and_documents_take_their_routes(tmp_path: Path) -> None:
    """Each value in the table of the route `document` is twice the value for the route `query`.

    The default route is `document`.
    """
    model = qkv.load(routed(Folder(tmp_path), default_route="document"))
    assert [*model.routes] == ["query", "document"]
    with app_client(model) as client:
        whole = vectors(client, ["cat"])
        np.testing.assert_allclose(vectors(client, ["cat"], input_type="passage"), whole)
        np.testing.assert_allclose(2 * vectors(client, ["cat"], input_type="query"), whole)


def test_invalid_prompt_names_and_input_types_are_refused(tmp_path: Path) -> None:
    model = with_prompts(tmp_path, PROMPTS)
    with app_client(model) as client:
        for key, value in (
            *(("prompt_name", value) for value in ("search_query", "", 3, ["query"], {})),
            *(("input_type", value) for value in ("classification", "", 3, ["query"], {})),
        ):
            names = ("query", "document", "passage", "clustering")
            words = names if isinstance(value, str) else ("it should be a valid string",)
            response = client.post("/v1/embeddings", json={"input": "a", key: value})
            assert refused(response, key, *words).startswith(f"embeddings: {key} is ")


def test_ids_have_no_prompt_before_them(tmp_path: Path) -> None:
    model = with_prompts(tmp_path, PROMPTS)
    with app_client(model) as client:
        response = client.post("/v1/embeddings", json={"input": [[5, 6]], "prompt_name": "query"})
        assert refused(response, "input") == (
            "input 0 consists of token ids, but the prompt 'query' can only be put before "
            "a text; pass texts"
        )
        plain = vectors(client, [[5, 6]])
        np.testing.assert_array_equal(vectors(client, [[5, 6]], prompt_name="document"), plain)


def test_texts_that_are_too_long_are_cut_or_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write()
    folder.sentence({"pooling_mode": "mean"}, limit=6)
    model = qkv.load(folder.path)
    long, ids = "the cat sat on the mat " * 3, [5] * 7
    with app_client(model) as client:
        with pytest.warns(UserWarning, match="cut to 6 tokens"):
            expected = model.encode([long])
        for cut in (True, "END", None):
            np.testing.assert_allclose(vectors(client, long, truncate=cut), expected, atol=1e-6)
            assert len(vectors(client, ids, truncate=cut)) == 1
        for whole in (False, "NONE"):
            for given, number in ((["the cat", long], 1), ([ids], 0)):
                body = {"input": given, "truncate": whole}
                response = client.post("/v1/embeddings", json=body)
                message = refused(response, "input", "has more than the 6 tokens that ")
                assert message.startswith(f"input {number}")
            short = vectors(client, ["the cat", [5] * 6][0], truncate=whole)
            np.testing.assert_allclose(short, model.encode(["the cat"]), atol=1e-6)
