"""DistilBERT against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
)

from .models import compare_all

CONFIGS: dict[str, dict[str, Any]] = {
    "three heads": {"dim": 33, "n_heads": 3},
    "positions made of sines, relu, untied": {
        "dim": 40,
        "n_heads": 5,
        "sinusoidal_pos_embds": True,
        "activation": "relu",
        "tie_word_embeddings": False,
        "num_labels": 3,
    },
}
KINDS = [
    DistilBertModel,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_distilbert(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    config = DistilBertConfig(
        vocab_size=97, hidden_dim=50, n_layers=3, max_position_embeddings=64, **CONFIGS[name]
    )
    compare_all(tmp_path, kind, config, dtype)
