"""Mistral against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    MistralForSequenceClassification,
    MistralForTokenClassification,
    MistralModel,
)

from .models import compare, made

CONFIGS: dict[str, dict[str, Any]] = {
    "a window of six": {"num_attention_heads": 6, "num_key_value_heads": 2, "sliding_window": 6},
    "a window of one, heads of ten, tied": {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 10,
        "sliding_window": 1,
        "tie_word_embeddings": True,
    },
    "no window, one key head": {
        "num_attention_heads": 12,
        "num_key_value_heads": 1,
        "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "a window longer than the text": {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "sliding_window": 40,
    },
}
KINDS = [
    MistralForCausalLM,
    MistralModel,
    MistralForSequenceClassification,
    MistralForTokenClassification,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_mistral(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    config = MistralConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=70,
        num_hidden_layers=3,
        max_position_embeddings=64,
        pad_token_id=0,
        num_labels=3,
        **CONFIGS[name],
    )
    compare(made(tmp_path, kind, config, dtype))
