"""Nomic-BERT against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import (
    NomicBertConfig,
    NomicBertForMaskedLM,
    NomicBertForSequenceClassification,
    NomicBertForTokenClassification,
    NomicBertModel,
)

import qkv

from .models import Pair, compare_all, compare_saved, made

CONFIGS: dict[str, dict[str, Any]] = {
    "three heads": {"hidden_size": 36, "num_attention_heads": 3},
    "heads of ten, gelu, linear, untied": {
        "hidden_size": 32,
        "num_attention_heads": 5,
        "head_dim": 10,
        "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0},
        "tie_word_embeddings": False,
        "layer_norm_eps": 1e-3,
        "num_labels": 4,
        "type_vocab_size": 1,
    },
}
KINDS: list[type] = [
    NomicBertModel,
    NomicBertForMaskedLM,
    NomicBertForSequenceClassification,
    NomicBertForTokenClassification,
]


def config_of(name: str) -> NomicBertConfig:
    sizes: dict[str, Any] = {
        **{"vocab_size": 97, "intermediate_size": 50, "num_hidden_layers": 3},
        "max_position_embeddings": 64,
    }
    return NomicBertConfig(**sizes | CONFIGS[name])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_nomic_bert(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    compare_all(tmp_path, kind, config_of(name), dtype)


def test_the_names_of_the_first_files(tmp_path: Path) -> None:
    """As nomic-embed-text-v1.5 has them: the tensors too."""
    pair = made(tmp_path, NomicBertModel, config_of("three heads"))
    names = load_file(tmp_path / "model.safetensors").keys()
    assert {"emb_ln.weight", "encoder.layers.2.attn.Wqkv.weight"} < names
    expected = pair.ours(np.arange(3, 40)[None]).last_hidden_state
    config = {
        **{"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_embd": 36},
        **{"n_head": 3, "n_inner": 50, "n_layer": 3, "n_positions": 64, "vocab_size": 97},
        **{"activation_function": "swiglu", "causal": False, "layer_norm_epsilon": 1e-12},
        **{"mlp_fc1_bias": False, "mlp_fc2_bias": False, "qkv_proj_bias": False},
        **{"parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False},
        **{"rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False},
        **{"rotary_emb_scale_base": None, "rotary_scaling_factor": None, "use_rms_norm": False},
        **{"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
        **{"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "dense_seq_output": True},
        **{"auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"}},
        **{"fused_bias_fc": True, "fused_dropout_add_ln": True, "max_trained_positions": 2048},
        **{"pad_vocab_size_multiple": 64, "reorder_and_upcast_attn": False, "use_cache": True},
        **{"summary_activation": None, "summary_first_dropout": 0.0, "summary_use_proj": True},
        **{"summary_proj_to_labels": True, "summary_type": "cls_index", "type_vocab_size": 2},
        **{"use_flash_attn": True, "use_xentropy": True, "torch_dtype": "float32"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = qkv.load(tmp_path)(np.arange(3, 40)[None]).last_hidden_state
    np.testing.assert_array_equal(found, expected)


def test_the_prefix_of_the_first_files(tmp_path: Path) -> None:
    """As nomic-bert-2048 has it, which transformers saves under another."""
    pair = made(tmp_path, NomicBertForMaskedLM, config_of("three heads"))
    ids = np.arange(3, 40)[None]
    expected = pair.ours(ids)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        name.replace("nomic_bert.", "bert.", 1) if name.startswith("nomic_bert.") else name: one
        for name, one in tensors.items()
    }
    assert "bert.encoder.layers.2.attn.Wqkv.weight" in renamed
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    found = qkv.load(tmp_path)
    np.testing.assert_array_equal(found(ids).logits, expected.logits)
    np.testing.assert_array_equal(found(ids).last_hidden_state, expected.last_hidden_state)
    compare_saved(Pair(found, pair.theirs, pair.bound), tmp_path / "ours")
