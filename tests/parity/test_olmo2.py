"""OLMo 2 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo2ForSequenceClassification,
    Olmo2Model,
)

from .models import compare_all

CONFIGS: dict[str, dict[str, Any]] = {
    "six heads over two": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "all heads, tied, biases": {
        "num_attention_heads": 4,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "rms_norm_eps": 1e-3,
    },
    "one key head, stretched, gelu": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    },
}


def config_of(name: str) -> Olmo2Config:
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 70,
        "num_hidden_layers": 3,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "num_labels": 3,
    }
    return Olmo2Config(**sizes | CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_olmo2(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, Olmo2ForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize(
    "kind", [Olmo2Model, Olmo2ForSequenceClassification], ids=lambda kind: kind.__name__
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    compare_all(tmp_path, kind, config_of("six heads over two"))
