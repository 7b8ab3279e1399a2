"""Tests of folders with a `Router` against sentence-transformers, which saves them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Router,
    Transformer,
)

import qkv
from qkv.models import Pool

from .sentences import WORDS, random_bert
from .support import close, texts_from

TEXTS = texts_from(WORDS, 30, 20)
PROMPTS = {"query": "w1 w2 ", "document": "w3 "}
TASKS = (None, "query", "document")


def transformer(folder: Path, dim: int = 24, limit: int = 40, seed: int = 0) -> Transformer:
    """Save a random BERT of this size to the folder, and return it as a module."""
    random_bert(folder, limit, seed, hidden_size=dim, max_position_embeddings=limit)
    return Transformer(str(folder))


def saved(folder: Path, *modules: Any, **options: Any) -> tuple[qkv.Model, SentenceTransformer]:
    """Save these modules with sentence-transformers, and load them with both libraries."""
    SentenceTransformer(modules=list(modules), device="cpu", **options).save(str(folder))
    return both(folder)


def both(folder: Path) -> tuple[qkv.Model, SentenceTransformer]:
    return qkv.load(folder), SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def compare(ours: qkv.Model, theirs: SentenceTransformer, tasks: Any = TASKS) -> None:
    """Compare `encode` for each task, and `encode_query` and `encode_document`."""
    for task in tasks:
        close(ours.encode(TEXTS, task=task), theirs.encode(TEXTS, task=task))
    for name in ("encode_query", "encode_document"):
        if name.removeprefix("encode_") in tasks:
            close(getattr(ours, name)(TEXTS), getattr(theirs, name)(TEXTS))
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[qkv.Model, SentenceTransformer]:
    """Return a router of two BERTs with different sizes and limits, but vectors of one size."""
    home = tmp_path_factory.mktemp("two")
    router = Router.for_query_document(
        [transformer(home / "q", 12, 30, 1), Pooling(12, "cls"), Dense(12, 24)],
        [transformer(home / "d", 24, 40, 2), Pooling(24, "mean")],
    )
    return saved(home / "whole", router, Normalize(), prompts=PROMPTS)


def test_each_task_takes_its_route(two: tuple[qkv.Model, SentenceTransformer]) -> None:
    ours, theirs = two
    compare(ours, theirs)
    vectors = [ours.encode(TEXTS, task=task) for task in TASKS]
    np.testing.assert_array_equal(vectors[0], vectors[2])
    assert np.abs(vectors[0] - vectors[1]).max() > 0.1
    assert list(ours.routes) == ["query", "document"]
    assert [one.dim for one in ours.routes.values()] == [12, 24]
    assert ours.routes["document"] is ours
    close(ours.routes["query"].encode(TEXTS), theirs.encode(TEXTS, task="query"))
    assert dict(ours.prompts) == theirs.prompts


@pytest.mark.parametrize("task", TASKS)
def test_options_go_with_each_route(
    two: tuple[qkv.Model, SentenceTransformer], task: str | None
) -> None:
    ours, theirs = two
    for options in (
        {"prompt_name": "query", "truncate_dim": 5},
        {"prompt": "w9 ", "normalize_embeddings": True},
    ):
        close(ours.encode(TEXTS, task=task, **options), theirs.encode(TEXTS, task=task, **options))
    close(ours.encode(TEXTS[0], task=task), theirs.encode(TEXTS[0], task=task))
    streamed = np.concatenate(list(ours.encode_stream(iter(TEXTS), task=task)))
    close(streamed, theirs.encode(TEXTS, task=task))
    rows = ours.encode(TEXTS, task=task, output_value="token_embeddings")
    expected = theirs.encode(TEXTS, task=task, output_value="token_embeddings")
    for mine, other in zip(rows, expected, strict=True):
        close(mine, other)


@pytest.mark.parametrize("task", TASKS)
def test_an_edit_applies_to_the_route_of_the_task(
    two: tuple[qkv.Model, SentenceTransformer], task: str | None
) -> None:
    """Ablation with a task gives the same vectors as ablation in the model of the task's route."""
    ours, _ = two
    plain = ours.encode(TEXTS, task=task)
    assert np.abs(ours.encode(TEXTS, task=task, ablate=[(0, None)]) - plain).max() > 1e-3
    expected = ours.routes[task or "document"].encode(TEXTS, ablate=[(0, None)])
    np.testing.assert_array_equal(ours.encode(TEXTS, task=task, ablate=[(0, None)]), expected)


def test_a_saved_router_gives_the_same_vectors(
    two: tuple[qkv.Model, SentenceTransformer], tmp_path: Path
) -> None:
    two[0].save(tmp_path)
    compare(*both(tmp_path))


def test_processes_take_the_routes(two: tuple[qkv.Model, SentenceTransformer]) -> None:
    ours, theirs = two
    with Pool(ours, 1) as pool:
        for task in TASKS:
            close(ours.encode(TEXTS, task=task, pool=pool), theirs.encode(TEXTS, task=task))
        close(ours.encode_query(TEXTS, pool=pool), theirs.encode_query(TEXTS))


@pytest.mark.filterwarnings("ignore:.* cut to 9 tokens:UserWarning")
def test_max_seq_length_applies_to_all_routes(tmp_path: Path) -> None:
    router = Router.for_query_document(
        [transformer(tmp_path / "q", 24, 30, 1), Pooling(24)],
        [transformer(tmp_path / "d", 24, 40, 2), Pooling(24)],
    )
    ours, theirs = saved(tmp_path / "whole", router)
    whole = ours.encode(TEXTS)
    for one in (ours, theirs):
        one.max_seq_length = 9
    compare(ours, theirs)
    assert np.abs(ours.encode(TEXTS) - whole).max() > 0.01
    with pytest.raises(ValueError, match="max_seq_length is 35, but whole has 30 positions"):
        ours.max_seq_length = 35
    assert [one.max_seq_length for one in ours.routes.values()] == [9, 9]


MAPPINGS: dict[str, tuple[dict[Any, str], list[str | None]]] = {
    "a task and text": ({("ask", "text"): "a", (None, "text"): "b"}, [None, "ask", "a", "other"]),
    "any task": ({(None, None): "b"}, [None, "a", "other"]),
    "any text": ({(None, "text"): "b", ("ask", None): "a"}, [None, "ask", "b"]),
    "none": ({}, [None, "a", "b"]),
    "images": ({(None, "image"): "b", (None, ("text", "image")): "b"}, [None, "a", "b"]),
}


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("default", [None, "b"])
def test_mappings(tmp_path: Path, mapping: str, default: str | None) -> None:
    """Mappings choose routes; without a default, the first route is the default."""
    chosen, tasks = MAPPINGS[mapping]
    shared = transformer(tmp_path / "bert")
    ways = {"a": [shared, Pooling(24, "cls")], "b": [shared, Pooling(24, "max")]}
    router = Router(ways, default_route=default, route_mappings=chosen)
    ours, theirs = saved(tmp_path / "whole", router)
    compare(ours, theirs, tasks)
    ours.save(tmp_path / "again")
    compare(*both(tmp_path / "again"), tasks)


def test_a_route_that_is_called_text(tmp_path: Path) -> None:
    shared = transformer(tmp_path / "bert")
    ways = {"a": [shared, Pooling(24, "cls")], "text": [shared, Pooling(24, "max")]}
    compare(*saved(tmp_path / "whole", Router(ways)), [None, "a", "text", "anything"])


def test_modules_before_and_after_a_router(tmp_path: Path) -> None:
    """Old asymmetric models have one shared transformer, and then a layer for each route."""
    ways = {
        "query": [Dense(24, 7)],
        "document": [Dense(24, 7, activation_function=torch.nn.ReLU())],
    }
    modules = [transformer(tmp_path / "bert"), Pooling(24), Router(ways), Normalize()]
    ours, theirs = saved(tmp_path / "whole", *modules)
    compare(ours, theirs)
    config = tmp_path / "whole/2_Router/router_config.json"
    config.rename(config.with_name("config.json"))  # the older name
    modules_json = tmp_path / "whole/modules.json"
    modules_json.write_text(modules_json.read_text().replace("router.Router", "router.Asym"))
    compare(*both(tmp_path / "whole"))


def test_errors(two: tuple[qkv.Model, SentenceTransformer], tmp_path: Path) -> None:
    """Both libraries refuse unknown and missing tasks, and name the routes."""
    for one in two:
        with pytest.raises(ValueError, match=r"(?i)no route .*for .*task.*"):
            one.encode(TEXTS, task="other")
    shared = transformer(tmp_path / "bert")
    ways = {"a": [shared, Pooling(24, "cls")], "b": [shared, Pooling(24, "max")]}
    pair = saved(tmp_path / "whole", Router(ways, allow_empty_key=False))
    compare(*pair, ["a", "b"])
    for one in pair:
        for call in (one.encode, one.encode_query):
            with pytest.raises(ValueError, match=r"(?i)route.*(task='|one of )a.*b"):
                call(TEXTS)


def test_a_task_without_a_router(tmp_path: Path) -> None:
    """A task has no effect without a router."""
    ours, theirs = saved(tmp_path / "whole", transformer(tmp_path / "bert"), Pooling(24))
    compare(ours, theirs, [None, "query", "document", "other"])
    assert dict(ours.routes) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"structure": {}}, "structure"),
        ({"structure": {"query": ["none"]}}, "structure"),
        ({"parameters": {"default_route": "x"}}, "'x' is not a route; the routes are query"),
        ({"parameters": {"route_mappings": {"(None, 'text')": "x"}}}, "'x' is not a route"),
        ({"parameters": {"route_mappings": {"query": "query"}}}, "route_mappings has the key"),
    ],
)
def test_files_that_are_broken(
    two: tuple[qkv.Model, SentenceTransformer], tmp_path: Path, change: Any, words: str
) -> None:
    two[0].save(tmp_path)
    path = tmp_path / "router_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(qkv.models.ModelError, match=words):
        qkv.load(tmp_path)
