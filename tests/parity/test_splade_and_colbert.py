"""Tests of SPLADE and ColBERT against SparseEncoder and MultiVectorEncoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SpladePooling
from transformers import BertConfig, BertForMaskedLM, BertModel

import qkv
from qkv.models import ModelError

from .models import scatter
from .sentences import WORDS, tokenizer
from .support import close, texts_from

SIZES = {
    **{"vocab_size": len(WORDS) + 5, "hidden_size": 24, "num_hidden_layers": 2},
    **{"num_attention_heads": 3, "intermediate_size": 30, "max_position_embeddings": 40},
}
TEXTS = [*texts_from(WORDS, 9, 20), "w1", "unknown w3"]
TOKEN = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


def body(folder: Path, kind: Any, **options: Any) -> Transformer:
    model = kind(BertConfig(**SIZES))
    scatter(model)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return Transformer(str(folder), **options)


@pytest.mark.parametrize("pool", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_splade(tmp_path: Path, pool: Any, activation: Any) -> None:
    first = body(tmp_path / "body", BertForMaskedLM, transformer_task="fill-mask")
    theirs = SparseEncoder(modules=[first, SpladePooling(pool, activation)], device="cpu")
    theirs.save(str(tmp_path / "model"))
    ours = qkv.load(tmp_path / "model")
    found = ours.encode(TEXTS, batch_size=2)
    assert found.shape == (len(TEXTS), SIZES["vocab_size"])
    assert ours.get_embedding_dimension() == SIZES["vocab_size"]
    expected = theirs.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    close(found, expected)
    close(ours.similarity(found[:2], found), theirs.similarity(expected[:2], expected).numpy())
    ours.save(tmp_path / "again")
    np.testing.assert_array_equal(qkv.load(tmp_path / "again").encode(TEXTS, batch_size=2), found)


def test_the_module_of_older_files_of_splade(tmp_path: Path) -> None:
    first = body(tmp_path / "body", BertForMaskedLM, transformer_task="fill-mask")
    SparseEncoder(modules=[first, SpladePooling()], device="cpu").save(str(tmp_path / "model"))
    expected = qkv.load(tmp_path / "model").encode(TEXTS)
    path = tmp_path / "model" / "modules.json"
    old = "sentence_transformers.sparse_encoder.models.MLMTransformer.MLMTransformer"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([{**modules[0], "type": old}, modules[1]]))
    (tmp_path / "model" / "sentence_bert_config.json").unlink()
    np.testing.assert_array_equal(qkv.load(tmp_path / "model").encode(TEXTS), expected)


def test_splade_needs_a_head_for_words(tmp_path: Path) -> None:
    first = body(tmp_path / "body", BertForMaskedLM, transformer_task="fill-mask")
    SparseEncoder(modules=[first, SpladePooling()], device="cpu").save(str(tmp_path / "model"))
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["BertModel"]}))
    with pytest.raises(ModelError, match="has a SpladePooling and no head for words"):
        qkv.load(tmp_path / "model")


@pytest.mark.parametrize("tasks", [["document"], ["query", "document"]], ids=str)
@pytest.mark.parametrize("last", ["mask", "length"])
def test_colbert(tmp_path: Path, tasks: list[str], last: str) -> None:
    dense = Dense(24, 7, bias=False, activation_function=torch.nn.Identity(), **TOKEN)
    ends = [Normalize(**TOKEN), MultiVectorMask(["w3", "w5", "nowhere"], skiplist_tasks=tasks)]
    ends = ends if last == "mask" else ends[::-1]
    modules = [body(tmp_path / "body", BertModel), dense, *ends]
    theirs = MultiVectorEncoder(
        modules=modules, device="cpu", prompts={"query": "w7 ", "document": "w8 "}
    )
    theirs.save(str(tmp_path / "model"))
    ours = qkv.load(tmp_path / "model")
    for name in ("encode", "encode_query", "encode_document"):
        found = getattr(ours, name)(TEXTS, output_value="token_embeddings")
        expected = getattr(theirs, name)(TEXTS, convert_to_numpy=True)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    assert found[-1].shape == (4, 7)  # without w3: [CLS] w8 [UNK] [SEP]
    with pytest.raises(ValueError, match=r'give output_value="token_embeddings"'):
        ours.encode(TEXTS)
