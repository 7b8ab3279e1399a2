"""Phi-3 against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Phi3Config,
    Phi3ForCausalLM,
    Phi3ForSequenceClassification,
    Phi3ForTokenClassification,
    Phi3Model,
)

import qkv

from .models import Pair, compare_all, compare_layers, made

LISTS = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.2, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 4.0, 9.0],
}
# texts are 23 tokens long: more than the 16 that one of these counts as long
CONFIGS: dict[str, dict[str, Any]] = {
    "six heads over two": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "all heads, a window, tied, gelu": {
        "num_attention_heads": 4,
        "sliding_window": 5,
        "tie_word_embeddings": True,
        "hidden_act": "gelu",
    },
    "half of each rotated": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        "partial_rotary_factor": 0.5,
    },
    "long": {
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "original_max_position_embeddings": 16,
        "rope_parameters": {**LISTS, "rope_theta": 1000.0},
    },
    "short, three quarters rotated": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "original_max_position_embeddings": 32,
        "rope_parameters": {
            **{**LISTS, "rope_theta": 1000.0, "partial_rotary_factor": 0.7},
        },
    },
}


def config_of(name: str) -> Phi3Config:
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 70,
        "num_hidden_layers": 3,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "num_labels": 3,
    }
    return Phi3Config(**sizes | CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_phi3(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, Phi3ForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize(
    "kind",
    [Phi3Model, Phi3ForSequenceClassification, Phi3ForTokenClassification],
    ids=lambda kind: kind.__name__,
)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    compare_all(tmp_path, kind, config_of("six heads over two"))


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_older_spellings_of_long_rope(tmp_path: Path, kind: str) -> None:
    pair = made(tmp_path, Phi3ForCausalLM, config_of("long"))
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    scaling = values.pop("rope_parameters")
    values["rope_theta"] = scaling["rope_theta"]
    lists = {key: scaling[key] for key in ("short_factor", "long_factor")}
    values["rope_scaling"] = {"type": kind, **lists}
    path.write_text(json.dumps(values))
    compare_layers(Pair(qkv.load(tmp_path), pair.theirs, pair.bound), 23)
