"""Tests of Gemma's scaled embeddings and of text in multimodal Gemma 3 against transformers."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2Model,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Model,
    Gemma3TextConfig,
    Gemma3TextModel,
)

import qkv

from .families import WINDOWED_SIZES
from .models import compare, compare_saved, ids_of, made


def test_embeddings_are_scaled_in_their_own_type(tmp_path: Path) -> None:
    config = Gemma2Config(
        **WINDOWED_SIZES | {"hidden_size": 42}
    )  # sqrt(42) is 6.481, and 6.469 in bfloat16
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
    """`hook_embed` is the embedding times sqrt(D), because TransformerLens scales its W_E."""
    pair = made(tmp_path, kind, config(**WINDOWED_SIZES), torch.float64)
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
        text_config=WINDOWED_SIZES | {"num_hidden_layers": 7},
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
