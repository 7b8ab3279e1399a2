"""Mixtral against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    MixtralForSequenceClassification,
    MixtralForTokenClassification,
    MixtralModel,
)

from .models import compare_all

CONFIGS: dict[str, dict[str, Any]] = {
    "two of five experts": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "all experts, a window, tied, gelu": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 5,
        "sliding_window": 5,
        "tie_word_embeddings": True,
        "hidden_act": "gelu",
    },
    "one of five experts": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 10,
        "num_experts_per_tok": 1,
    },
}


def config_of(name: str) -> MixtralConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 20,
        "num_hidden_layers": 3,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "num_labels": 3,
        "num_local_experts": 5,
    }
    return MixtralConfig(**sizes | CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_mixtral(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, MixtralForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize(
    "kind",
    [MixtralModel, MixtralForSequenceClassification, MixtralForTokenClassification],
    ids=lambda kind: kind.__name__,
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    compare_all(tmp_path, kind, config_of("two of five experts"))
