"""Tests of `POST /v1/trace` with edits: each op of the page, on an encoder and on decoders."""

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load
from starlette.testclient import TestClient

import qkv
from browser.edited import CHANGES, Edit, Result, examples, part, run
from models.decoders import gpt2
from models.small_models import CONFIGS, write_small
from models.support import mask_bert
from qkv.models import Model
from qkv.models.network.batch import Layout
from qkv.models.run.edited_run import EditedRun, MaskedKey
from qkv.serve.routes import _trace_route as trace_route
from qkv.serve.routes._trace_route import WORK, changes_of

from ..conftest import app_client, refused

TEXT = "the cat sat on the [MASK]"  # 8 tokens
PATTERN = {"op": "patch", "at": "pattern", "layer": 0, "from": "the dog ran by the [MASK]"}
OCTETS = {"Accept": "application/octet-stream"}


def lists_of(edits: dict[str, Edit]) -> list[list[Edit]]:
    """Return each edit alone, all combinations of three edits, and seven further lists.

    The further lists mask a link in one layer or one head, ablate a whole layer, change the same
    values twice, or mask all keys of one query.
    """
    size = len(edits["row"]["weights"])
    return [
        *([edit] for edit in edits.values()),
        *map(list, itertools.combinations(edits.values(), 3)),
        [{"op": "mask", "query": 4, "key": 1, "layer": 1}],
        [{"op": "mask", "query": 4, "key": 1, "layer": 0, "head": 2}],
        [{"op": "ablate", "layer": 1}],
        [{"op": "ablate", "layer": 0, "head": None}],
        [{"op": "scale", "value": 3.0}, {"op": "scale", "value": 0}],
        [edits["row"], edits["row"] | {"weights": [0.1] * size}],
        [{"op": "mask", "query": 3, "key": key} for key in range(size)],
    ]


INSIDE = ("q", "k", "v", "z", "attn_out", "resid_mid", "mlp_out", "resid_post")


def post(client: TestClient, **body: Any) -> Any:
    return client.post("/v1/trace", json=body)


def whole(client: TestClient, text: str, edits: list[Edit], at: list[int]) -> Any:
    """Request all arrays that the page requests, and return them."""
    asked = {"input": text, "edits": edits, "include": ["text", "resid"], "at": at, "inside": [1]}
    response = client.post("/v1/trace", json=asked, headers=OCTETS)
    assert response.status_code == 200, response.text
    return load(response.content)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """An encoder of twelve layers in float64."""
    folder = tmp_path_factory.mktemp("twelve")
    mask_bert(folder, num_hidden_layers=12)
    return qkv.load(folder, dtype=np.float64)


@pytest.fixture(scope="module")
def client(encoder: Model) -> Iterator[TestClient]:
    with app_client(encoder) as found:
        yield found


def test_an_encoder_of_twelve_layers(client: TestClient, encoder: Model) -> None:
    ids = encoder.tokenize(TEXT).ids.tolist()
    plain = run(encoder, ids, [])
    for edits in [[], *lists_of(examples(len(ids), "dog", encoder.dim))]:
        found = whole(client, TEXT, edits, [6, 1])
        expected = run(encoder, ids, edits)
        assert found["pattern"].shape == (12, 3, len(ids), len(ids))
        agree(found, expected, [6, 1])
        inside = {name: expected.inside[1][name] for name in INSIDE}
        for name, array in inside.items():
            mine = found[f"inside.1.{name}"].reshape(len(ids), -1)
            np.testing.assert_allclose(mine, array.reshape(mine.shape), atol=1e-9)
        assert edits == [] or np.abs(found["resid"] - plain.resid).max() > 1e-4, edits


def agree(found: Any, expected: Result, at: list[int]) -> None:
    np.testing.assert_allclose(found["pattern"], expected.pattern, atol=1e-10)
    np.testing.assert_allclose(found["resid"], expected.resid, atol=1e-8)
    np.testing.assert_allclose(found["logits"], expected.logits[at], atol=1e-8)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
def test_decoders(tmp_path: Path, kind: str) -> None:
    if kind == "gpt2":
        model, text, word = gpt2(tmp_path / kind, seed=2), "the cat", "Ġthe"
    else:
        model = qkv.load(write_small(tmp_path / kind, CONFIGS[kind]), dtype=np.float64)
        text, word = "the cat sat on the cat", "dog"
    ids = model.tokenize(text).ids.tolist()
    with app_client(model) as client:
        kinds = examples(len(ids), word, model.dim)
        kinds["patch"]["from"] = text.replace("the cat", "a dog")
        for edits in lists_of(kinds):
            found = whole(client, text, edits, [4])
            trace = by_the_library(model, ids, edits)
            layers = range(model.num_layers)
            resid = [trace["full_embed" if kind == "gpt2" else "embed"][0]]
            resid += [trace["resid_post", layer][0] for layer in layers]
            pattern = [trace["pattern", layer][0] for layer in layers]
            np.testing.assert_allclose(found["pattern"], pattern, atol=1e-10)
            np.testing.assert_allclose(found["resid"], resid, atol=1e-8)
            np.testing.assert_allclose(found["logits"], trace["logits"][0, [4]], atol=1e-8)


def by_the_library(model: Model, ids: list[int], edits: list[Edit]) -> Any:
    """Trace with `hide`, `ablate` and `edit`; scale the scores themselves, not the queries."""
    ids, layers = list(ids), range(model.num_layers)
    hide: list[Any] = []
    ablate: list[Any] = []
    change: dict[Any, Any] = {}
    for edit in edits:
        if edit["op"] == "hide":
            hide.append(edit["token"])
        elif edit["op"] == "mask":
            edge = (edit["query"], edit["key"], edit.get("layer"), edit.get("head"))
            hide.append(tuple(one for one in edge if one is not None))
        elif edit["op"] == "ablate":
            ablate.append((edit["layer"], edit.get("head")))
        elif edit["op"] == "swap":
            ids[edit["token"]] = model.tokenizer.vocabulary[edit["with"]]
        elif edit["op"] == "scale":
            for layer in layers:
                change["attn_scores", layer] = partial(scaled, model, layer, edit["value"])
        elif edit["op"] == "row":
            rows = [one for one in edits if one["op"] == "row"]
            change["pattern", edit["layer"]] = partial(with_rows, rows)
        elif edit["op"] in CHANGES:
            if edit["op"] == "patch":
                found = model.trace(edit["from"])[edit["at"], edit["layer"]][0]
                value = part(found.reshape(len(ids), -1), edit, model.num_heads)
                edit = edit | {"value": value}
            change[edit["at"], edit["layer"]] = partial(with_text, edit)
    return model.trace(ids, hide=hide, ablate=ablate, edit=change, logits=True)


def scaled(model: Model, layer: int, value: float, scores: np.ndarray) -> np.ndarray:
    """Scale raw scores by `value` instead of the usual factor.

    If the model has a soft cap, remove the cap before the scaling, and apply the cap again after
    the scaling.
    """
    config = model.config
    usual = config.get("query_pre_attn_scalar", model.layers[layer].attn.d_query) ** -0.5
    cap = config.get("attn_logit_softcapping")
    seen = ~np.isneginf(scores)
    found = scores.copy()
    raw = scores[seen] if cap is None else cap * np.arctanh(scores[seen] / cap)
    found[seen] = raw / usual * value
    if cap is not None:
        found[seen] = cap * np.tanh(found[seen] / cap)
    return found


def with_text(edit: Edit, array: np.ndarray) -> np.ndarray:
    """Apply an edit to an activation (1, T, D) or (1, T, H, d), or to the pattern."""
    flat = array[0] if edit["at"] == "pattern" else array[0].reshape(array.shape[1], -1)
    return CHANGES[edit["op"]](flat, edit, array.shape[2]).reshape(array.shape)


def with_rows(rows: list[Edit], pattern: np.ndarray) -> np.ndarray:
    for row in rows:
        pattern[:, row["head"], row["query"]] = row["weights"]
    return pattern


def test_json_says_the_same(client: TestClient, encoder: Model) -> None:
    edits = [examples(8, "dog", 12)["swap"]]
    asked = {"input": TEXT, "edits": edits, "include": ["text", "resid"], "at": [], "inside": -1}
    answer = post(client, **asked).json()
    tokens = encoder.tokenize(TEXT)
    assert answer["tokens"][2] == "dog"
    assert [*answer["tokens"][:2], "cat", *answer["tokens"][3:]] == tokens.tokens
    assert answer["offsets"] == list(map(list, tokens.offsets))
    assert answer["special"] == tokens.special
    assert answer["ids"][2] == encoder.tokenizer.vocabulary["dog"]
    binary = client.post("/v1/trace", json=asked, headers=OCTETS).content
    for name, array in load(binary).items():
        what, *rest = name.split(".", 2)
        shown = answer[what][rest[0]][rest[1]] if rest else answer[name]
        assert np.array(shown).shape == array.shape or array.size == 0
        np.testing.assert_allclose(np.array(shown).ravel(), array.ravel())
    assert answer["logits"] == []
    assert list(answer["inside"]) == ["11"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"edits": "causal"}, "edits", 'is "causal"; pass a list of objects with op'),
    ({"edits": [{"op": "hyde"}]}, "edits", "edits[0] has op 'hyde': it must be one of hide, mask"),
    ({"edits": [None]}, "edits", "edits[0] is None; pass a record, such as"),
    ({"edits": [{"op": ["hide"]}]}, "edits", "edits[0] has op ['hide']: it must be"),
    ({"edits": [{"op": "causal"}, {"op": "hide"}]}, "edits", "edits[1] (hide) has no token: it"),
    ({"edits": [{"op": "hide", "token": 8}]}, "edits", "has token 8; pass 0 to 7, because the"),
    ({"edits": [{"op": "hide", "token": -1}]}, "edits", "has token -1"),
    ({"edits": [{"op": "hide", "token": True}]}, "edits", "has token True"),
    ({"edits": [{"op": "hide", "token": 1.0}]}, "edits", "has token 1.0"),
    (
        {"edits": [{"op": "mask", "query": 1, "key": 2**70}]},
        "edits",
        "has key 1.1805916207174113e+21",
    ),
    ({"edits": [{"op": "mask", "query": 1, "key": 1, "head": 2}]}, "edits", "has head 2 and no"),
    ({"edits": [{"op": "ablate", "head": 1}]}, "edits", "has no layer: it needs layer and may"),
    ({"edits": [{"op": "ablate", "layer": 0, "head": 3}]}, "edits", "has head 3; pass 0 to 2"),
    ({"edits": [{"op": "scale", "value": "1"}]}, "edits", "has value '1'; pass a finite number"),
    ({"edits": [{"op": "scale", "value": 1e300}]}, "edits", "pass a finite number"),
    ({"edits": [examples(7, "dog", 12)["row"]]}, "edits", "; pass 8 finite numbers, one for each"),
    ({"edits": [examples(8, "no such entry", 12)["swap"]]}, "edits", "pass one entry of the vocab"),
    ({"at": [8]}, "at", "has 8 and there are 8 tokens; pass 0 to 7"),
    ({"at": [-1]}, "at", "has -1"),
    ({"at": 3}, "at", "is 3; pass a list of positions"),
    ({"inside": [12]}, "inside", "has 12: this model has 12, numbered 0 to 11"),
    ({"include": ["everything"]}, "include", 'pass a list of "text" and "resid"'),
    ({"top_k": 2, "at": []}, "top_k", "is only for weights"),
    ({"top_k": 2, "edits": [examples(8, "dog", 12)["row"]]}, "top_k", "with an edit of scores"),
    ({"top_k": 2, "edits": [{"op": "scale", "value": 2}]}, "top_k", "such as row or scale"),
    (
        {"edits": [{"op": "patch", "at": "z", "layer": 0, "from": f"a {n}"} for n in range(17)]},
        "edits",
        "edits take activations from 17 texts, and each text needs a forward pass: "
        "use at most 16 texts",
    ),
    (
        {"edits": [{"op": "patch", "at": "z", "layer": 0, "from": "a dog"}]},
        "edits",
        "has from 'a dog'; pass a text of 8 tokens, because text 0 has 8 tokens; "
        "the given text has 4",
    ),
    ({"top_k": 2, "edits": [PATTERN]}, "top_k", "edit"),
    ({"edits": [{"op": "causal"}] * 2049}, "edits", "has 2,049 edits: send at most 2,048"),
]


@pytest.mark.parametrize(("asked", "param", "complaint"), WRONG, ids=lambda value: str(value)[:60])
def test_an_invalid_request_gets_an_error_that_names_its_key(
    client: TestClient, asked: dict[str, Any], param: str, complaint: str
) -> None:
    assert refused(post(client, input=TEXT, **asked), param, complaint).startswith("trace: ")


def test_records_set_any_activation(tmp_path: Path) -> None:
    model = gpt2(tmp_path / "gpt2", seed=0)
    other = model.trace("the dog")
    with app_client(model) as client:
        for name in ("hook_embed", "blocks.1.mlp.hook_post", "ln_final.hook_normalized"):
            record = {
                "op": "set",
                "at": name.rpartition("hook_")[2],
                "value": other[name][0].tolist(),
            }
            record |= {"layer": 1} if "blocks" in name else {}
            record |= {"at": "ln_final.normalized"} if "final" in name else {}
            found = post(client, input="the cat", edits=[record], at=[2]).json()["logits"][0]
            expected = model.trace("the cat", edit={name: other[name]}, logits=True)["logits"]
            np.testing.assert_allclose(found, expected[0, 2], rtol=0, atol=1e-4)


@pytest.mark.parametrize("written", ["1" + 400 * "0", str(2**70), 5000 * "9"], ids=len)
def test_a_scale_beyond_64_bits_is_refused(client: TestClient, written: str) -> None:
    body = (
        f'{{"input": "the \\"value\\": {2**70}", "edits": [{{"op": "scale", "value": {written}}}]}}'
    )
    message = refused(client.post("/v1/trace", content=body), "edits")
    assert message.startswith(f"trace: edits have the value {written[:22]}")
    assert message.endswith("...; pass a number that fits in 64 bits")


@pytest.mark.parametrize("kind", ["minilm", "t5"])
def test_a_model_that_gives_no_logits(tmp_path: Path, kind: str) -> None:
    folder = write_small(tmp_path / kind, CONFIGS[kind]) if kind in CONFIGS else kind
    model = qkv.load(folder)
    with app_client(model) as client:
        refused(post(client, input="the cat", at=[1]), "at", "has none: leave it out")
        hidden = post(client, input="the cat", edits=[{"op": "hide", "token": 1}]).json()
    assert not np.array(hidden["pattern"])[..., 1].any()


def test_included_arrays_count_towards_the_size_of_the_answer(encoder: Model) -> None:
    size = 8 * 8 * 12 * 3 * 4 + 13 * 8 * 12 * 4
    for answer, status in ((4 * size, 200), (size - 1, 413)):
        with app_client(encoder, answer=answer) as client:
            asked = {"input": TEXT, "include": ["resid"]}
            assert client.post("/v1/trace", json=asked, headers=OCTETS).status_code == status


# the cost of edits


def test_edits_that_say_the_same_are_computed_once(encoder: Model) -> None:
    """A repeated causal edit is one mask, not a list of its 28 edges."""
    edits: list[Edit] = [
        *([{"op": "causal"}] * 500),
        *([{"op": "hide", "token": 2}] * 500),
        *([{"op": "mask", "query": 4, "key": 1}] * 500),
        *([{"op": "ablate", "layer": 1, "head": 2}] * 500),
    ]
    found = changes_of(encoder, encoder.tokenize(TEXT), edits)
    assert (len(found.run.masked), found.run.ablated) == (3, {1: {2: 0}})


def test_many_causal_edits_are_answered_as_one(client: TestClient) -> None:
    one, many = ([{"op": "causal"}] * count for count in (1, 2048))
    found, expected = (whole(client, TEXT, edits, [6]) for edits in (many, one))
    assert not np.triu(found["pattern"], 1).any()
    np.testing.assert_array_equal(found["pattern"], expected["pattern"])


def test_a_causal_edit_equals_hiding_all_its_edges(encoder: Model) -> None:
    """The edit and the masked edges give equal weights, also for several texts and more masks."""
    texts = [TEXT, "the cat"]
    edges = list(itertools.combinations(range(8), 2))
    for more in ([], [2], [(4, 1, 0, 2)]):
        found = encoder.trace(texts, edit=[{"op": "causal"}], hide=more)
        expected = encoder.trace(texts, hide=[*edges, *more])
        for layer in range(encoder.num_layers):
            np.testing.assert_array_equal(found["pattern", layer], expected["pattern", layer])


def test_a_causal_mask_accounts_for_cached_positions() -> None:
    """Three queries after two cached positions see three, four and five keys."""
    edits = EditedRun(masked=[MaskedKey(0, None, None, None, None)], heads=[2])
    [mask] = edits.masks(Layout([0], first=np.array([2])), 5, queries=3).values()
    expected = [[True] * 3 + [False] * 2, [True] * 4 + [False], [True] * 5]
    np.testing.assert_array_equal(mask[0, 0], expected)
    assert edits.visible(Layout([0]), 5) is None


# Bytes for 8 tokens: a mask of all layers, a mask of one layer, a mask of one layer's 3 heads, and
# 6 copies of the weights of 3 heads in float64.
COSTS: list[tuple[list[Edit], int]] = [
    ([], 0),
    ([{"op": "hide", "token": 2}], 8),
    ([{"op": "causal"}], 64),
    ([{"op": "causal"}, {"op": "mask", "query": 4, "key": 1, "layer": 1}], 64 + 64),
    ([{"op": "mask", "query": 4, "key": 1, "layer": 1, "head": 0}], 64 + 64 * 3),
    ([{"op": "scale", "value": 2}], 6 * 3 * 64 * 8),
    ([examples(8, "dog", 12)["row"], {"op": "causal"}], 64 + 6 * 3 * 64 * 8),
]


@pytest.mark.parametrize(("edits", "size"), COSTS, ids=str)
def test_the_cost_of_edits_is_counted_before_computing(
    encoder: Model, monkeypatch: pytest.MonkeyPatch, edits: list[Edit], size: int
) -> None:
    assert changes_of(encoder, encoder.tokenize(TEXT), edits).size(encoder) == size
    if size < 100:
        return
    monkeypatch.setattr(encoder, "trace", None)
    with app_client(encoder, answer=(size - 1) // WORK) as client:
        asked = {"input": TEXT, "layers": 0, "heads": 0, "top_k": 1, "edits": edits}
        if "row" in str(edits) or "scale" in str(edits):
            del asked["top_k"]
        response = client.post("/v1/trace", json=asked, headers=OCTETS)
    assert response.status_code == 413, response.text
    assert response.json()["error"]["code"] == "answer_too_large"


# values that are not finite

HUGE: list[list[Edit]] = [
    [{"op": "scale", "value": 3e38}],
    [{"op": "scale", "value": -3e38}],
    [{"op": "row", "layer": 0, "head": 0, "query": 1, "weights": [3e38] * 4}],
]


@pytest.mark.parametrize("edits", HUGE, ids=str)
@pytest.mark.parametrize("kind", ["application/json", OCTETS["Accept"]])
def test_values_that_are_not_finite_are_refused(edits: list[Edit], kind: str) -> None:
    """The edits make numbers that overflow in float32 and would be null in JSON."""
    with app_client(qkv.load("random")) as client:
        for more in ({"include": ["resid"]}, {"inside": [0, -1]}):
            asked = {"input": "I love you all", "edits": edits, **more}
            response = client.post("/v1/trace", json=asked, headers={"Accept": kind})
            message = refused(response, "edits")
            assert message.startswith("trace: edits lead to values of ")
            assert message.endswith(" that are not finite; pass smaller numbers")


def test_values_that_are_not_finite_without_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = qkv.load("random")
    monkeypatch.setattr(trace_route, "arrays_of", lambda *_: {"resid": np.array([[np.nan]])})
    with app_client(model) as client:
        response = post(client, input="I love you")
    assert refused(response, None, status=500) == (
        "trace: resid of random has values that are not finite: "
        "check the values and the type of the weights"
    )


def test_only_masked_scores_are_null_in_json(client: TestClient, encoder: Model) -> None:
    asked = {"input": TEXT, "edits": [{"op": "causal"}], "inside": 0}
    scores = post(client, **asked).json()["inside"]["0"]["attn_scores"]
    masked = [[[value is None for value in row] for row in head] for head in scores]
    np.testing.assert_array_equal(masked, np.triu(np.ones((3, 8, 8), bool), 1))


def test_a_text_of_too_many_tokens(encoder: Model) -> None:
    with app_client(encoder, tokens=7) as client:
        message = refused(post(client, input=TEXT), "input")
    assert message == "trace: input has 8 tokens: send at most 7"
