"""GPT-NeoX, the family of Pythia, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GPTNeoXForSequenceClassification,
    GPTNeoXForTokenClassification,
    GPTNeoXModel,
)

import qkv

from .models import Pair, compare_all, compare_layers, made

CONFIGS: dict[str, dict[str, Any]] = {
    "in parallel": {"num_attention_heads": 3},
    "one part after the other": {
        "num_attention_heads": 6,
        "use_parallel_residual": False,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-3,
    },
    "half of a head, no biases, tied": {
        "num_attention_heads": 4,
        "rotary_pct": 0.5,
        "rotary_emb_base": 500,
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    "stretched": {
        "num_attention_heads": 3,
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "partial_rotary_factor": 0.5},
        "max_position_embeddings": 10,
    },
}
KINDS = [
    *(GPTNeoXForCausalLM, GPTNeoXModel),
    *(GPTNeoXForSequenceClassification, GPTNeoXForTokenClassification),
]


def config_of(name: str) -> GPTNeoXConfig:
    sizes = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 70, "num_hidden_layers": 3}
    others = {"max_position_embeddings": 64, "pad_token_id": 0, "num_labels": 3}
    return GPTNeoXConfig(**{**sizes, **others, **CONFIGS[name]})


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gpt_neox(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    compare_all(tmp_path, GPTNeoXForCausalLM, config_of(name), dtype)


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.__name__)
def test_other_heads(tmp_path: Path, kind: type) -> None:
    compare_all(tmp_path, kind, config_of("in parallel"))


def test_files_as_pythia_has_them(tmp_path: Path) -> None:
    """Older keys of rotary positions, and tensors that say nothing."""
    pair = made(tmp_path, GPTNeoXForCausalLM, config_of("in parallel"), torch.float64)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    rope = values.pop("rope_parameters")
    assert (rope["rope_theta"], rope["partial_rotary_factor"]) == (10000, 0.25)
    values |= {"rotary_emb_base": 10000, "rotary_pct": 0.25, "rope_scaling": None}
    path.write_text(json.dumps(values))
    tensors = load_file(tmp_path / "model.safetensors")
    assert "embed_out.weight" in tensors
    for layer in range(3):
        place = f"gpt_neox.layers.{layer}.attention."
        tensors[f"{place}bias"] = torch.ones(1, 1, 64, 64).bool()
        tensors[f"{place}masked_bias"] = torch.tensor(-1e9)
        tensors[f"{place}rotary_emb.inv_freq"] = torch.ones(2)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    compare_layers(Pair(qkv.load(tmp_path), pair.theirs, pair.bound), 23)
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")  # as the class calls it
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    np.testing.assert_array_equal(qkv.load(tmp_path)([[5, 7]]).logits, pair.ours([[5, 7]]).logits)
