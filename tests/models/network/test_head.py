"""Tests of a head with one logit per token, against its formula."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qkv

from ..formulas import ACTIVATIONS
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
    x = ACTIVATIONS["gelu"](found.last_hidden_state @ dense + dense_bias)
    expected = (x @ out + bias)[..., 0] * mask
    assert found.logits is not None
    assert found.logits.shape == (2, 4)
    np.testing.assert_allclose(found.logits, expected, rtol=1e-12, atol=1e-12)


def test_a_decoder_ranks_by_the_last_token_that_is_not_the_padding_token(tmp_path: Path) -> None:
    kind = {"architectures": ["GPT2ForSequenceClassification"], "num_labels": 1}
    plain = qkv.load(write_small(tmp_path / "plain", {**CONFIGS["gpt2"], **kind}))
    assert plain.tokenizer is not None
    ids, _, _ = plain.tokenizer.pair("the bank", "river")
    last = int(ids[-1])
    assert last not in ids[:2]
    padded = {**CONFIGS["gpt2"], **kind, "pad_token_id": last}
    model = qkv.load(write_small(tmp_path / "padded", padded))
    weight = model.parameters["head.out_proj.weight"]
    vectors = model([ids]).last_hidden_state[0]
    at = max(np.flatnonzero(ids != last))
    assert at < len(ids) - 1
    [found] = model.rank("the bank", ["river"], activation_fn=lambda logits: logits)
    assert found["score"] == pytest.approx(float(vectors[at] @ weight[:, 0]), rel=1e-5)
    other = plain(ids[None]).logits
    assert other is not None
    assert found["score"] != pytest.approx(float(other[0, 0]), rel=1e-2)
