"""Tests of an attention-only decoder: logits by the formula, traces and saved files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.layers import LayerNorm, MultiHeadAttention
from qkv.layers.block import Block
from qkv.models.untrained import fresh_model

CONFIG = {
    "model_type": "qkv-attention-only",
    "vocab_size": 11,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "max_position_embeddings": 9,
}


def model(dtype: Any = np.float64) -> qkv.Model:
    fresh = fresh_model(CONFIG, dtype=dtype)
    rng = np.random.default_rng(3)
    for name in fresh.parameters:
        array = fresh.parameters[name]
        fresh.parameters[name] = (array + 0.5 * rng.standard_normal(array.shape)).astype(dtype)
    return fresh


def norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def by_hand(p: Any, ids: list[int]) -> Any:
    """Return the logits of one text, by the attention-only formula of Elhage et al. 2021."""
    x = p["embed.weight"][ids] + p["pos_embed.weight"][: len(ids)]
    for layer in range(2):
        here = f"blocks.{layer}."
        normed = norm(x, p[f"{here}norm1.weight"], p[f"{here}norm1.bias"])
        q, k, v = (normed @ p[f"{here}attn.{n}_proj.weight"] for n in "qkv")
        heads = []
        for head in range(3):
            at = slice(4 * head, 4 * head + 4)
            scores = q[:, at] @ k[:, at].T / 2
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, at])
        x = x + np.concatenate(heads, -1) @ p[f"{here}attn.out_proj.weight"]
    last = norm(x, p["final_norm.weight"], p["final_norm.bias"])
    return last @ p["head.out_proj.weight"]


def test_logits_equal_the_papers_formula() -> None:
    ids = [3, 1, 4, 1, 5, 9]
    found = model()
    expected = by_hand(dict(found.parameters), ids)
    np.testing.assert_allclose(found([ids]).logits[0], expected, rtol=0, atol=1e-12)
    single = model(np.float32)
    np.testing.assert_allclose(single([ids]).logits[0], expected, rtol=0, atol=2e-5)


def test_its_trace_has_no_mlp() -> None:
    trace = model().trace(np.array([[3, 1, 4]]))
    assert not [name for name in trace.names() if "mlp" in name]
    np.testing.assert_array_equal(trace["resid_mid", 1], trace["resid_post", 1])
    with pytest.raises(KeyError):
        model().trace(np.array([[3, 1, 4]]), names="mlp_out")


def test_greedy_generation_matches_logits_of_the_whole_text(tmp_path: Path) -> None:
    found = model()
    found.save(tmp_path / "model")
    again = qkv.load(tmp_path / "model")
    ids = [3, 1, 4]
    for token in again.generate([3, 1, 4], max_new_tokens=5).ids:
        assert token == int(found([ids]).logits[0, -1].argmax())
        ids.append(token)


def test_an_mlp_and_its_norm_belong_together() -> None:
    attn = MultiHeadAttention(4, seed=0)
    with pytest.raises(ValueError, match="an mlp needs norm2"):
        Block(attn, LayerNorm(4), None, LayerNorm(4), post_norm=False)
    with pytest.raises(ValueError, match="a block with post_norm has only norm1 and norm2"):
        Block(attn, LayerNorm(4), None, None, post_norm=True)
