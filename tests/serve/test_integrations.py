"""Tests of Chroma and LangChain with a model in the same process, against `encode`."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from pathlib import Path

import chromadb
import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

import qkv
from qkv.integrations import chroma, langchain
from qkv.integrations.chroma import TextEncoder as ForChroma
from qkv.integrations.langchain import TextEncoder as ForLangChain

TEXTS = [
    "The river flows into the sea.",
    "The bank charges a fee for the loan.",
    "The cat sleeps on the mat.",
]
QUERY = "where a river ends"
MODEL = qkv.load("minilm")


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model that puts prompts before queries and documents."""
    folder = tmp_path_factory.mktemp("prompted")
    qkv.load("books").save(folder)
    said = '{"prompts": {"query": "river ", "document": "the cat "}}'
    (folder / "config_sentence_transformers.json").write_text(said)
    return str(folder)


def test_a_collection_of_chroma() -> None:
    client = chromadb.EphemeralClient()
    texts = client.create_collection("texts", embedding_function=ForChroma("minilm"))
    texts.add(ids=["river", "loan", "cat"], documents=TEXTS)
    kept = texts.get(include=["embeddings"])["embeddings"]
    assert np.abs(kept - MODEL.encode(TEXTS)).max() < 1e-6
    found = texts.query(query_texts=[QUERY], n_results=3)
    assert found["ids"][0][0] == "river"
    cosines = MODEL.similarity(MODEL.encode(QUERY), MODEL.encode(TEXTS))[0]
    np.testing.assert_allclose(found["distances"][0], 1 - np.sort(cosines)[::-1], atol=1e-5)
    client.delete_collection("texts")


def test_a_collection_on_disk(tmp_path: Path) -> None:
    """Another process opens the collection without the name of the model that made it."""
    client = chromadb.PersistentClient(tmp_path / "base")
    function = ForChroma("books", truncate_dim=20, normalize_embeddings=True)
    texts = client.create_collection("texts", embedding_function=function)
    texts.add(ids=["river", "loan", "cat"], documents=TEXTS)
    expected = texts.query(query_texts=[QUERY], n_results=3)
    program = (
        "import sys, chromadb\n"
        "from qkv.integrations.chroma import TextEncoder\n"
        "texts = chromadb.PersistentClient(sys.argv[1]).get_collection('texts')\n"
        "print(texts.query(query_texts=[sys.argv[2]], n_results=3)['distances'])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "base"), QUERY],
        check=True,
        capture_output=True,
        text=True,
    )
    np.testing.assert_allclose(
        np.fromstring(run.stdout.strip("[]\n"), sep=","), expected["distances"][0], atol=1e-6
    )


def test_chroma_tells_queries_from_documents(prompted: str) -> None:
    function, model = ForChroma(prompted), qkv.load(prompted)
    np.testing.assert_allclose(function(TEXTS), model.encode_document(TEXTS), atol=1e-6)
    np.testing.assert_allclose(function.embed_query(TEXTS), model.encode_query(TEXTS), atol=1e-6)
    assert np.abs(np.array(function(TEXTS)) - function.embed_query(TEXTS)).max() > 0.01
    assert isinstance(function, chromadb.EmbeddingFunction)
    assert not function.is_legacy()
    assert ForChroma.build_from_config(function.get_config()).get_config() == {"model": prompted}


def test_chroma_stores_paths_and_numbers_of_numpy(prompted: str) -> None:
    options = {"truncate_dim": np.int64(20), "normalize_embeddings": np.bool_(True)}
    function = ForChroma(Path(prompted), **options)
    client = chromadb.EphemeralClient()
    texts = client.create_collection("numbers", embedding_function=function)
    texts.add(ids=["river", "loan", "cat"], documents=TEXTS)
    kept = texts.get(include=["embeddings"])["embeddings"]
    model = qkv.load(prompted)
    expected = model.encode_document(TEXTS, truncate_dim=20, normalize_embeddings=True)
    np.testing.assert_allclose(kept, expected, atol=1e-6)
    config = {"model": prompted, "truncate_dim": 20, "normalize_embeddings": True}
    assert json.loads(json.dumps(function.get_config())) == config
    client.delete_collection("numbers")


def test_a_store_of_langchain() -> None:
    encoder = ForLangChain("minilm")
    assert isinstance(encoder, Embeddings)
    store = InMemoryVectorStore(encoder)
    store.add_documents([Document(text) for text in TEXTS])
    found = store.similarity_search_with_score(QUERY, k=3)
    cosines = MODEL.similarity(MODEL.encode(QUERY), MODEL.encode(TEXTS))[0]
    assert [one.page_content for one, _ in found] == [TEXTS[n] for n in np.argsort(-cosines)]
    np.testing.assert_allclose([score for _, score in found], -np.sort(-cosines), atol=1e-5)


def test_langchain_tells_queries_from_documents(prompted: str) -> None:
    encoder, model = ForLangChain(prompted, truncate_dim=9), qkv.load(prompted)
    documents, query = encoder.embed_documents(TEXTS), encoder.embed_query(QUERY)
    assert {type(x) for row in [*documents, query] for x in row} == {float}
    np.testing.assert_allclose(documents, model.encode_document(TEXTS, truncate_dim=9), atol=1e-6)
    np.testing.assert_allclose(query, model.encode_query(QUERY, truncate_dim=9), atol=1e-6)
    assert asyncio.run(encoder.aembed_documents(TEXTS)) == documents
    assert asyncio.run(encoder.aembed_query(QUERY)) == query
    assert encoder.embed_documents([]) == []


@pytest.mark.parametrize("module", [chroma, langchain])
def test_the_class_that_is_created_on_first_use_can_be_pickled(module: object) -> None:
    """The class is created when it is first used, and pickle finds it again by its name."""
    made = module.TextEncoder  # type: ignore[attr-defined]  # by the module's own __getattr__
    assert pickle.loads(pickle.dumps(made)) is made
    with pytest.raises(AttributeError, match="has no attribute 'Encoder'"):
        module.Encoder  # type: ignore[attr-defined]  # noqa: B018  # asking for it is what fails
