"""Tests of DINOv2 against transformers: layers, classes, and images of several sizes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BitImageProcessorPil,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
)

import qkv

from .models import EVERY_LAYER, compare_saved, compare_trace, double, images_of, made

CONFIGS: dict[str, dict[str, Any]] = {
    "three heads": {
        **{"hidden_size": 33, "num_attention_heads": 3, "num_hidden_layers": 3},
        **{"mlp_ratio": 2, "image_size": 20, "patch_size": 4},
    },
    "gated, grey, no biases": {
        **{"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 2},
        **{"mlp_ratio": 3, "image_size": [12, 20], "patch_size": [3, 5], "use_swiglu_ffn": True},
        **{"num_channels": 1, "qkv_bias": False, "layer_norm_eps": 1e-3, "num_labels": 7},
        "use_mask_token": False,
    },
}
SIZES = {"as in the config": None, "wider": (17, 31), "smaller": (9, 11), "one patch": (6, 7)}


@pytest.mark.parametrize("kind", [Dinov2Model, Dinov2ForImageClassification])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dinov2(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    pair = made(tmp_path / "theirs", kind, Dinov2Config(**CONFIGS[name]), dtype)
    compare_saved(pair, tmp_path / "ours")
    for size in SIZES.values():
        images = images_of(pair, 3, size)
        theirs = pair.run(images, **EVERY_LAYER)
        with torch.inference_mode(), double(pair.is_double):
            base = getattr(pair.theirs, "dinov2", pair.theirs)
            last = base(torch.tensor(images)).last_hidden_state
        ours = pair.ours(images)
        pair.near(ours.last_hidden_state, last, "last")
        if kind is Dinov2ForImageClassification:
            pair.near(ours.logits, theirs.logits, "logits")
        else:
            assert ours.logits is None
        compare_trace(pair, pair.ours.trace(images), theirs)


@pytest.mark.parametrize(
    "options",
    [
        {"size": {"shortest_edge": 24}, "crop_size": {"height": 20, "width": 16}},
        {"size": 25, "crop_size": 25, "resample": 2, "image_mean": [0.5] * 3},
        {"size": {"height": 20, "width": 28}, "do_center_crop": False},
        {"do_resize": False, "crop_size": 13, "do_normalize": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(31, 50), (50, 31), (40, 40)], ids=str)
def test_images(tmp_path: Path, options: dict[str, Any], shape: tuple[int, int]) -> None:
    pair = made(tmp_path, Dinov2Model, Dinov2Config(**CONFIGS["three heads"]))
    processor = BitImageProcessorPil(**options)
    processor.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    theirs = processor(image, return_tensors="np")["pixel_values"]
    pair.near(model.pixels(image), theirs, "pixels")
    expected = pair.run(theirs).last_hidden_state
    pair.near(model(model.pixels(image)).last_hidden_state, expected, "last")
