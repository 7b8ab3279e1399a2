"""Tests of BERT's heads and activations against transformers; test_families.py tests its layers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
)

import qkv

from .families import FAMILIES
from .models import compare_layers, ids_of, made

BERT = FAMILIES["bert"]


@pytest.mark.parametrize("act", ["gelu_python", "gelu_fast", "gelu_pytorch_tanh", "silu", "swish"])
def test_other_activations(tmp_path: Path, act: str) -> None:
    config = BERT.config_of("three heads of eleven", hidden_act=act)
    compare_layers(made(tmp_path, BertForMaskedLM, config, torch.float64), 23)


def test_the_class_of_a_text_with_padding_before_it(tmp_path: Path) -> None:
    """The class of a text is read from its first token, also after padding."""
    pair = made(tmp_path, BertForSequenceClassification, BERT.config_of("three heads of eleven"))
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
    pair = made(tmp_path, BertForMaskedLM, BERT.config_of("untied, relu, one segment"))
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


@pytest.mark.parametrize(
    "kind", [BertForSequenceClassification, BertForTokenClassification], ids=lambda k: k.__name__
)
def test_texts_without_a_token(tmp_path: Path, kind: type) -> None:
    """Texts without a token get logits of 0 and do not change the logits of other texts."""
    pair = made(tmp_path, kind, BERT.config_of("three heads of eleven"))
    ids = np.arange(10, 22).reshape(3, 4)
    alone = pair.ours(ids[1:2]).logits
    found = pair.ours(ids, np.array([[0], [1], [0]]) * np.ones(4, int)).logits
    np.testing.assert_allclose(found[1:2], alone, rtol=0, atol=1e-6)
    assert (found[[0, 2]] == 0).all()
    nothing = pair.ours(ids, np.zeros((3, 4), int)).logits
    assert nothing.shape == found.shape
    assert (nothing == 0).all()
