"""Tests that programs for sentence-transformers compute the same numbers with qkv."""

import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, util

import qkv
from qkv.models import CrossEncoderModel
from qkv.models._other_libraries import ATTRIBUTES

from . import test_cross_encoder as cross
from .sentences import WORDS
from .support import close, texts_from
from .test_sentence_transformers import TEXTS, pair, write_whole

PAIRS = list(zip(texts_from(WORDS, 40, 20, 1), texts_from(WORDS, 40, 20, 2), strict=True))
OWN_CODE = "for models whose own code takes more"
NO_POOL = "pairs are scored by one process, with all its threads"
# Parameters of sentence-transformers that qkv does not have, with the reason.
WITHOUT = {
    ("encode", "kwargs"): OWN_CODE,
    ("similarity", "embeddings1"): "is called a",
    ("similarity", "embeddings2"): "is called b",
    ("similarity_pairwise", "embeddings1"): "is called a",
    ("similarity_pairwise", "embeddings2"): "is called b",
    ("rank", "pool"): NO_POOL,
    ("rank", "chunk_size"): NO_POOL,
    ("predict", "kwargs"): OWN_CODE,
    ("predict", "pool"): NO_POOL,
    ("predict", "chunk_size"): NO_POOL,
}
# Parameters whose default differs, with the reason.
OTHERWISE = {("encode", "normalize_embeddings"): "None, as the files say, which False leaves out"}


def parameters(kind: type, name: str) -> dict[str, Any]:
    """Return a method's parameters by name, with those of `encode` instead of `options`."""
    found = dict(inspect.signature(getattr(kind, name)).parameters)
    if "options" in found:
        del found["options"]
        found = parameters(kind, "encode") | found
    found.pop("self", None)
    return found


@pytest.mark.parametrize(
    "name",
    [
        *("encode", "encode_query", "encode_document", "similarity", "similarity_pairwise"),
        *("get_embedding_dimension", "get_sentence_embedding_dimension", "rank", "predict"),
    ],
)
def test_parameters_differ_only_as_listed(name: str) -> None:
    """The lists above name exactly the parameters that are missing or have another default."""
    is_cross = name in ("rank", "predict")
    theirs = parameters(CrossEncoder if is_cross else SentenceTransformer, name)
    ours = parameters(CrossEncoderModel if is_cross else qkv.Model, name)
    listed = "encode" if name.startswith("encode") else name
    missing = {one for method, one in WITHOUT if method == listed}
    assert set(theirs) - set(ours) == missing
    differing = {one for one in set(theirs) & set(ours) if theirs[one].default != ours[one].default}
    assert differing == {one for method, one in OTHERWISE if method == listed}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[qkv.Model, SentenceTransformer]:
    return pair(write_whole(tmp_path_factory.mktemp("drop")))


def program(model: Any, folder: Path, load: Any) -> dict[str, Any]:
    """Make the most frequent calls, as a program for sentence-transformers would."""
    found: dict[str, Any] = {}
    found["list"] = model.encode(TEXTS)
    found["one"] = model.encode(TEXTS[0])
    found["array"] = model.encode(np.array(TEXTS[:5]))
    found["tuple"] = model.encode(tuple(TEXTS[:5]), batch_size=2, show_progress_bar=False)
    found["query"] = model.encode_query(TEXTS[:3])
    found["document"] = model.encode_document(TEXTS)
    found["named"] = model.encode(TEXTS, prompt_name="passage", device="cpu")
    found["given"] = model.encode(TEXTS, prompt="w4 ", device=torch.device("cpu"))
    found["scaled"] = model.encode(TEXTS, normalize_embeddings=True, truncate_dim=7)
    tensor = model.encode(TEXTS, convert_to_tensor=True)
    found["tensor"], found["kind"] = tensor, str(tensor.dtype)
    found["searched"] = np.argsort(-found["query"] @ found["document"].T, axis=1)[:, :5]
    found["similar"] = model.similarity(found["query"], found["document"])
    found["of tensors"] = model.similarity(tensor[:3], tensor)
    found["pairwise"] = model.similarity_pairwise(tensor[:3], tensor[3:6])
    found["nearest"] = torch.topk(model.similarity(tensor[0], tensor[1:]), k=3).indices.tolist()
    found["plain"] = model.encode(TEXTS, precision=None)
    best = found["similar"].argmax(axis=1)
    found["best"] = [int(one) for one in best]
    found["score"] = float(found["similar"][0][0])
    found["shape"] = tuple(found["similar"].shape)
    found["binary"] = model.encode(TEXTS, precision="ubinary")
    found["size"] = model.get_embedding_dimension()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found["old size"] = model.get_sentence_embedding_dimension()
    found["how"], found["prompts"] = model.similarity_fn_name, sorted(model.prompts.items())
    found["limit"] = model.max_seq_length
    model.max_seq_length = 12
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found["shorter"] = model.encode(TEXTS)
    model.max_seq_length = found["limit"]
    model.save(str(folder))
    found["again"] = load(str(folder)).encode(TEXTS)
    return found


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Assert floats equal within 1e-5, and all other results equal."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if isinstance(expected, np.ndarray | torch.Tensor) and expected.dtype not in (
            np.uint8,
            np.int64,
        ):
            close(ours[name], expected)
        elif isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(ours[name], expected, err_msg=name)
        elif isinstance(expected, float):
            assert ours[name] == pytest.approx(expected, abs=1e-5), name
        else:
            assert ours[name] == expected, name


@pytest.mark.filterwarnings("ignore:.*text(s were| was) cut to 24 tokens:UserWarning")
def test_a_program_gives_the_same_results_in_both_libraries(
    both: tuple[qkv.Model, SentenceTransformer], tmp_path: Path
) -> None:
    ours, theirs = both

    def load(folder: str) -> SentenceTransformer:
        return SentenceTransformer(folder, device="cpu", local_files_only=True)

    compared(program(ours, tmp_path / "a", qkv.load), program(theirs, tmp_path / "b", load))


@pytest.mark.filterwarnings("ignore:.*text(s were| was) cut to 24 tokens:UserWarning")
def test_search_functions_return_the_same_with_our_model(
    both: tuple[qkv.Model, SentenceTransformer],
) -> None:
    """sentence-transformers' search functions return the same results for both libraries' models.

    Each function receives a model or the vectors that the model computed.
    """
    found = []
    for model in both:
        query, texts = model.encode_query(TEXTS[:5]), model.encode(TEXTS, convert_to_tensor=True)
        hits = util.semantic_search(query, texts, top_k=3)
        pairs = util.paraphrase_mining(model, TEXTS[:40], top_k=2)
        groups = util.community_detection(texts, threshold=0.99, min_community_size=2)
        hit = [[one["corpus_id"] for one in row] for row in hits]
        found.append((hit, sorted((i, j) for _, i, j in pairs), sorted(map(sorted, groups))))
    assert found[0] == found[1]


def test_missing_attributes_raise_an_error_with_advice(
    both: tuple[qkv.Model, SentenceTransformer],
) -> None:
    """Attributes of sentence-transformers that qkv lacks raise an error with advice."""
    for name in ATTRIBUTES:
        assert hasattr(both[1], name) or hasattr(CrossEncoder, name), name
        assert not hasattr(both[0], name)
        with pytest.raises(AttributeError, match=f"^'Model' object has no attribute '{name}': "):
            getattr(both[0], name)
    with pytest.raises(AttributeError, match=r"no attribute 'no_such_name'$"):
        both[0].no_such_name  # noqa: B018  # it is the error that is asked for


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("kind", cross.KINDS)
@pytest.mark.filterwarnings("ignore:.* pairs were cut to 32:UserWarning")
def test_predict(tmp_path: Path, kind: str, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores agree for every form of pairs, every option and every type of result."""
    which, config = cross.KINDS[kind]
    changed = type(config)(**config.to_dict() | {"num_labels": classes})
    monkeypatch.setitem(cross.KINDS, kind, (which, changed))
    ours, theirs = cross.both(cross.written(tmp_path, kind))
    assert isinstance(ours, CrossEncoderModel)
    assert ours.num_labels == theirs.num_labels == classes
    for options in (
        {},
        {"batch_size": 3, "apply_softmax": True},
        {"activation_fn": torch.nn.Identity()},
        {"activation_fn": torch.nn.Tanh(), "prompt": "w5 w6 "},
    ):
        for given in (PAIRS, [list(one) for one in PAIRS], np.array(PAIRS), PAIRS[0]):
            found, expected = (one.predict(given, **options) for one in (ours, theirs))
            close(found, expected)
            assert found.dtype == expected.dtype
    spread = np.ptp(theirs.predict(PAIRS), axis=0)
    assert spread.min() > 0.01
    assert isinstance(ours.predict(PAIRS, convert_to_tensor=True), torch.Tensor)
    listed = ours.predict(PAIRS, convert_to_numpy=False)
    assert [type(one) for one in listed] == [torch.Tensor] * len(PAIRS)
    close(torch.stack(listed), theirs.predict(PAIRS, convert_to_tensor=True))
    assert len(ours.predict([])) == len(theirs.predict([])) == 0


def test_predict_checks_its_activation_fn(tmp_path: Path) -> None:
    ours, theirs = cross.both(cross.written(tmp_path))
    logits = theirs.predict(PAIRS[:9], activation_fn=torch.nn.Identity())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        close(ours.predict(PAIRS[:9], activation_fn=lambda x: 3 * x), 3 * logits)
        for function, words in (
            (lambda x: x.sum(), "predict: activation_fn returned"),
            (torch.nn.Softmin(), "activation_fn is torch.*Softmin; pass a function"),
            (3, "activation_fn is builtins.int"),
        ):
            with pytest.raises(TypeError, match=words):
                ours.predict(PAIRS[:9], activation_fn=function)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("w1", "`inputs` is str: this model reads two texts"),
        (["w1"], "pair 0 is str; pass two strings"),
        ([("w1", "w2"), ("w1",)], "pair 1 is tuple of 1"),
        ([("w1", "w2"), ("w1", 3)], "pair 1 is int"),
    ],
)
def test_inputs_that_are_not_pairs_are_refused(tmp_path: Path, given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"predict: {words}"):
        qkv.load(cross.written(tmp_path)).predict(given)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("mps"), ["cpu", "cpu"]])
def test_other_devices(
    both: tuple[qkv.Model, SentenceTransformer], tmp_path: Path, device: Any
) -> None:
    several = isinstance(device, list)
    words = (
        "a list of length 2: use .*Pool" if several else f"{device}, but qkv computes on the CPU"
    )
    ranks = qkv.load(cross.written(tmp_path))
    for name, call in {
        "encode": lambda: both[0].encode(TEXTS, device=device),
        "predict": lambda: ranks.predict(PAIRS, device=device),
        "rank": lambda: ranks.rank("w1", ["w2"], device=device),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: device is {words}"):
            call()


def test_a_decoder_that_ranks(tmp_path: Path) -> None:
    """qkv refuses the module `LogitScore` with an error that names the module.

    `LogitScore` computes a score from two logits of a decoder.
    """
    cross.written(tmp_path)
    CrossEncoder(str(tmp_path), device="cpu").save_pretrained(str(tmp_path / "two"))
    path = tmp_path / "two/modules.json"
    listed = path.read_text().rstrip().removesuffix("]")
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    path.write_text(f'{listed}, {{"idx": 1, "name": "1", "path": "1", "type": "{kind}"}}]')
    with pytest.raises(qkv.models.ModelError, match=r"does not support the module .*LogitScore"):
        qkv.load(tmp_path / "two")
