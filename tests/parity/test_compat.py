"""Tests that programs for sentence-transformers give the same results with `qkv.compat`."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

import qkv
from qkv import compat

from . import test_cross_encoder as cross
from .sentences import WORDS
from .support import close
from .test_drop_in import PAIRS, compared, program
from .test_sentence_transformers import PROMPTS, TEXTS, write_whole

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
METHODS = {
    "SentenceTransformer": [
        *("encode", "similarity", "similarity_pairwise", "truncate_embeddings"),
        *("get_embedding_dimension", "get_sentence_embedding_dimension", "get_max_seq_length"),
        *("start_multi_process_pool", "stop_multi_process_pool", "encode_multi_process"),
    ],
    "CrossEncoder": ["predict", "rank"],
}
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*text(s were| was) cut to:UserWarning", "ignore:.* were cut to:UserWarning"
)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in METHODS.items() for name in names]
)
def test_methods_have_the_same_parameters(kind: str, name: str) -> None:
    ours, theirs = (
        inspect.signature(getattr(getattr(one, kind), name)).parameters.values()
        for one in (compat, sentence_transformers)
    )
    said = [
        [(one.name, one.default) for one in side if one.kind is not one.VAR_KEYWORD]
        for side in (ours, theirs)
    ]
    assert said[0] == said[1]


Both = tuple[compat.SentenceTransformer, sentence_transformers.SentenceTransformer]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole(tmp_path_factory.mktemp("compat"))


def both_of(folder: Path, **options: Any) -> Both:
    given = {"device": "cpu", "local_files_only": True, "trust_remote_code": False, **options}
    return (
        compat.SentenceTransformer(str(folder), **given),
        sentence_transformers.SentenceTransformer(str(folder), **given),
    )


def test_a_program_gives_the_same_results(folder: Path, tmp_path: Path) -> None:
    ours, theirs = both_of(folder)
    loads = (kind.SentenceTransformer for kind in (compat, sentence_transformers))
    a, b = (lambda path, kind=kind: kind(path, device="cpu") for kind in loads)
    compared(program(ours, tmp_path / "a", a), program(theirs, tmp_path / "b", b))


@pytest.mark.parametrize(
    "options",
    [
        {"prompts": {"query": "w5 w6 ", "mine": "w7 "}, "default_prompt_name": "mine"},
        {"prompts": {"document": "w2 "}, "truncate_dim": 5},
        {"similarity_fn_name": "euclidean", "model_kwargs": {"dtype": "float32"}},
    ],
    ids=str,
)
def test_arguments_of_the_class(folder: Path, options: dict[str, Any]) -> None:
    ours, theirs = both_of(folder, **options)
    for call in (
        lambda model: model.encode(TEXTS),
        lambda model: model.encode(TEXTS, "other", None, 7),
        lambda model: model.encode(TEXTS, prompt="w1 ", normalize_embeddings=True),
        lambda model: model.encode_query(TEXTS),
        lambda model: model.encode_document(TEXTS, batch_size=3),
        lambda model: model.encode(TEXTS, truncate_dim=3, convert_to_tensor=True),
        lambda model: model.similarity(*[model.encode(TEXTS[:9])] * 2),
        lambda model: model.similarity_pairwise(model.encode(TEXTS[:9]), model.encode(TEXTS[1:10])),
    ):
        close(call(ours), call(theirs))
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()
    assert (ours.prompts, ours.default_prompt_name) == (theirs.prompts, theirs.default_prompt_name)
    assert ours.similarity_fn_name == theirs.similarity_fn_name
    with ours.truncate_embeddings(4), theirs.truncate_embeddings(4):
        close(ours.encode(TEXTS), theirs.encode(TEXTS))
    close(ours.encode(TEXTS), theirs.encode(TEXTS))
    for prompts in ({"passage": "w3 "}, {"corpus": "w4 ", "document": "w5 w6 "}, {"query": "w1 "}):
        for model in (ours, theirs):
            model.prompts, model.default_prompt_name = dict(prompts), None
        close(ours.encode_document(TEXTS), theirs.encode_document(TEXTS))
        close(ours.encode_query(TEXTS), theirs.encode_query(TEXTS))
    ours.similarity_fn_name = theirs.similarity_fn_name = "dot"
    vectors = theirs.encode(TEXTS[:5])
    close(ours.similarity(vectors, vectors), theirs.similarity(vectors, vectors))


def test_tokens_and_devices(folder: Path) -> None:
    ours, theirs = both_of(folder)
    found, expected = ours.tokenize(TEXTS[:7]), theirs.tokenize(TEXTS[:7])
    mask = expected["attention_mask"].numpy()
    np.testing.assert_array_equal(found["attention_mask"], mask)
    np.testing.assert_array_equal(found["input_ids"] * mask, expected["input_ids"].numpy() * mask)
    assert ours.to("cpu").cpu().eval() is ours
    assert str(ours.device) == str(theirs.device)
    ours.max_seq_length = theirs.max_seq_length = 9
    assert ours.get_max_seq_length() == theirs.get_max_seq_length() == 9
    close(ours.encode(TEXTS), theirs.encode(TEXTS))
    with pytest.raises(ValueError, match="computes on the CPU"):
        ours.to("cuda")


def test_a_pool_encodes_the_same(folder: Path) -> None:
    ours, _ = both_of(folder)
    pool = ours.start_multi_process_pool(["cpu"] * 2)
    try:
        close(ours.encode_multi_process(TEXTS, pool, chunk_size=10), ours.encode(TEXTS))
    finally:
        ours.stop_multi_process_pool(pool)


@pytest.mark.parametrize(
    "options", [{}, {"activation_fn": torch.nn.Identity(), "max_length": 12}], ids=str
)
def test_cross_encoders(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = cross.written(tmp_path)
    given = {"device": "cpu", "num_labels": 1, "prompts": PROMPTS, **options}
    ours = compat.CrossEncoder(str(folder), **given)
    theirs = sentence_transformers.CrossEncoder(str(folder), **given)
    assert ours.max_length == theirs.max_seq_length
    for more in ({}, {"prompt_name": "other"}, {"activation_fn": torch.nn.ReLU()}):
        close(ours.predict(PAIRS, **more), theirs.predict(PAIRS, **more))
        found = ours.rank(cross.QUERY, cross.DOCUMENTS, return_documents=True, **more)
        expected = theirs.rank(cross.QUERY, cross.DOCUMENTS, return_documents=True, **more)
        scores = {one["corpus_id"]: one["score"] for one in found}
        close([scores[one["corpus_id"]] for one in expected], [one["score"] for one in expected])
        assert {one["text"] for one in found} == {one["text"] for one in expected}


# BERTopic imports a deprecated module, and tqdm in notebooks.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:IProgress not found")
@pytest.mark.parametrize("library", ["bertopic", "keybert"])
def test_the_class_of_the_page_for_bertopic_and_keybert(library: str, folder: Path) -> None:
    """The two libraries refuse our class with an error, and accept the class of the page."""
    ours, theirs = both_of(folder)
    select = importlib.import_module(f"{library}.backend._utils").select_backend
    with pytest.raises(ValueError, match="select a correct SentenceTransformers model"):
        select(ours)
    [code] = re.findall(r"```python\n(from keybert.*?)\n```", PAGE.read_text("utf-8"), re.S)
    scope: dict[str, Any] = {"qkv": qkv}
    exec(code.replace("keybert", library), scope)
    close(scope["embedder"].embed(WORDS), qkv.load("minilm").encode(WORDS))
    embedder = scope["Embedder"](ours)
    for documents in (TEXTS, np.array(WORDS)):
        close(select(embedder).embed(documents), select(theirs).embed(documents))
    module, results = importlib.import_module(library), []
    for model in (embedder, theirs):
        if library == "keybert":
            found = module.KeyBERT(model).extract_keywords(" ".join(WORDS))
            results.append([word for word, _ in found])
        else:
            kinds = {"umap_model": PCA(2), "hdbscan_model": KMeans(3, random_state=0)}
            topics = module.BERTopic(embedding_model=model, **kinds)
            results.append(topics.fit_transform(TEXTS)[0])
    assert len(results[0]) > 4
    assert results[0] == results[1]
