"""Tests of sparse autoencoders against torch.

The tests load folders in SAELens's layout, and compare the features with SAELens's formulas. The
tests also splice autoencoders into models at several hooks, and compare the gradients of training
with those of autograd.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from qkv.circuits import SAE, _sae_training

from .models import Pair, made
from .test_circuits import CLEAN, FAMILIES, run

D, N, K = 24, 40, 5


@pytest.fixture(scope="module", params=["gpt2", "llama", "gpt_neox"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A random float32 model of a family in both libraries."""
    kind, config = FAMILIES[request.param]
    found = made(tmp_path_factory.mktemp(request.param), kind, config, torch.float32)
    found.bound = 2e-5
    return found


def weights(*names: str) -> dict[str, torch.Tensor]:
    """Return random weights of an autoencoder, under SAELens's names."""
    torch.manual_seed(0)
    shapes = {"W_enc": (D, N), "W_dec": (N, D), "b_dec": (D,)}
    found = {name: torch.randn(shapes.get(name, (N,))) / 3 for name in (*shapes, *names)}
    if "threshold" in found:
        found["threshold"].abs_()
    return found


def features_of(kind: str, w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Compute the features with SAELens's formulas."""
    y = (x - w["b_dec"]) @ w["W_enc"]
    if kind == "gated":
        gate = (y + w["b_gate"] > 0).float()
        scaled = (x - w["b_dec"]) @ (w["W_enc"] * w["r_mag"].exp()) + w["b_mag"]
        return gate * torch.relu(scaled)
    y = y + w["b_enc"]
    if kind == "topk":
        top = torch.topk(y, K)
        return torch.zeros_like(y).scatter_(-1, top.indices, torch.relu(top.values))
    if kind == "jumprelu":
        return torch.relu(y) * (y > w["threshold"])
    return torch.relu(y)


OWN = {
    "standard": ["b_enc"],
    "topk": ["b_enc"],
    "jumprelu": ["b_enc", "threshold"],
    "gated": ["b_gate", "b_mag", "r_mag"],
}


def folder_of(home: Path, kind: str, site: str) -> tuple[Path, dict[str, torch.Tensor]]:
    """Write a folder as SAELens 6 does, and return it with its weights."""
    w = weights(*OWN[kind])
    save_file(w, home / "sae_weights.safetensors")
    config: dict[str, Any] = {
        **{"d_in": D, "d_sae": N, "dtype": "float32", "device": "cpu", "architecture": kind},
        **{"apply_b_dec_to_input": True, "normalize_activations": "none"},
        "reshape_activations": "hook_z" if site.endswith("hook_z") else "none",
        "metadata": {"sae_lens_version": "6.12.0", "hook_name": site, "model_name": "gpt2"},
    }
    if kind == "topk":
        config |= {"k": K, "rescale_acts_by_decoder_norm": False}
    (home / "cfg.json").write_text(json.dumps(config))
    return home, w


@torch.no_grad()
@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("at", ["resid_post", "mlp_out", "z"])
def test_a_folder_of_saelens_spliced_into_a_model(
    pair: Pair, tmp_path: Path, kind: str, at: str
) -> None:
    inside = "attn." if at == "z" else ""
    folder, w = folder_of(tmp_path, kind, f"blocks.1.{inside}hook_{at}")
    kept = {}

    def spliced(x: torch.Tensor) -> torch.Tensor:
        kept["features"] = features_of(kind, w, x.reshape(*x.shape[:2], D))
        return (kept["features"] @ w["W_dec"] + w["b_dec"]).reshape(x.shape)

    expected = run(pair, CLEAN, {(at, 1): spliced})
    sae = SAE.load(folder)
    trace = pair.ours.trace(CLEAN, logits=True, edit={sae.at: sae})
    pair.near(trace["sae_acts_post", 1], kept["features"], "features")
    pair.near(trace["logits"], expected, "logits")
    assert (expected - run(pair, CLEAN)).abs().max() > 1e-2


@pytest.mark.parametrize("dead", [[], [1, 2, 3, 30, 31, 35, 38, 39, 4, 5, 6, 7, 8, 9]])
def test_the_gradient_of_training_is_that_of_autograd(dead: list[int]) -> None:
    w = {name: array.double().requires_grad_() for name, array in weights("b_enc").items()}
    x = torch.randn(64, D, dtype=torch.float64)
    y = (x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]
    top = torch.topk(y, K)
    features = torch.zeros_like(y).scatter(-1, top.indices, torch.relu(top.values))
    error = features @ w["W_dec"] + w["b_dec"] - x
    loss = error.square().sum(-1).mean()
    if dead:
        top = torch.topk(y[:, dead], min(len(dead), D // 2))
        more = torch.zeros(64, len(dead), dtype=torch.float64)
        more = more.scatter(-1, top.indices, torch.relu(top.values))
        loss = loss + (more @ w["W_dec"][dead] + error.detach()).square().sum(-1).mean() / 32
    loss.backward()
    arrays = {name: array.detach().numpy() for name, array in w.items()}
    found, slopes, _ = _sae_training.gradients(arrays, x.numpy(), K, np.array(dead, int))
    np.testing.assert_allclose(found, loss.item(), rtol=1e-12)
    for name, array in w.items():
        assert array.grad is not None
        np.testing.assert_allclose(slopes[name], array.grad.numpy(), rtol=1e-9, atol=1e-12)
