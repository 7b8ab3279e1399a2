"""ALBERT against transformers: layers that share their parameters, in groups or all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)

import qkv

from .models import Pair, compare_all, compare_layers, made

CONFIGS: dict[str, dict[str, Any]] = {
    "one set for all": {"hidden_size": 36, "num_attention_heads": 3, "embedding_size": 11},
    "two groups of five layers, untied": {
        "hidden_size": 20,
        "num_attention_heads": 5,
        "embedding_size": 20,
        "num_hidden_layers": 5,
        "num_hidden_groups": 2,
        "hidden_act": "relu",
        "tie_word_embeddings": False,
        "layer_norm_eps": 1e-3,
        "num_labels": 4,
    },
    "three groups of two": {
        **{"hidden_size": 32, "num_attention_heads": 4, "embedding_size": 40},
        **{"num_hidden_layers": 4, "num_hidden_groups": 3, "inner_group_num": 2},
        "type_vocab_size": 1,
    },
}
KINDS: list[type] = [
    AlbertModel,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
]


def config_of(name: str) -> AlbertConfig:
    sizes: dict[str, Any] = {
        **{"vocab_size": 97, "intermediate_size": 50, "num_hidden_layers": 3},
        "max_position_embeddings": 64,
    }
    return AlbertConfig(**sizes | CONFIGS[name])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_albert(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    compare_all(tmp_path, kind, config_of(name), dtype)


def test_the_bias_of_words_in_older_files(tmp_path: Path) -> None:
    """It stood outside of the output matrix."""
    pair = made(tmp_path, AlbertForMaskedLM, config_of("one set for all"))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    bias = tensors.pop("predictions.decoder.bias", None)
    tensors.setdefault("predictions.bias", bias)
    save_file(tensors, file, {"format": "pt"})
    compare_layers(Pair(qkv.load(tmp_path), pair.theirs, pair.bound), 9)
