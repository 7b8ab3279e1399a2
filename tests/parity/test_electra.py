"""ELECTRA against transformers: both of its halves, and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
)

from .models import compare_all

CONFIGS: dict[str, dict[str, Any]] = {
    "narrow tables": {"hidden_size": 36, "num_attention_heads": 3, "embedding_size": 11},
    "wide tables, relu, untied": {
        "hidden_size": 20,
        "num_attention_heads": 5,
        "embedding_size": 31,
        "hidden_act": "relu",
        "tie_word_embeddings": False,
        "layer_norm_eps": 1e-3,
        "num_labels": 4,
    },
    "tables of the size of the vectors": {
        **{"hidden_size": 32, "num_attention_heads": 4, "embedding_size": 32},
        "type_vocab_size": 1,
    },
}
KINDS: list[type] = [
    ElectraModel,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
]


def config_of(name: str) -> ElectraConfig:
    sizes: dict[str, Any] = {
        **{"vocab_size": 97, "intermediate_size": 50, "num_hidden_layers": 3},
        "max_position_embeddings": 64,
    }
    return ElectraConfig(**sizes | CONFIGS[name])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_electra(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    compare_all(tmp_path, kind, config_of(name), dtype)
