"""Qwen2 and Qwen3 against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3ForTokenClassification,
    Qwen3Model,
)

import qkv

from .models import Pair, compare, compare_layers, made

WINDOWS: dict[str, dict[str, Any]] = {
    "no window": {"num_attention_heads": 6, "num_key_value_heads": 2, "sliding_window": 7},
    "the last two in windows, tied": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "every second in a window, wide base": {
        "num_attention_heads": 4,
        "num_key_value_heads": None,
        "use_sliding_window": True,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
}
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 70,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "num_labels": 3,
}
QWEN2 = [Qwen2ForCausalLM, Qwen2Model, Qwen2ForSequenceClassification, Qwen2ForTokenClassification]
QWEN3 = [Qwen3ForCausalLM, Qwen3Model, Qwen3ForSequenceClassification, Qwen3ForTokenClassification]


@pytest.mark.parametrize("kind", QWEN2, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_qwen2(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    compare(made(tmp_path, kind, Qwen2Config(**SIZES, **WINDOWS[name]), dtype))


@pytest.mark.parametrize("kind", QWEN3, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_qwen3(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    config = Qwen3Config(**SIZES, **WINDOWS[name], head_dim=14, attention_bias="tied" in name)
    compare(made(tmp_path, kind, config, dtype))


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3"])
def test_which_layers_have_windows_in_older_configs(tmp_path: Path, name: str) -> None:
    kinds = {"Qwen2": (Qwen2Config, Qwen2ForCausalLM), "Qwen3": (Qwen3Config, Qwen3ForCausalLM)}
    config, kind = kinds[name]
    given = {**SIZES, **WINDOWS["the last two in windows, tied"]}
    pair = made(tmp_path, kind, config(**given))
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    assert values.pop("layer_types") == ["full_attention", *["sliding_attention"] * 2]
    values["rope_theta"] = values.pop("rope_parameters")["rope_theta"]
    path.write_text(json.dumps(values))
    compare_layers(Pair(qkv.load(tmp_path), pair.theirs, pair.bound), 23)
