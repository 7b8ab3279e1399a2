"""Tests of `qkv.compat` without torch: names of models, and errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from models.support import Folder, cross_encoder
from qkv.compat import CrossEncoder, SentenceTransformer, _wrapped as wrapped

TEXTS = ["the cat sat", "a dog"]


def test_a_model_or_its_name_is_taken_and_its_other_methods_remain() -> None:
    plain = qkv.load("random")
    for model in (SentenceTransformer(plain), SentenceTransformer("random")):
        np.testing.assert_array_equal(model.encode(TEXTS), plain.encode(TEXTS))
    assert SentenceTransformer(plain).trace("the cat").tokens == plain.trace("the cat").tokens
    copy = pickle.loads(pickle.dumps(SentenceTransformer(plain, truncate_dim=3)))
    np.testing.assert_array_equal(copy.encode(TEXTS), plain.encode(TEXTS, truncate_dim=3))


def test_a_bare_name_is_also_one_of_sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(name: str, **_: Any) -> qkv.Model:
        asked.append(name)
        if "/" not in name:
            raise FileNotFoundError(name)
        return qkv.load("random")

    monkeypatch.setattr(wrapped, "load", find)
    SentenceTransformer("all-mpnet-base-v2")
    assert asked == ["all-mpnet-base-v2", "sentence-transformers/all-mpnet-base-v2"]


def test_a_pool_has_a_process_for_each_device_or_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapped, "Pool", lambda model, count: count)
    model: Any = SentenceTransformer("random")
    assert model.start_multi_process_pool() == 4
    assert model.start_multi_process_pool(["cpu"] * 3) == 3


def test_the_type_of_the_weights(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write()
    for name in ("dtype", "torch_dtype"):
        model = SentenceTransformer(folder.path, model_kwargs={name: "float64"})
        assert model.encode(TEXTS).dtype == np.float64
    assert (
        SentenceTransformer(folder.path, model_kwargs={"dtype": "auto"}).encode("a").dtype == "f4"
    )


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"device": "cuda"}, ValueError, "device is cuda, but qkv computes on the CPU"),
    ({"modules": []}, TypeError, "modules is not supported: omit it"),
    ({"cache_folder": "/tmp"}, TypeError, "cache_folder is not supported"),
    ({"backend": "onnx"}, ValueError, "backend is 'onnx': omit it"),
    ({"model_kwargs": {"attn_implementation": "eager"}}, TypeError, "has attn_implementation"),
    ({"similarity_fn_name": "cos"}, ValueError, "similarity_fn_name is 'cos': choose cosine"),
    ({"default_prompt_name": "no"}, ValueError, "unknown prompt 'no': the prompts are query"),
]


@pytest.mark.parametrize(("options", "kind", "words"), WRONG, ids=str)
def test_unsupported_arguments(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        SentenceTransformer("random", **options)


def test_unknown_prompts_and_models_that_do_not_fit(tmp_path: Path) -> None:
    model = SentenceTransformer("random")
    with pytest.raises(ValueError, match="unknown prompt 'no': the prompts are query, document"):
        model.encode("a", prompt_name="no")
    with pytest.raises(ValueError, match="random does not score pairs of texts"):
        CrossEncoder("random")
    path = cross_encoder(tmp_path / "ranks").path
    with pytest.raises(ValueError, match="num_labels is 3, but ranks has 1: omit"):
        CrossEncoder(path, num_labels=3)
    with pytest.raises(ValueError, match="`pool` is not supported for pairs"):
        CrossEncoder(path).rank("the cat", TEXTS, pool=3)
    assert CrossEncoder(path, max_length=9).max_length == 9
