"""The keys of sentence_bert_config.json that limit the length of texts, in both libraries."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from transformers import BertModel, LlamaModel

import qkv

from .support import close
from .test_white_space import both, byte_level, change, wordpiece, write

TEXTS = ["hi", "a hi " * 4, "a hi " * 40]
CONFIG = "sentence_bert_config.json"


@pytest.mark.parametrize(
    "values",
    [
        {"query_length": 5, "document_length": 7},
        {"max_seq_length": 9, "query_length": 12},
        {"max_seq_length": 9, "processor_kwargs": {"model_max_length": 6}},
        {"max_seq_length": 9, "tokenizer_args": {"model_max_length": 6}, "document_length": 5},
        {"query_length": 5, "processing_kwargs": {"text": {"max_length": 8, "truncation": True}}},
        {
            "max_seq_length": 9,
            "processing_kwargs": {"common": {"max_length": 8}, "text": {"max_length": 7}},
        },
    ],
)
@pytest.mark.parametrize("include", [True, False])
def test_lengths(tmp_path: Path, values: dict[str, Any], include: bool) -> None:
    write(tmp_path, wordpiece)
    change(tmp_path / CONFIG, **values)
    change(tmp_path / "1_Pooling/config.json", include_prompt=include)
    compare(*both(tmp_path))


@pytest.mark.parametrize(("limit", "most"), [(150, 150), (None, 64), (20, 20)])
def test_a_rotary_model_is_cut_at_max_seq_length(
    tmp_path: Path, limit: int | None, most: int
) -> None:
    """The model has 64 positions; model_max_length, 100, is not allowed to exceed them."""
    write(tmp_path, byte_level, LlamaModel)
    change(tmp_path / CONFIG, max_seq_length=limit)
    change(tmp_path / "tokenizer_config.json", model_max_length=100)
    ours, theirs = both(tmp_path)
    assert ours.max_seq_length == theirs.max_seq_length == most
    compare(ours, theirs)
    with pytest.warns(UserWarning, match=f"cut to {most} tokens"):
        assert len(ours.trace("a" * 200).tokens) == most


def test_a_folder_that_sentence_transformers_saved(tmp_path: Path) -> None:
    """The keys that the library always writes are known: a warning would be an error here."""
    write(tmp_path / "old", wordpiece, BertModel, query_length=5)
    theirs = both(tmp_path / "old")[1]
    theirs.save(str(tmp_path / "new"))
    assert "modality_config" in (tmp_path / "new" / CONFIG).read_text()
    compare(qkv.load(tmp_path / "new"), theirs)


def compare(ours: qkv.Model, theirs: SentenceTransformer) -> None:
    for name in ("encode", "encode_query", "encode_document"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* cut to .* tokens", UserWarning)
            found = getattr(ours, name)(TEXTS)
        close(found, getattr(theirs, name)(TEXTS))
