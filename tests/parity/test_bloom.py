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

from .models import compare_all

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


def config_of(name: str) -> BloomConfig:
    return BloomConfig(vocab_size=97, n_layer=3, pad_token_id=0, num_labels=3, **CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bloom(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, BloomForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize(
    "kind",
    [BloomModel, BloomForSequenceClassification, BloomForTokenClassification],
    ids=lambda kind: kind.__name__,
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    pair = compare_all(tmp_path, kind, config_of("eleven heads, untied"))
    with pytest.raises(ValueError, match=r"^generate: "):  # classes are not words
        pair.ours.generate([[3, 4]])
