"""Tests of a head with one logit per token, against its formula."""

from __future__ import annotations

from math import erf
from pathlib import Path

import numpy as np

import qkv

from ..small_models import CONFIGS, write_small


def test_electra_discriminator_gives_one_logit_per_token(tmp_path: Path) -> None:
    config = {**CONFIGS["electra"], "architectures": ["ElectraForPreTraining"]}
    model = qkv.load(write_small(tmp_path / "model", config), dtype="float64")
    ids, mask = np.array([[2, 4, 5, 6], [7, 8, 0, 0]]), np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    found = model(ids, mask)
    dense, dense_bias, out, bias = (
        model.parameters[f"head.{name}"]
        for name in ("dense_proj.weight", "dense_proj.bias", "out_proj.weight", "out_proj.bias")
    )
    x = found.last_hidden_state @ dense + dense_bias
    gelu = x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    expected = (gelu @ out + bias)[..., 0] * mask
    assert found.logits is not None
    assert found.logits.shape == (2, 4)
    np.testing.assert_allclose(found.logits, expected, rtol=1e-12, atol=1e-12)
