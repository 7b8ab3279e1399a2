"""Tests of ViT against transformers: patches, layers, classes and preprocessing of images."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    ViTConfig,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTImageProcessorPil,
    ViTModel,
)

import qkv

from .models import EVERY_LAYER, compare_saved, compare_trace, double, images_of, made

CONFIGS: dict[str, dict[str, Any]] = {
    "three heads, square": {
        **{"hidden_size": 33, "num_attention_heads": 3, "num_hidden_layers": 3},
        **{"intermediate_size": 40, "image_size": 20, "patch_size": 4},
    },
    "wide, other patches, no biases, grey": {
        **{"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 2},
        **{"intermediate_size": 50, "image_size": [12, 26], "patch_size": [3, 5]},
        **{"num_channels": 1, "qkv_bias": False, "hidden_act": "gelu_new"},
        **{"layer_norm_eps": 1e-3, "num_labels": 7},
    },
    "heads larger than their share": {
        **{"hidden_size": 16, "num_attention_heads": 3, "num_hidden_layers": 1, "head_dim": 10},
        **{"intermediate_size": 20, "image_size": 9, "patch_size": 4, "hidden_act": "relu"},
    },
}
TYPES = [torch.float32, torch.float64]
KINDS = [ViTModel, ViTForImageClassification, ViTForMaskedImageModeling]


def leaves_out_a_head(kind: type) -> AbstractContextManager[Any]:
    if kind is ViTForMaskedImageModeling:
        return pytest.warns(UserWarning, match="does not compute the head of ViTForMaskedImage")
    return nullcontext()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_vit(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    with leaves_out_a_head(kind):
        pair = made(tmp_path / "theirs", kind, ViTConfig(**CONFIGS[name]), dtype)
    compare_saved(pair, tmp_path / "ours")
    images = images_of(pair, 3)
    with torch.inference_mode(), double(pair.is_double):
        base = getattr(pair.theirs, "vit", pair.theirs)
        whole = base if kind is ViTForMaskedImageModeling else pair.theirs
        theirs = whole(torch.tensor(images), **EVERY_LAYER)
        last = base(torch.tensor(images)).last_hidden_state
    ours = pair.ours(images)
    pair.near(ours.last_hidden_state, last, "last")
    if kind is ViTForImageClassification:
        pair.near(ours.logits, theirs.logits, "logits")
    else:
        assert ours.logits is None
    compare_trace(pair, pair.ours.trace(images), theirs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"resample": 3, "image_mean": [0.48, 0.4, 0.3], "image_std": [0.2, 0.3, 0.25]},
        {"do_resize": False},
        {"do_rescale": False, "do_normalize": False},
        {"size": {"height": 20, "width": 20}, "rescale_factor": 1 / 127.5},
    ],
    ids=str,
)
def test_images(tmp_path: Path, options: dict[str, Any]) -> None:
    pair = made(tmp_path, ViTModel, ViTConfig(**CONFIGS["three heads, square"]))
    processor = ViTImageProcessorPil(**{"size": {"height": 20, "width": 20}, **options})
    processor.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    rng = np.random.default_rng(0)
    size = (20, 20) if options.get("do_resize") is False else (31, 50)
    images = [rng.integers(0, 256, (*size, 3), np.uint8) for _ in range(2)]
    theirs = processor(images, return_tensors="np")["pixel_values"]
    pair.near(model.pixels(images), theirs, "pixels")


def test_an_old_file(tmp_path: Path) -> None:
    """An older preprocessor config is read, as in google/vit-base-patch16-224."""
    pair = made(tmp_path, ViTModel, ViTConfig(**CONFIGS["three heads, square"]))
    old = {
        **{"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3},
        **{"image_std": [0.5] * 3, "size": 20},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(old))
    model = qkv.load(tmp_path)
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    processor = ViTImageProcessorPil.from_pretrained(tmp_path)
    theirs = processor(image, return_tensors="np")["pixel_values"]
    pair.near(model.pixels(image), theirs, "pixels")
    states = model.trace(image, names="resid_post", layers=-1)["resid_post", 2]
    expected = pair.run(theirs, output_hidden_states=True).hidden_states[-1]
    pair.near(states, expected, "last")
