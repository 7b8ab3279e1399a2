"""GPT-OSS against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    GptOssForSequenceClassification,
    GptOssForTokenClassification,
    GptOssModel,
)

from .models import compare_all

CONFIGS: dict[str, dict[str, Any]] = {
    "two of five experts": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "held within little, tied, no biases": {
        "swiglu_limit": 0.6,
        "swiglu_alpha": 0.9,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_experts_per_tok": 5,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        "sliding_window": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    "one of five experts, stretched": {
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "num_experts_per_tok": 1,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "beta_fast": 4.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 16,
        },
    },
}


def config_of(name: str) -> GptOssConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 33,
        "intermediate_size": 20,
        "num_hidden_layers": 3,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "num_labels": 3,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": 5,
    }
    return GptOssConfig(**sizes | CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gpt_oss(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, GptOssForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize(
    "kind",
    [GptOssModel, GptOssForSequenceClassification, GptOssForTokenClassification],
    ids=lambda kind: kind.__name__,
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    config = config_of("two of five experts")
    pair = compare_all(tmp_path, kind, config)
    with pytest.raises(ValueError, match=r"^generate: "):  # classes are not words
        pair.ours.generate([[3, 4]])
