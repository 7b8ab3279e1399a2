"""Tests of `qkv-plain`, whose parts can be switched off, and of `qkv-attention-only`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.layers import LayerNorm, MultiHeadAttention
from qkv.layers.block import Block
from qkv.models import ModelError
from qkv.models.untrained import fresh_model

from ..formulas import ACTIVATIONS, attend, causal, layer_norm

SIZES = {
    **{"model_type": "qkv-plain", "vocab_size": 11, "hidden_size": 12, "num_attention_heads": 3},
    **{"max_position_embeddings": 9, "num_hidden_layers": 2},
}
SWITCHES: dict[str, dict[str, Any]] = {
    "attention only": {"model_type": "qkv-attention-only", "mlp": False},  # of Elhage et al. 2021
    "by default": {},
    "no norms": {"norms": False},
    "no norms, no biases, fewer words": {"norms": False, "biases": False, "output_vocab_size": 7},
    "no MLP, more words, wide heads": {"mlp": False, "output_vocab_size": 23, "head_dim": 5},
    "neither norms nor MLP, not causal": {"mlp": False, "norms": False, "causal": False},
    "not causal, tanh-GELU": {"causal": False, "hidden_act": "gelu_new", "intermediate_size": 5},
}
IDS = [3, 1, 4, 1, 5, 9]


def model(switches: dict[str, Any], dtype: Any = np.float64) -> qkv.Model:
    config = SIZES | switches
    if config["model_type"] == "qkv-attention-only":
        del config["mlp"], config["num_hidden_layers"]  # it has no switch, and two layers
    fresh = fresh_model(config, dtype=dtype)
    rng = np.random.default_rng(3)
    for name in fresh.parameters:
        array = fresh.parameters[name]
        fresh.parameters[name] = (array + 0.5 * rng.standard_normal(array.shape)).astype(dtype)
    return fresh


def by_hand(p: dict[str, Any], switches: dict[str, Any]) -> Any:
    """Return the logits of `IDS`, in plain NumPy."""

    def linear(x: Any, name: str) -> Any:
        return x @ p[f"{name}.weight"] + p.get(f"{name}.bias", 0)

    def norm(x: Any, name: str) -> Any:
        if not switches.get("norms", True):
            return x
        return layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], 1e-5)

    visible = causal(len(IDS)) if switches.get("causal", True) else True
    act = ACTIVATIONS[switches.get("hidden_act", "relu")]
    x = p["embed.weight"][IDS] + p["pos_embed.weight"][: len(IDS)]
    for layer in range(2):
        here = f"blocks.{layer}."
        q, k, v = (linear(norm(x, f"{here}norm1"), f"{here}attn.{n}_proj") for n in "qkv")
        x = x + linear(attend(q, k, v, 3, visible=visible)[0], f"{here}attn.out_proj")
        if switches.get("mlp", True):
            up = act(linear(norm(x, f"{here}norm2"), f"{here}mlp.up_proj"))
            x = x + linear(up, f"{here}mlp.down_proj")
    return linear(norm(x, "final_norm"), "head.out_proj")


@pytest.mark.parametrize("name", SWITCHES)
def test_logits_equal_the_formula(name: str, tmp_path: Path) -> None:
    switches = SWITCHES[name]
    found = model(switches)
    expected = by_hand(dict(found.parameters), switches)
    assert expected.shape == (len(IDS), switches.get("output_vocab_size", 11))
    np.testing.assert_allclose(found([IDS]).logits[0], expected, rtol=0, atol=1e-11)
    found.save(tmp_path / "model")
    again = qkv.load(tmp_path / "model")
    # not equal to the bit: BLAS may add in another order if an array is aligned otherwise
    np.testing.assert_allclose(again([IDS]).logits, found([IDS]).logits, rtol=0, atol=1e-11)
    single = model(switches, np.float32)([IDS]).logits[0]
    bound = 2e-5 * np.abs(expected).max()
    np.testing.assert_allclose(single, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("name", SWITCHES)
def test_gradient_of_a_logit_equals_its_central_difference(name: str) -> None:
    found = model(SWITCHES[name])
    gradient = found.gradient([IDS], of=(4, 6), at=["embed"])["embed"][0, 2]
    table, step = found.parameters["embed.weight"], 1e-6
    direction = np.random.default_rng(1).standard_normal(12)
    ends = []
    for sign in (1, -1):
        moved = table.copy()
        moved[4] += sign * step * direction  # only position 2 has the id 4
        found.parameters["embed.weight"] = moved
        ends.append(found([IDS]).logits[0, 4, 6])
    np.testing.assert_allclose(gradient @ direction, (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


def test_a_trace_without_mlps_has_no_mlp() -> None:
    found = model(SWITCHES["attention only"])
    trace = found.trace(np.array([[3, 1, 4]]))
    assert not [name for name in trace.names() if "mlp" in name]
    np.testing.assert_array_equal(trace["resid_mid", 1], trace["resid_post", 1])
    with pytest.raises(KeyError):
        found.trace(np.array([[3, 1, 4]]), names="mlp_out")


def test_an_mlp_and_its_norm_belong_together() -> None:
    attn = MultiHeadAttention(4, seed=0)
    with pytest.raises(ValueError, match="an mlp needs norm2"):
        Block(attn, LayerNorm(4), None, LayerNorm(4), post_norm=False)
    with pytest.raises(ValueError, match="a block with post_norm has only norm1 and norm2"):
        Block(attn, LayerNorm(4), None, None, post_norm=True)


def test_generation_without_norms_equals_the_logits_of_the_whole_text() -> None:
    found, ids = model({"norms": False}, np.float32), [3, 1, 4]
    for token in found.generate(ids[:], max_new_tokens=5).ids:
        assert token == int(found([ids]).logits[0, -1].argmax())
        ids.append(token)


@pytest.mark.parametrize("key", ["norms", "causal", "mlp", "biases"])
def test_a_switch_is_true_or_false(key: str) -> None:
    with pytest.raises(ModelError, match=f"{key} is 1; it must be true or false"):
        fresh_model(SIZES | {key: 1})
