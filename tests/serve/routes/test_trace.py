"""Tests of `POST /v1/trace`: the weights of `model.trace`, as JSON and as safetensors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load
from starlette.testclient import TestClient

import qkv
from models.decoders import gpt2
from models.small_models import CONFIGS, write_small

from ..conftest import app_client, refused

TEXT = "I sat on the bank of the river."
MODEL = qkv.load("minilm")
LAYERS, HEADS = MODEL.num_layers, MODEL.num_heads


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with app_client(MODEL) as found:
        yield found


@pytest.fixture(scope="module")
def small() -> Iterator[TestClient]:
    """A client of a server with a small limit for the size of answers."""
    with app_client(MODEL, answer=100_000) as found:
        yield found


def post(client: TestClient, accept: str | None = None, **body: Any) -> httpx.Response:
    headers = {} if accept is None else {"Accept": accept}
    return client.post("/v1/trace", json=body, headers=headers)


@pytest.mark.parametrize(
    ("asked", "layers", "heads"),
    [
        ({}, range(LAYERS), range(HEADS)),
        ({"layers": [1], "heads": [0, 3]}, [1], [0, 3]),
        ({"layers": -1, "heads": 5}, [LAYERS - 1], [5]),
        ({"layers": [3, 0, 3, -3], "heads": [-1, 2]}, [3, 0], [HEADS - 1, 2]),
        ({"layers": None, "heads": [-HEADS], "top_k": None, "edits": []}, range(LAYERS), [0]),
    ],
    ids=str,
)
def test_weights_are_those_of_trace(
    client: TestClient, asked: dict[str, Any], layers: Any, heads: Any
) -> None:
    response = post(client, input=TEXT, **asked)
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    trace = MODEL.trace(TEXT)
    assert list(answer) == ["tokens", "layers", "heads", "pattern"]
    assert answer["tokens"] == trace.tokens
    assert (answer["layers"], answer["heads"]) == (list(layers), list(heads))
    found = np.array(answer["pattern"], np.float32)
    expected = [[trace.pattern(layer, head) for head in heads] for layer in layers]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("accept", ["application/vnd.safetensors", "application/octet-stream"])
@pytest.mark.parametrize("top_k", [None, 3])
def test_safetensors_hold_the_same(client: TestClient, accept: str, top_k: int | None) -> None:
    asked = {"input": TEXT, "layers": [4, 1], "heads": [2, -1, 0], "top_k": top_k}
    response = post(client, accept, **asked)
    assert response.headers["content-type"] == accept
    found = load(response.content)
    answer = post(client, **asked).json()
    assert set(found) == set(answer) - {"tokens", "layers", "heads"}
    for name, array in found.items():
        np.testing.assert_allclose(array, np.array(answer[name]), rtol=1e-6)
    if top_k is None:
        assert found["pattern"].dtype == np.float32
        expected = MODEL.trace(TEXT).pattern(1, -1)
        np.testing.assert_array_equal(found["pattern"][1, 1], expected)


@pytest.mark.parametrize("text", [(), ("ids", "offsets", "special")], ids=["plain", "with text"])
def test_the_metadata_holds_what_is_no_array(
    client: TestClient, tmp_path: Path, text: tuple[str, ...]
) -> None:
    path = tmp_path / "trace.safetensors"
    asked = {"input": TEXT, "layers": [2], "include": ["text"] if text else []}
    path.write_bytes(post(client, "application/octet-stream", **asked).content)
    with safe_open(path, framework="numpy") as file:
        about = {name: json.loads(value) for name, value in file.metadata().items()}
    answer = post(client, **asked).json()
    assert about == {name: answer[name] for name in ("tokens", "layers", "heads", *text)}
    assert not text or about["ids"] == MODEL.tokenize(TEXT).ids.tolist()


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "text/html",
        "application/json, application/*;q=0.5",
        "application/octet-stream;q=0, */*",
    ],
)
def test_other_accept_headers_get_json(client: TestClient, accept: str) -> None:
    assert post(client, accept, input=TEXT, layers=0).json()["layers"] == [0]


def test_top_k_returns_only_the_largest_weights(client: TestClient) -> None:
    answer = post(client, input=TEXT, layers=[2, 5], heads=[1], top_k=4).json()
    assert list(answer) == ["tokens", "layers", "heads", "top_indices", "top_weights"]
    trace = MODEL.trace(TEXT)
    for number, layer in enumerate([2, 5]):
        weights = trace.pattern(layer, 1)
        order = np.argsort(-weights, kind="stable")[:, :4]
        assert answer["top_indices"][number][0] == order.tolist()
        np.testing.assert_allclose(
            answer["top_weights"][number][0], np.take_along_axis(weights, order, 1), atol=1e-6
        )


def test_ids_stand_for_a_text(client: TestClient) -> None:
    ids = MODEL.tokenize(TEXT).ids.tolist()
    found, expected = (post(client, input=given, layers=3).json() for given in (ids, TEXT))
    assert found["pattern"] == expected["pattern"]
    assert found["tokens"] == list(map(str, ids))


@pytest.mark.parametrize(("name", "gaps"), [("minilm", 0), ("books", 1)])
def test_a_gap_is_read_as_in_trace(name: str, gaps: int) -> None:
    model, text = qkv.load(name), "I sat on the ?. Why ?"
    with app_client(model) as client:
        found = post(client, input=text, layers=[0], heads=[0]).json()
    assert found["tokens"] == model.trace(text, names=["embed"]).tokens
    assert found["tokens"].count("[MASK]") == gaps  # only `books` predicts masked words


def test_a_long_text_is_cut_as_in_trace(client: TestClient) -> None:
    text = "the river bank " * 400
    answer = post(client, "application/octet-stream", input=text, layers=0, heads=[0])
    assert answer.status_code == 200
    found = load(answer.content)["pattern"][0, 0]
    with pytest.warns(UserWarning, match="cut"):
        expected = MODEL.trace(text, layers=[0], names=["pattern"])
    assert found.shape == (MODEL.max_seq_length, MODEL.max_seq_length)
    np.testing.assert_array_equal(found, expected.pattern(0, 0))


# sizes


def test_a_large_answer_is_refused_before_it_is_computed(
    small: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("it was computed")

    text = "the river bank " * 60  # 182 tokens
    with monkeypatch.context() as patch:
        patch.setattr(MODEL, "trace", computed)
        for asked in ({}, {"layers": 0, "heads": 0}, {"top_k": 50}, {"top_k": 10**15}):
            response = post(small, input=text, **asked)
            assert response.status_code == 413, response.text[:200]
            error = response.json()["error"]
            assert "fewer layers or heads, or send top_k" in error["message"]
            assert error["code"] == "answer_too_large"
        octets = "application/octet-stream"
        assert post(small, octets, input=text, layers=0).status_code == 413
        response = post(small, input="the river " * 50, layers=0, heads=0)  # one head is too large
        assert response.status_code == 413
        assert "of 102 tokens would have about 124848 bytes" in response.json()["error"]["message"]
        few = {"input": "the river " * 50, "layers": [0, 1], "heads": 0}  # 102 tokens
        # The answer to this request is small, so the server calls `trace`, which raises an error.
        assert post(small, input="the", layers=0).status_code == 500
        response = post(small, octets, **few)
        assert response.status_code == 413
        assert "for all heads" in response.json()["error"]["message"]
    assert post(small, input="the river", layers=0).status_code == 200
    assert post(small, input=text, layers=0, heads=0, top_k=2).status_code == 200


# refused requests

BAD: list[tuple[str, Any]] = [
    *(("input", bad) for bad in ("", "  ", [], [[1, 2]], ["a"], {}, 5, True, [1.5], [-1])),
    *(("input", bad) for bad in ([10**6], [2**63, -1], [1] * 300)),
    *(("layers", bad) for bad in ([LAYERS], -LAYERS - 1, [], [0.5], "0", True, {}, [[0]], 2**60)),
    *(("heads", bad) for bad in ([HEADS], -HEADS - 1, [], [0.5], "0", [True])),
    *(("top_k", bad) for bad in (0, -1, 1.5, "3", True)),
    *(("edits", bad) for bad in ([{"op": "hyde"}], {}, "hide", [1])),
    *(("model", bad) for bad in (5, [])),
]


@pytest.mark.parametrize(("name", "bad"), BAD, ids=lambda value: str(value)[:40])
def test_an_invalid_value_gives_an_error_that_names_its_key(
    client: TestClient, name: str, bad: Any
) -> None:
    message = refused(post(client, **{"input": TEXT, name: bad}), name)
    assert message.startswith("trace: ")
    assert len(message) < 250


def test_no_input(client: TestClient) -> None:
    assert post(client).json()["error"]["param"] == "input"
    for content in (b"", b"[]", b"{", b'{"input": NaN}', b"\xff"):
        assert client.post("/v1/trace", content=content).status_code == 400


# other models


def test_a_decoder_has_no_weights_on_later_tokens(tmp_path: Path) -> None:
    model = gpt2(tmp_path, seed=2)
    with app_client(model) as client:
        answer = post(client, input="the cat", top_k=9).json()
        pattern = np.array(post(client, input="the cat").json()["pattern"])
    expected = np.stack([model.trace("the cat")["pattern", layer][0] for layer in range(2)])
    np.testing.assert_allclose(pattern, expected, atol=1e-12)  # float64
    assert not np.triu(pattern, 1).any()
    assert np.array(answer["top_indices"]).shape == (2, 3, 5, 9)
    assert answer["top_indices"][0][0][0] == [0] + [-1] * 8  # the first token sees only itself


@pytest.mark.parametrize("kind", ["llama", "modernbert", "t5"])
def test_other_families_are_traced(tmp_path: Path, kind: str) -> None:
    model = qkv.load(write_small(tmp_path / kind, CONFIGS[kind]))
    with app_client(model) as client:
        answer = post(client, input="the cat sat").json()
    trace = model.trace("the cat sat")
    assert answer["tokens"] == trace.tokens
    expected = np.stack([trace["pattern", layer][0] for layer in range(model.num_layers)])
    np.testing.assert_allclose(answer["pattern"], expected, rtol=1e-6, atol=1e-9)


def test_an_image_model_is_refused(tmp_path: Path) -> None:
    model = qkv.load(write_small(tmp_path / "vit", CONFIGS["vit"]))
    with app_client(model) as client:
        for given in ("the cat", [1, 2]):
            error = post(client, input=given).json()["error"]
            assert "reads images, not text" in error["message"]
            assert error["code"] == "model_reads_no_text"


def test_a_model_without_a_tokenizer_takes_ids(tmp_path: Path) -> None:
    model = gpt2(tmp_path, seed=2, tokenizer=False)
    with app_client(model) as client:
        assert post(client, input="the").json()["error"]["param"] == "input"
        assert post(client, input=[1, 2]).json()["tokens"] == ["1", "2"]
