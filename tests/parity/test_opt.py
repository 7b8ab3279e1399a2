"""OPT against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM, OPTForSequenceClassification, OPTModel

from .models import compare, compare_saved, made

CONFIGS: dict[str, dict[str, Any]] = {
    "norms before": {"num_attention_heads": 3},
    "norms after, untied": {
        "num_attention_heads": 4,
        "do_layer_norm_before": False,
        "tie_word_embeddings": False,
    },
    "no last norm, no biases, gelu": {
        "num_attention_heads": 1,
        "_remove_final_layer_norm": True,
        "enable_bias": False,
        "activation_function": "gelu",
    },
}


def config_of(name: str) -> OPTConfig:
    sizes = {"vocab_size": 97, "hidden_size": 36, "num_hidden_layers": 3, "ffn_dim": 50}
    return OPTConfig(**sizes, max_position_embeddings=64, num_labels=3, **CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_opt(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    pair = made(tmp_path, OPTForCausalLM, config_of(name), dtype)
    compare(pair)
    compare_saved(pair, tmp_path / "saved")


@pytest.mark.parametrize(
    "kind", [OPTModel, OPTForSequenceClassification], ids=lambda kind: kind.__name__
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    compare(made(tmp_path, kind, config_of("norms before"), torch.float64))
