"""Tests of `encode`, its options and similarities against sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer

import qkv

from .sentences import WORDS, random_bert
from .support import close, texts_from

TEXTS = texts_from(WORDS, 120, 30)
PROMPTS = {"query": "w1 w2 ", "passage": "w3 ", "other": "w4 "}
PRECISIONS = ["float32", "int8", "uint8", "binary", "ubinary"]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def write(
    folder: Path,
    pooling: dict[str, Any],
    *,
    dense: str | None = None,
    normalize: bool = False,
    **said: Any,
) -> None:
    """Save a random BERT as sentence-transformers does.

    `said` is added to config_sentence_transformers.json: prompts and similarity.
    """
    random_bert(folder)
    kinds = ["Transformer", "Pooling", *(["Dense"] if dense else [])]
    kinds += ["Normalize"] if normalize else []
    modules = []
    for number, kind in enumerate(kinds):
        place = f"{number}_{kind}" if number else ""
        (folder / place).mkdir(exist_ok=True)
        about = {"idx": number, "name": str(number), "path": place}
        modules.append(about | {"type": f"sentence_transformers.models.{kind}"})
    files = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": None} | said,
        "1_Pooling/config.json": {"word_embedding_dimension": 24, **pooling},
    }
    if dense:
        outputs, inputs = 17, 24 * sum(value is True for value in pooling.values())
        rng = np.random.default_rng(0)
        weight = rng.standard_normal((outputs, inputs)).astype(np.float32) / 3
        bias = rng.standard_normal(outputs).astype(np.float32)
        save_file(
            {"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense/model.safetensors"
        )
        about = {"in_features": inputs, "out_features": outputs, "bias": True}
        files["2_Dense/config.json"] = about | {"activation_function": dense}
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))


def pooled_by(*modes: str) -> dict[str, Any]:
    """Return the config of a Pooling module with these modes."""
    names = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens"}
    names["weightedmean"] = "weightedmean_tokens"
    return {f"pooling_mode_{names.get(mode, mode)}": mode in modes for mode in MODES}


def pair(folder: Path) -> tuple[qkv.Model, SentenceTransformer]:
    """Load a folder with both libraries; the model's limit is below the longest text."""
    return qkv.load(folder), SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def write_whole(folder: Path) -> Path:
    """Save a model with mean pooling, a linear layer, scaling to length 1, and prompts."""
    tanh = "torch.nn.modules.activation.Tanh"
    write(folder, pooled_by("mean"), dense=tanh, normalize=True, prompts=PROMPTS)
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[qkv.Model, SentenceTransformer]:
    """Return the model of `write_whole` in both libraries."""
    return pair(write_whole(tmp_path_factory.mktemp("sentence")))


pytestmark = pytest.mark.filterwarnings("ignore:.*text(s were| was) cut to 24 tokens:UserWarning")


@pytest.mark.parametrize("modes", [[mode] for mode in MODES] + [["cls", "max", "mean"], MODES])
@pytest.mark.parametrize("normalize", [False, True])
def test_pooling(tmp_path: Path, modes: list[str], normalize: bool) -> None:
    write(tmp_path, pooled_by(*modes), normalize=normalize)
    ours, theirs = pair(tmp_path)
    close(ours.encode(TEXTS), theirs.encode(TEXTS))
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension() == 24 * len(modes)


@pytest.mark.parametrize(
    "activation",
    [
        *(f"torch.nn.modules.activation.{name}" for name in ("Tanh", "Sigmoid", "ReLU", "GELU")),
        "torch.nn.modules.linear.Identity",
    ],
)
def test_dense(tmp_path: Path, activation: str) -> None:
    write(tmp_path, pooled_by("max", "mean"), dense=activation)
    ours, theirs = pair(tmp_path)
    close(ours.encode(TEXTS), theirs.encode(TEXTS))
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension() == 17


@pytest.mark.parametrize("width", [5, 24, 1000])
@pytest.mark.parametrize("options", [{}, {"truncate_dim": 3}, {"normalize_embeddings": True}])
def test_a_cut_that_the_files_ask_for(tmp_path: Path, width: int, options: dict[str, Any]) -> None:
    write(tmp_path, pooled_by("mean"), normalize=True, truncate_dim=width)
    ours, theirs = pair(tmp_path)
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()
    close(ours.encode(TEXTS, **options), theirs.encode(TEXTS, **options))


@pytest.mark.parametrize("name", ["encode", "encode_query", "encode_document"])
@pytest.mark.parametrize("default", [None, "other"])
@pytest.mark.parametrize("include", [True, False])
def test_prompts(tmp_path: Path, name: str, default: str | None, include: bool) -> None:
    """Vectors agree for the methods' own prompts, the default prompt and prompt arguments.

    The vectors also agree if pooling excludes the prompt's tokens.
    """
    pooling = pooled_by("mean") | {"include_prompt": include}
    write(tmp_path, pooling, prompts=PROMPTS, default_prompt_name=default)
    ours, theirs = pair(tmp_path)
    assert dict(ours.prompts) == theirs.prompts
    for options in ({}, {"prompt_name": "passage"}, {"prompt": "w5 w6 "}, {"prompt": ""}):
        found, expected = (getattr(one, name)(TEXTS, **options) for one in (ours, theirs))
        close(found, expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("truncate_dim", [None, 13])
@pytest.mark.parametrize("normalize", [False, True])
def test_precisions(
    both: tuple[qkv.Model, SentenceTransformer],
    precision: str,
    truncate_dim: int | None,
    normalize: bool,
) -> None:
    ours, theirs = both
    options: dict[str, Any] = {"precision": precision, "truncate_dim": truncate_dim}
    if normalize:
        options["normalize_embeddings"] = True
    found, expected = ours.encode(TEXTS, **options), theirs.encode(TEXTS, **options)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if precision == "float32":
        close(found, expected)
    elif precision.endswith("int8"):
        apart = np.abs(found.astype(int) - expected.astype(int))
        assert apart.max() <= 1
        assert (apart > 0).mean() < 0.01  # numbers on the edge of a step
        assert found.min() == expected.min()
        assert found.max() == expected.max()
    else:
        np.testing.assert_array_equal(found, expected)


def test_precision_of_one_text(both: tuple[qkv.Model, SentenceTransformer]) -> None:
    """One vector can be binary, but not int8, whose steps need the range of several vectors."""
    for precision in ("binary", "ubinary"):
        found, expected = (one.encode(TEXTS[0], precision=precision) for one in both)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    for one in both:
        with pytest.raises(ValueError, match=r"single embedding|single vector"):
            one.encode(TEXTS[0], precision="int8")


def test_tensors(both: tuple[qkv.Model, SentenceTransformer]) -> None:
    for options in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
        for given in (TEXTS, TEXTS[3]):
            found, expected = (one.encode(given, **options) for one in both)
            assert type(found) is type(expected)
            for mine, other in zip(found, expected, strict=True):
                assert isinstance(mine, torch.Tensor)
                assert mine.dtype == other.dtype
            as_one = [torch.stack(x) if isinstance(x, list) else x for x in (found, expected)]
            close(*as_one)
    found, expected = (
        one.encode(TEXTS, convert_to_tensor=True, precision="ubinary") for one in both
    )
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("truncate_dim", [None, 5])
def test_everything_of_a_text(
    both: tuple[qkv.Model, SentenceTransformer], truncate_dim: int | None
) -> None:
    """Each named output of a text is the same in both libraries.

    The outputs of sentence-transformers contain the batch's padding, which the test removes.
    """
    ours, theirs = both
    options: dict[str, Any] = {"output_value": None, "truncate_dim": truncate_dim}
    for mine, other in zip(
        ours.encode(TEXTS, **options), theirs.encode(TEXTS, **options), strict=True
    ):
        shown = other["attention_mask"].bool()
        np.testing.assert_array_equal(mine["input_ids"], other["input_ids"][shown])
        np.testing.assert_array_equal(mine["attention_mask"], other["attention_mask"][shown])
        close(mine["token_embeddings"], other["token_embeddings"][shown])
        close(mine["sentence_embedding"], other["sentence_embedding"])
    alone = ours.encode(TEXTS[0], output_value=None)
    assert alone.keys() <= theirs.encode(TEXTS[0], output_value=None).keys()


@pytest.mark.parametrize("how", ["cosine", "dot", "euclidean", "manhattan", "maxsim", None])
def test_similarity(tmp_path: Path, how: str | None) -> None:
    said = {} if how is None else {"similarity_fn_name": how}
    write(tmp_path, pooled_by("mean"), **said)
    ours, theirs = pair(tmp_path)
    assert ours.similarity_fn_name == theirs.similarity_fn_name
    vectors = theirs.encode(TEXTS)
    vectors[7] = 0
    few, many = vectors[:9], vectors[9:]
    close(ours.similarity(few, many), theirs.similarity(few, many))
    close(ours.similarity(few[0], many), theirs.similarity(few[0], many))
    close(ours.similarity(few[0], many[0]), theirs.similarity(few[0], many[0]))
    close(ours.similarity_pairwise(few, many[:9]), theirs.similarity_pairwise(few, many[:9]))
    for given in (torch.tensor(few), list(torch.tensor(few))):
        for name in ("similarity", "similarity_pairwise"):
            found = getattr(ours, name)(given, torch.tensor(many[:9]))
            expected = getattr(theirs, name)(given, torch.tensor(many[:9]))
            assert found.dtype == expected.dtype == torch.float32
            close(found, expected)
