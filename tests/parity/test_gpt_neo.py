"""GPT-Neo against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoForSequenceClassification,
    GPTNeoModel,
)

from .models import compare_all

CONFIGS: dict[str, dict[str, Any]] = {
    "windows in every second layer": {
        "num_heads": 3,
        "num_layers": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 5,
    },
    "windows first, relu, untied": {
        "num_heads": 4,
        "num_layers": 3,
        "attention_types": [[["local"], 2], [["global"], 1]],
        "window_size": 2,
        "intermediate_size": 70,
        "activation_function": "relu",
        "layer_norm_epsilon": 1e-3,
        "tie_word_embeddings": False,
    },
    "no windows": {"num_heads": 1, "num_layers": 2, "attention_types": [[["global"], 2]]},
}


def config_of(name: str) -> GPTNeoConfig:
    sizes = {"vocab_size": 97, "hidden_size": 36, "max_position_embeddings": 64}
    return GPTNeoConfig(**sizes, pad_token_id=0, num_labels=3, **CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gpt_neo(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, GPTNeoForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize(
    "kind", [GPTNeoModel, GPTNeoForSequenceClassification], ids=lambda kind: kind.__name__
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    compare_all(tmp_path, kind, config_of("windows in every second layer"))
