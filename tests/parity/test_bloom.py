"""BLOOM against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    BloomForSequenceClassification,
    BloomForTokenClassification,
    BloomModel,
)

from .models import compare, made

CONFIGS: dict[str, dict[str, Any]] = {
    "four heads": {"hidden_size": 32, "n_head": 4},
    "eleven heads, untied": {
        "hidden_size": 44,
        "n_head": 11,
        "layer_norm_epsilon": 1e-3,
        "tie_word_embeddings": False,
        "pretraining_tp": 2,
    },
    "one head": {"hidden_size": 7, "n_head": 1, "slow_but_exact": True},
}
KINDS = [
    BloomForCausalLM,
    BloomModel,
    BloomForSequenceClassification,
    BloomForTokenClassification,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bloom(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    config = BloomConfig(vocab_size=97, n_layer=3, pad_token_id=0, num_labels=3, **CONFIGS[name])
    compare(made(tmp_path, kind, config, dtype))
