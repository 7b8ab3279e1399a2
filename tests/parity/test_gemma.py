"""Gemma 1, 2 and 3 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma2ForSequenceClassification,
    Gemma2ForTokenClassification,
    Gemma2Model,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3Model,
    Gemma3TextConfig,
    Gemma3TextForSequenceClassification,
    Gemma3TextModel,
    GemmaConfig,
    GemmaForCausalLM,
    GemmaForSequenceClassification,
    GemmaForTokenClassification,
    GemmaModel,
)

import qkv

from .models import compare, compare_saved, ids_of, made

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "intermediate_size": 50,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "num_labels": 3,
    "hidden_size": 36,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "query_pre_attn_scalar": 10,
    "sliding_window": 6,
}
WINDOWED = ("sliding_window", "query_pre_attn_scalar")
GEMMA: dict[str, dict[str, Any]] = {
    "grouped": {},
    "untied, biases, as first published": {
        "tie_word_embeddings": False,
        "attention_bias": True,
        "hidden_act": "gelu",
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    },
    "one key head, silu": {"hidden_act": "silu", "num_key_value_heads": 1, "hidden_size": 15},
}
GEMMA2: dict[str, dict[str, Any]] = {
    "in turn": {},
    "untied, tight caps": {
        "tie_word_embeddings": False,
        "attn_logit_softcapping": 0.7,
        "final_logit_softcapping": 2.0,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        "sliding_window": 1,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    },
    "no caps, biases, another scale": {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "attention_bias": True,
        "query_pre_attn_scalar": 40,  # at 3, scores of 56 leave float32 itself off by 1e-5
        "hidden_activation": "silu",
        "num_key_value_heads": 1,
    },
}
GEMMA3: dict[str, dict[str, Any]] = {
    "one of six": {"num_hidden_layers": 7},
    "one of two, two bases, untied": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": False,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 5,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
    },
    "to both sides, biases": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "use_bidirectional_attention": True,
        "sliding_window": 7,
        "attention_bias": True,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "hidden_size": 15,
    },
}


def first(name: str) -> GemmaConfig:
    """The config of a Gemma 1, which has no windows."""
    return GemmaConfig(**{k: v for k, v in SIZES.items() if k not in WINDOWED} | GEMMA[name])


@pytest.mark.parametrize("name", GEMMA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gemma(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    pair = made(tmp_path, GemmaForCausalLM, first(name), dtype)
    compare(pair)
    compare_saved(pair, tmp_path / "saved")


@pytest.mark.parametrize(
    "kind",
    [GemmaModel, GemmaForSequenceClassification, GemmaForTokenClassification],
    ids=lambda kind: kind.__name__,
)
def test_other_heads_of_gemma(tmp_path: Path, kind: type) -> None:
    compare(made(tmp_path, kind, first("grouped"), torch.float64))


@pytest.mark.parametrize("name", GEMMA2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gemma2(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    pair = made(tmp_path, Gemma2ForCausalLM, Gemma2Config(**SIZES | GEMMA2[name]), dtype)
    compare(pair)
    compare_saved(pair, tmp_path / "saved")


@pytest.mark.parametrize("name", GEMMA3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gemma3(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    pair = made(tmp_path, Gemma3ForCausalLM, Gemma3TextConfig(**SIZES | GEMMA3[name]), dtype)
    compare(pair)
    compare_saved(pair, tmp_path / "saved")


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (Gemma2Model, Gemma2Config),
        (Gemma2ForSequenceClassification, Gemma2Config),
        (Gemma2ForTokenClassification, Gemma2Config),
        (Gemma3TextModel, Gemma3TextConfig),
        (Gemma3TextForSequenceClassification, Gemma3TextConfig),
    ],
    ids=lambda kind: kind.__name__,
)
def test_other_heads(tmp_path: Path, kind: type, config: type) -> None:
    sizes = SIZES | {"final_logit_softcapping": 0.5}  # which is for words alone
    pair = made(tmp_path, kind, config(**sizes), torch.float64)
    compare(pair)
    with pytest.raises(ValueError, match=r"^generate: "):  # classes are not words
        pair.ours.generate([[3, 4]])


def test_embeddings_are_scaled_in_their_own_type(tmp_path: Path) -> None:
    config = Gemma2Config(**SIZES | {"hidden_size": 42})  # its root is 6.481, and 6.469 in bfloat16
    pair = made(tmp_path, Gemma2Model, config)
    ids = torch.arange(97)[None]
    theirs = pair.theirs.to(torch.bfloat16).embed_tokens(ids).detach().float().numpy()
    ours = qkv.load(tmp_path, dtype="bfloat16")
    trace = ours.trace(ids[:, :60].numpy(), names="hook_full_embed")
    found = trace["hook_full_embed"].astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found, theirs[:, :60])


@pytest.mark.parametrize(
    ("kind", "config"), [(Gemma2Model, Gemma2Config), (Gemma3TextModel, Gemma3TextConfig)]
)
def test_the_embedding_in_a_trace_is_scaled_as_in_transformerlens(
    tmp_path: Path, kind: type, config: Any
) -> None:
    """TransformerLens multiplies W_E itself by the root of D, so that `hook_embed` has it."""
    pair = made(tmp_path, kind, config(**SIZES), torch.float64)
    ids, _ = ids_of(pair, [9], "right")
    table = pair.theirs.get_parameter("embed_tokens.weight").detach().numpy()
    trace = pair.ours.trace(ids, names=["embed", "full_embed"])
    pair.near(trace["hook_embed"], table[ids] * np.sqrt(table.shape[1]), "embed")
    pair.near(trace["hook_full_embed"], trace["hook_embed"], "full_embed")


@pytest.mark.parametrize(
    "kind", [Gemma3ForConditionalGeneration, Gemma3Model], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("tied", [True, False])
def test_gemma3_beside_images(tmp_path: Path, kind: type, tied: bool) -> None:
    config = Gemma3Config(
        text_config=SIZES | GEMMA3["one of six"],
        vision_config={
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
        tie_word_embeddings=tied,
    )
    pair = made(tmp_path, kind, config, torch.float64)
    compare(pair)
    compare_saved(pair, tmp_path / "saved")
