"""MPNet against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    MPNetConfig,
    MPNetForMaskedLM,
    MPNetForSequenceClassification,
    MPNetForTokenClassification,
    MPNetModel,
)
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from qkv.models.network.relative_bias import Buckets

from .models import compare, compare_all, made

CONFIGS: dict[str, dict[str, Any]] = {
    "three heads": {"hidden_size": 33, "num_attention_heads": 3},
    "five heads, relu, untied": {
        "hidden_size": 40,
        "num_attention_heads": 5,
        "hidden_act": "relu",
        "tie_word_embeddings": False,
        "layer_norm_eps": 1e-5,
        "num_labels": 3,
    },
}
KINDS = [MPNetModel, MPNetForMaskedLM, MPNetForSequenceClassification, MPNetForTokenClassification]


def config_of(name: str, **others: Any) -> MPNetConfig:
    return MPNetConfig(
        vocab_size=97,
        intermediate_size=50,
        num_hidden_layers=3,
        **{"max_position_embeddings": 50, **CONFIGS[name], **others},
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_mpnet(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    compare_all(tmp_path, kind, config_of(name), dtype)


def test_texts_longer_than_the_buckets(tmp_path: Path) -> None:
    config = config_of("three heads", max_position_embeddings=402)
    pair = made(tmp_path, MPNetModel, config)
    compare(pair, length=400)
    assert pair.ours.trace(np.arange(10, 70)[None]).attention_inputs(2)["bias"].shape == (
        *(1, 3, 60, 60),
    )


@pytest.mark.parametrize(("count", "furthest"), [(32, 128), (32, 64), (16, 40), (6, 9)])
def test_every_distance_has_its_bucket(count: int, furthest: int) -> None:
    distance = np.arange(-5000, 5001)
    theirs = MPNetEncoder.relative_position_bucket(torch.tensor(distance), count, furthest)
    np.testing.assert_array_equal(Buckets(count, furthest).of(distance), theirs.numpy())
