"""Llama against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, LlamaModel

from .models import compare, made

CONFIGS: dict[str, dict[str, Any]] = {
    "six heads over two": {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2},
    "heads larger than their share, biases, tied": {
        "hidden_size": 40,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
}


@pytest.mark.parametrize(
    "kind", [LlamaForCausalLM, LlamaModel, LlamaForSequenceClassification], ids=lambda k: k.__name__
)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_llama(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    config = LlamaConfig(
        vocab_size=97,
        intermediate_size=70,
        num_hidden_layers=3,
        max_position_embeddings=64,
        pad_token_id=0,
        num_labels=3,
        **CONFIGS[name],
    )
    compare(made(tmp_path, kind, config, dtype))
