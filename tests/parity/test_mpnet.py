"""Tests of MPNet's relative positions against transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MPNetModel
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from qkv.models.network._relative_bias import Buckets

from .families import FAMILIES
from .models import compare, made


def test_texts_longer_than_the_buckets(tmp_path: Path) -> None:
    config = FAMILIES["mpnet"].config_of("three heads", max_position_embeddings=402)
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
