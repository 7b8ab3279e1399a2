"""Tests of older configurations and long texts of ModernBERT against transformers."""

import json
from pathlib import Path

import numpy as np
from transformers import ModernBertConfig, ModernBertForMaskedLM

import qkv

from .families import FULL, SLIDING
from .models import compare, made


def test_the_keys_of_transformers_4(tmp_path: Path) -> None:
    """The older keys give the same model as `layer_types` and `rope_parameters`.

    The older keys include the period of the layers with full attention, and two RoPE bases. The
    test writes the older keys by hand.
    """
    config = ModernBertConfig(
        vocab_size=97,
        hidden_size=36,
        num_attention_heads=3,
        intermediate_size=50,
        num_hidden_layers=5,
        local_attention=9,
        pad_token_id=0,
        layer_types=[FULL, SLIDING, SLIDING, FULL, SLIDING],
        rope_parameters={
            FULL: {"rope_type": "linear", "factor": 3.0, "rope_theta": 700.0},
            SLIDING: {"rope_type": "linear", "factor": 3.0, "rope_theta": 30.0},
        },
    )
    pair = made(tmp_path, ModernBertForMaskedLM, config)
    compare(pair)
    ids = np.arange(3, 40)[None]
    expected = pair.ours(ids).logits
    assert expected is not None
    values = json.loads((tmp_path / "config.json").read_text())
    del values["layer_types"], values["rope_parameters"]
    values |= {"global_attn_every_n_layers": 3, "global_rope_theta": 700.0, "local_rope_theta": 30}
    values |= {"rope_scaling": {"type": "linear", "factor": 3.0}}
    values |= {"position_embedding_type": "absolute", "layer_norm_eps": 1e-5}
    values |= {"reference_compile": None, "repad_logits_with_grad": False}
    (tmp_path / "config.json").write_text(json.dumps(values))
    np.testing.assert_array_equal(qkv.load(tmp_path)(ids).logits, expected)
    values["local_rope_theta"] = None  # the global base
    (tmp_path / "config.json").write_text(json.dumps(values))
    same = qkv.load(tmp_path)(ids).logits
    values["local_rope_theta"] = 700.0
    (tmp_path / "config.json").write_text(json.dumps(values))
    np.testing.assert_array_equal(qkv.load(tmp_path)(ids).logits, same)


def test_texts_of_several_windows(tmp_path: Path) -> None:
    """Long texts, which the kernel cuts into blocks, give the same results in both libraries."""
    config = ModernBertConfig(
        vocab_size=97,
        hidden_size=36,
        num_attention_heads=3,
        intermediate_size=50,
        num_hidden_layers=3,
        pad_token_id=0,
    )
    compare(made(tmp_path, ModernBertForMaskedLM, config), length=500)
