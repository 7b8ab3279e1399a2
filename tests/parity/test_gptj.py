"""GPT-J against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM, GPTJForSequenceClassification, GPTJModel

from .models import compare_all

CONFIGS: dict[str, dict[str, Any]] = {
    "a part of each head": {"n_head": 3, "rotary_dim": 6},
    "whole heads, tied": {"n_head": 4, "rotary_dim": 12, "tie_word_embeddings": True},
    "one pair": {
        "n_head": 6,
        "rotary_dim": 2,
        "n_inner": 70,
        "activation_function": "relu",
        "layer_norm_epsilon": 1e-3,
    },
}


def config_of(name: str) -> GPTJConfig:
    sizes = {"vocab_size": 97, "n_embd": 48, "n_layer": 3, "n_positions": 64}
    return GPTJConfig(**sizes, pad_token_id=0, num_labels=3, **CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gptj(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, GPTJForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize(
    "kind", [GPTJModel, GPTJForSequenceClassification], ids=lambda kind: kind.__name__
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    compare_all(tmp_path, kind, config_of("a part of each head"))
