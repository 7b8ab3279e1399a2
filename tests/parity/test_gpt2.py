"""GPT-2 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, GPT2Model

from .models import compare, made

CONFIGS: dict[str, dict[str, Any]] = {
    "three heads": {"n_embd": 33, "n_head": 3, "n_layer": 3},
    "scaled by layer, relu, untied": {
        "n_embd": 40,
        "n_head": 5,
        "n_layer": 3,
        "n_inner": 50,
        "activation_function": "relu",
        "scale_attn_by_inverse_layer_idx": True,
        "tie_word_embeddings": False,
    },
    "not scaled": {
        "n_embd": 8,
        "n_head": 1,
        "n_layer": 2,
        "scale_attn_weights": False,
        "num_labels": 3,
    },
}


@pytest.mark.parametrize("kind", [GPT2LMHeadModel, GPT2Model, GPT2ForSequenceClassification])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gpt2(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    config = GPT2Config(vocab_size=97, n_positions=64, pad_token_id=0, **CONFIGS[name])
    compare(made(tmp_path, kind, config, dtype))
