"""Qwen3-MoE against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3MoeForSequenceClassification,
    Qwen3MoeForTokenClassification,
    Qwen3MoeModel,
)

from .models import compare_all

CONFIGS: dict[str, dict[str, Any]] = {
    "two of five experts": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "weights that add up to 1, in every second layer, a window, tied": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "use_sliding_window": True,
        "sliding_window": 5,
        "tie_word_embeddings": True,
    },
    "not in the first layer, biases": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 10,
        "mlp_only_layers": [0],
        "attention_bias": True,
    },
}


def config_of(name: str) -> Qwen3MoeConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 30,
        "moe_intermediate_size": 20,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "num_labels": 3,
        "num_experts": 5,
    }
    return Qwen3MoeConfig(**sizes | CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_qwen3_moe(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, Qwen3MoeForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize(
    "kind",
    [Qwen3MoeModel, Qwen3MoeForSequenceClassification, Qwen3MoeForTokenClassification],
    ids=lambda kind: kind.__name__,
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    compare_all(tmp_path, kind, config_of("two of five experts"))
