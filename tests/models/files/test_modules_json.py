"""Tests of the modules in modules.json: their order and results, against values by hand."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.models import load
from qkv.models.files._modules_json import Module, Routing

from ..formulas import layer_norm
from ..support import refused, tokenizer_json

TABLE = np.arange(38, dtype=np.float32).reshape(19, 2)  # a row for each word of the small tokenizer
CAT, SAT = 5, 6
ANY = "sentence_transformers.models."


def listed(folder, *modules):
    """Write modules.json from pairs (module type, folder)."""
    values = [{"path": place, "type": f"{ANY}{kind}"} for kind, place in modules]
    folder.json("modules.json", values)


def with_table(folder, place="", table=TABLE):
    """Write a table of vectors and its tokenizer."""
    folder.text(f"{place}/tokenizer.json".lstrip("/"), tokenizer_json())
    (folder.path / place).mkdir(exist_ok=True)
    save_file({"embedding.weight": table}, folder.path / place / "model.safetensors")


def test_static_embedding_is_the_mean_of_token_rows(folder):
    """A text's vector is the mean of its words' rows, without [CLS] and [SEP]."""
    with_table(folder)
    listed(folder, ("StaticEmbedding", ""), ("Normalize", "1"))
    model = load(folder.path)
    mean = (TABLE[CAT] + TABLE[SAT]) / 2
    found = model.encode(["cat sat", ""])
    np.testing.assert_allclose(found, [mean / np.linalg.norm(mean), [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(model.encode("cat sat", normalize_embeddings=False), mean)
    assert load(folder.path, dtype=np.float64).encode("cat").dtype == np.float64


def test_saving_over_another_model_removes_its_config(folder, tmp_path):
    """A static embedding has no config.json; saving removes the previous model's config.json."""
    folder.write()
    load(folder.path).save(tmp_path / "copy")
    for name in ("config.json", "model.safetensors"):
        (folder.path / name).unlink()
    with_table(folder)
    listed(folder, ("StaticEmbedding", ""))
    load(folder.path).save(tmp_path / "copy")
    assert not (tmp_path / "copy/config.json").exists()
    np.testing.assert_array_equal(load(tmp_path / "copy").encode("cat"), TABLE[CAT])


def test_layer_norm_after_a_static_embedding(folder):
    with_table(folder)
    listed(folder, ("StaticEmbedding", ""), ("LayerNorm", "1_LayerNorm"), ("Dropout", "2"))
    folder.json("1_LayerNorm/config.json", {"dimension": 2})
    weight, bias = np.float32([2, 3]), np.float32([10, 20])
    save_file(
        {"norm.weight": weight, "norm.bias": bias}, folder.path / "1_LayerNorm/model.safetensors"
    )
    expected = layer_norm(TABLE[CAT].astype(np.float64), weight, bias, 1e-5)
    np.testing.assert_allclose(load(folder.path).encode("cat"), expected, rtol=1e-6)


def routed(folder, **parameters):
    """Write a Router with two tables, and return its folder.

    Each value in the second table is twice the value in the first table.
    """
    listed(folder, ("Router", ""))
    for name, factor in (("a", 1), ("b", 2)):
        with_table(folder, name, factor * TABLE)
    values = {
        "types": {name: f"{ANY}StaticEmbedding" for name in "ab"},
        "structure": {"query": ["a"], "document": ["b"]},
        "parameters": parameters,
    }
    folder.json("router_config.json", values)
    return folder.path


def test_routes(folder, tmp_path):
    model = load(routed(folder, default_route="document"))
    model.save(tmp_path / "copy")
    for one in (model, load(tmp_path / "copy")):
        np.testing.assert_array_equal(one.encode_query("cat"), TABLE[CAT])
        np.testing.assert_array_equal(one.encode("cat", task="query"), TABLE[CAT])
        np.testing.assert_array_equal(one.encode_document("cat"), 2 * TABLE[CAT])
        np.testing.assert_array_equal(one.encode("cat"), 2 * TABLE[CAT])
        assert repr(one).endswith("routes query, document>")
    with pytest.raises(TypeError, match="encode: task is int"):
        model.encode("cat", task=3)
    with pytest.raises(ValueError, match="encode_stream: there is no route for the task 'x'"):
        model.encode_stream(["cat"], task="x")


def test_a_new_array_changes_one_route_only(folder):
    """A new array changes the table of one route only."""
    model = load(routed(folder, default_route="document"))
    model.parameters["embed.weight"] = 5 * TABLE
    model.routes["query"].parameters["embed.weight"] = 7 * TABLE
    np.testing.assert_array_equal(model.encode("cat"), 5 * TABLE[CAT])
    np.testing.assert_array_equal(model.encode_query("cat"), 7 * TABLE[CAT])
    other = model.with_parameters({"embed.weight": 3 * TABLE})
    np.testing.assert_array_equal(other.encode("cat"), 3 * TABLE[CAT])
    np.testing.assert_array_equal(other.encode_query("cat"), 7 * TABLE[CAT])


@pytest.mark.parametrize(
    ("parameters", "ways"),
    [
        ({}, {None: "query", "query": "query", "document": "document", "x": None}),
        ({"allow_empty_key": False}, {None: None, "query": "query", "x": None}),
        ({"default_route": "document"}, {None: "document", "x": None}),
        (
            {"route_mappings": {"('x', 'text')": "query", "(None, None)": "document"}},
            {None: "document", "query": "document", "x": "query"},
        ),
        ({"route_mappings": {"('x', 'image')": "query"}}, {"x": None, None: "query"}),
    ],
)
def test_route_of_each_task(folder, parameters, ways):
    model = load(routed(folder, **parameters))
    assert {task: model.routing.way(task) for task in ways} == ways


def test_a_text_route_takes_precedence_over_the_default():
    routing = Routing({"query": (), "text": (Module("StaticEmbedding", ""),)}, default="query")
    assert [routing.way(task) for task in (None, "query", "x")] == ["text", "query", "text"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"types": 3}, "must have `structure`, the modules of each route"),
        ({"structure": {"query": []}}, "must have `structure`, the modules of each route"),
        ({"types": {"a": f"{ANY}LSTM", "b": f"{ANY}Pooling"}}, "does not support the module"),
        ({"types": {"a": f"{ANY}Router", "b": f"{ANY}Pooling"}}, "a router inside a router"),
        ({"types": {"a": f"{ANY}Pooling", "b": f"{ANY}Pooling"}}, "its modules are Pooling"),
        (
            {"types": {"../a": f"{ANY}Pooling"}, "structure": {"q": ["../a"]}},
            "is outside the model's folder",
        ),
        ({"parameters": {"default_route": 3}}, "3 is not a route"),
        ({"parameters": {"route_mappings": {"(1, 2, 3)": "query"}}}, "route_mappings has"),
    ],
)
def test_a_router_that_is_broken(folder, change, words):
    path = routed(folder) / "router_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    refused(folder.path, words)


def test_two_routers(folder):
    routed(folder)
    listed(folder, ("Router", ""), ("Router", "1"))
    refused(folder.path, "has 2 routers, but qkv supports only one")


def test_a_table_without_a_tokenizer(folder):
    with_table(folder)
    listed(folder, ("StaticEmbedding", ""))
    (folder.path / "tokenizer.json").unlink()
    refused(folder.path, "tokenizer.json: the file is missing")


def test_a_tokenizer_that_truncates_on_the_left_is_refused(folder):
    with_table(folder)
    listed(folder, ("StaticEmbedding", ""))
    rules = json.loads(tokenizer_json())
    cut = {"direction": "Left", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    folder.json("tokenizer.json", rules | {"truncation": cut})
    refused(folder.path, "the tokenizer truncates texts on the left, but qkv truncates on the rig")
