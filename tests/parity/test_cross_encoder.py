"""Tests of `rank` against sentence-transformers' CrossEncoder, on the same folder."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

import qkv

from .models import scatter
from .sentences import SPECIAL, WORDS, tokenizer
from .support import close, texts_from

DOCUMENTS = ["", *texts_from(WORDS, 60, 25)]
QUERY = " ".join(WORDS[3:9])
LONG = " ".join(WORDS * 2)
SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
    "num_labels": 1,
    "pad_token_id": 0,
}
KINDS: dict[str, tuple[type, Any]] = {
    "bert": (BertForSequenceClassification, BertConfig(**SIZES)),
    "roberta": (
        RobertaForSequenceClassification,
        RobertaConfig(**SIZES | {"type_vocab_size": 1, "max_position_embeddings": 41}),
    ),
    "modernbert": (
        ModernBertForSequenceClassification,
        ModernBertConfig(**SIZES, reference_compile=False, attn_implementation="eager"),
    ),
}


def written(folder: Path, kind: str = "bert", limit: int = 32, **said: Any) -> Path:
    """Save a random classifier with one label; `said` is added to its config.json."""
    which, config = KINDS[kind]
    model = which(config)
    scatter(model)
    model.save_pretrained(folder)
    tokenizer(limit).save_pretrained(folder)
    change(folder / "config.json", said)
    if kind == "bert":  # only BERT has segments
        change(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    return folder


def change(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def both(folder: Path) -> tuple[qkv.Model, CrossEncoder]:
    """Load the model of a folder with both libraries."""
    return qkv.load(folder), CrossEncoder(str(folder), device="cpu", local_files_only=True)


def compare(ours: qkv.Model, theirs: CrossEncoder, query: str = QUERY) -> None:
    """Assert that both libraries give each document the same score, up to rounding.

    Our model must also return the documents in descending order of score.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* were cut to", UserWarning)
        found = ours.rank(query, DOCUMENTS)
    expected = theirs.rank(query, DOCUMENTS)
    scores = {one["corpus_id"]: one["score"] for one in expected}
    assert found[0].keys() == expected[0].keys()
    close([one["score"] for one in found], [scores[one["corpus_id"]] for one in found])
    assert sorted(one["corpus_id"] for one in found) == list(range(len(DOCUMENTS)))
    assert max(scores.values()) - min(scores.values()) > 0.01
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_scores(tmp_path: Path, kind: str) -> None:
    compare(*both(written(tmp_path, kind)))


@pytest.mark.parametrize(
    "said",
    [
        {"tokenizer_class": "TokenizersBackend"},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"tokenizer_class": "BertTokenizerFast"},
        {"model_input_names": ["input_ids", "attention_mask"]},
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        },
    ],
)
def test_segments(tmp_path: Path, said: dict[str, Any]) -> None:
    """The tokenizer's config decides whether the model gets segment ids for query and document."""
    change(written(tmp_path) / "tokenizer_config.json", said)
    compare(*both(tmp_path))


@pytest.mark.parametrize("query", [" w4  w8 ", LONG, WORDS[0]])
@pytest.mark.parametrize("limit", [14, 15, 32, 40])
def test_pairs_that_are_too_long(tmp_path: Path, query: str, limit: int) -> None:
    """A pair that is too long loses tokens of the longer text first, then of both."""
    compare(*both(written(tmp_path, limit=limit)), query)


@pytest.mark.parametrize(
    "said",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
        {"sentence_transformers": {"activation_fn": "my.own.Function"}},
        {"sentence_transformers": {"version": "4.0.1"}},
    ],
)
def test_what_follows_the_logits(tmp_path: Path, said: dict[str, Any]) -> None:
    compare(*both(written(tmp_path, **said)))


@pytest.mark.parametrize("activation", [None, torch.nn.Identity(), torch.nn.Sigmoid()])
def test_a_folder_that_cross_encoder_saved(tmp_path: Path, activation: Any) -> None:
    theirs = CrossEncoder(
        str(written(tmp_path / "first")), device="cpu", activation_fn=activation, max_length=20
    )
    theirs.save_pretrained(str(tmp_path / "second"))
    compare(*both(tmp_path / "second"))
    ours = qkv.load(tmp_path / "second")
    ours.save(tmp_path / "third")
    compare(*both(tmp_path / "third"))


@pytest.mark.filterwarnings("ignore:.* were cut to:UserWarning")
@pytest.mark.parametrize("top_k", [None, 1, 7, 100])
@pytest.mark.parametrize("return_documents", [False, True])
def test_rank_returns_the_same_keys_ids_and_texts(
    tmp_path: Path, top_k: int | None, return_documents: bool
) -> None:
    ours, theirs = both(written(tmp_path))
    found = ours.rank(QUERY, DOCUMENTS, top_k, return_documents)
    expected = theirs.rank(QUERY, DOCUMENTS, top_k, return_documents)
    assert [one.keys() for one in found] == [one.keys() for one in expected]
    assert [one["corpus_id"] for one in found] == [one["corpus_id"] for one in expected]
    assert [one.get("text") for one in found] == [one.get("text") for one in expected]
    assert all(type(one["score"]) is float for one in found)


def test_rank_of_no_documents_is_empty(tmp_path: Path) -> None:
    ours, theirs = both(written(tmp_path))
    assert ours.rank(QUERY, []) == theirs.rank(QUERY, []) == []
