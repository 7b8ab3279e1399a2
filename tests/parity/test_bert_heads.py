"""Tests of BERT's heads against transformers: words, classes of texts and of tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
)

import qkv

from .models import compare, compare_saved, ids_of, made

CONFIGS: dict[str, dict[str, Any]] = {
    "three heads of eleven": {"hidden_size": 33, "num_attention_heads": 3},
    "untied, relu, one segment": {
        "hidden_size": 40,
        "num_attention_heads": 5,
        "hidden_act": "relu",
        "type_vocab_size": 1,
        "tie_word_embeddings": False,
        "layer_norm_eps": 1e-3,
        "num_labels": 4,
    },
}
KINDS: list[type] = [
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
]


def config_of(name: str) -> BertConfig:
    return BertConfig(
        vocab_size=97,
        intermediate_size=50,
        num_hidden_layers=3,
        max_position_embeddings=64,
        **CONFIGS[name],
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bert(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    pair = made(tmp_path, kind, config_of(name), dtype)
    compare(pair, sides=("right",) if kind is BertForSequenceClassification else ("right", "left"))
    compare_saved(pair, tmp_path / "ours")


def test_the_class_of_a_text_with_padding_before_it(tmp_path: Path) -> None:
    """The class of a text is read from its first token, also after padding."""
    pair = made(tmp_path, BertForSequenceClassification, config_of("three heads of eleven"))
    ids, mask = ids_of(pair, [9, 4, 1], "left")
    with torch.inference_mode():
        states = pair.theirs.bert(torch.tensor(ids), attention_mask=torch.tensor(mask))[0]
        first = states[torch.arange(3), torch.tensor(mask).argmax(1)]
        expected = pair.theirs.classifier(pair.theirs.bert.pooler(first[:, None]))
    pair.near(pair.ours(ids, mask).logits, expected, "logits")


def test_output_bias_of_older_files_keeps_its_name(tmp_path: Path) -> None:
    """qkv loads and saves the output bias under its name from before transformers 5.

    The older bias, `cls.predictions.bias`, is outside the decoder module.
    """
    pair = made(tmp_path, BertForMaskedLM, config_of("untied, relu, one segment"))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["cls.predictions.bias"] = tensors.pop("cls.predictions.decoder.bias")
    save_file(tensors, file, {"format": "pt"})
    ids = [[4, 8, 15]]
    expected = pair.ours(ids).logits
    assert expected is not None
    older = qkv.load(tmp_path)
    np.testing.assert_array_equal(older(ids).logits, expected)
    older.save(tmp_path / "ours")
    assert load_file(tmp_path / "ours" / "model.safetensors").keys() == tensors.keys()


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda kind: kind.__name__)
def test_texts_without_a_token(tmp_path: Path, kind: type) -> None:
    """Texts without a token get logits of 0 and do not change the logits of other texts."""
    pair = made(tmp_path, kind, config_of("three heads of eleven"))
    ids = np.arange(10, 22).reshape(3, 4)
    alone = pair.ours(ids[1:2]).logits
    found = pair.ours(ids, np.array([[0], [1], [0]]) * np.ones(4, int)).logits
    assert alone is not None
    np.testing.assert_allclose(found[1:2], alone, rtol=0, atol=1e-6)
    assert (found[[0, 2]] == 0).all()
    nothing = pair.ours(ids, np.zeros((3, 4), int)).logits
    assert nothing.shape == found.shape
    assert (nothing == 0).all()
