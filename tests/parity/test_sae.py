"""Tests of sparse autoencoders against torch.

The tests load folders in SAELens's layout, and compare the features with SAELens's formulas. The
tests also splice autoencoders into models at several hooks.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from qkv.circuits import SAE
from qkv.models.files.read import ModelError

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


def write_with_torch(path: Path, arrays: dict[str, torch.Tensor]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(arrays, path)
    return path


# The names of each class of dictionary_learning in ae.pt, the architecture's features, and whether
# b_dec is subtracted. Names with ".weight" are transposed.
CLASSES = {
    "AutoEncoder": ("standard", True, {"b_dec": "bias"}),
    "GatedAutoEncoder": (
        "gated",
        True,
        {"b_dec": "decoder_bias", "b_mag": "mag_bias", "b_gate": "gate_bias", "r_mag": "r_mag"},
    ),
    "AutoEncoderTopK": ("topk", True, {"b_dec": "b_dec"}),
    "BatchTopKSAE": ("jumprelu", True, {"b_dec": "b_dec"}),
    "MatryoshkaBatchTopKSAE": ("jumprelu", True, {"W_enc": "W_enc", "W_dec": "W_dec"}),
    "JumpReluAutoEncoder": ("jumprelu", False, {"W_enc": "W_enc", "W_dec": "W_dec"}),
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_files_of_dictionary_learning(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    kind, subtracts, names = CLASSES[name]
    w = {key: array.to(dtype).float() for key, array in weights(*OWN[kind]).items()}
    whole = name in ("BatchTopKSAE", "MatryoshkaBatchTopKSAE")
    if whole:
        w["threshold"] = torch.tensor(0.3).to(dtype).float()
    if "W_enc" not in names:
        names = {"W_enc": "encoder.weight", "W_dec": "decoder.weight", **names}
        names = {"b_enc": "encoder.bias", **names}
    stored = {
        names.get(key, key): (array.T if names.get(key, key).endswith("weight") else array)
        for key, array in w.items()
    }
    stored = {key: array.to(dtype) for key, array in stored.items()}
    if kind == "topk":
        stored |= {"k": torch.tensor(K), "threshold": torch.tensor(0.1)}
    write_with_torch(tmp_path / "ae.pt", stored)
    trainer = {"dict_class": name, "layer": 1, "k": K, "lm_name": "EleutherAI/pythia-70m"}
    (tmp_path / "config.json").write_text(json.dumps({"trainer": trainer}))
    sae = SAE.load(tmp_path)
    assert (sae.at, sae.architecture) == ("blocks.1.hook_resid_post", kind)
    assert sae.metadata["model_name"] == "pythia-70m"
    x = torch.randn(7, D)
    features = features_of(kind, w if subtracts else {**w, "b_dec": torch.zeros(D)}, x)
    np.testing.assert_allclose(sae.encode(x.numpy()), features.numpy(), rtol=0, atol=1e-5)
    decoded = (features @ w["W_dec"] + w["b_dec"]).numpy()
    np.testing.assert_allclose(sae(x.numpy()), decoded, rtol=0, atol=1e-5)


def test_files_of_qwen_scope(tmp_path: Path) -> None:
    w = weights("b_enc")
    stored = {**w, "W_enc": w["W_enc"].T, "W_dec": w["W_dec"].T}
    folder = tmp_path / f"SAE-Res-Qwen3-1.7B-Base-W32K-L0_{K}"
    sae = SAE.load(write_with_torch(folder / "layer12.sae.pt", stored))
    assert (sae.at, sae.k) == ("blocks.12.hook_resid_post", K)
    x = torch.randn(7, D)
    features = features_of("topk", {**w, "b_dec": torch.zeros(D)}, x)
    np.testing.assert_allclose(sae.encode(x.numpy()), features.numpy(), rtol=0, atol=1e-5)
    with pytest.raises(ModelError, match="k is unknown; keep the file in a folder whose name"):
        SAE.load(write_with_torch(tmp_path / "layer12.sae.pt", stored))


def test_a_torch_file_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "L0_5" / "layer0.sae.pt"
    write_with_torch(path, {"W_enc": torch.nn.Linear(2, 2)})  # type: ignore[dict-item]  # a module
    with pytest.raises(ModelError, match=r"the pickle uses 'torch.nn.modules.linear.Linear', whi"):
        SAE.load(path)
    write_with_torch(path, [torch.ones(2)])  # type: ignore[arg-type]  # no dict
    with pytest.raises(ModelError, match=r"the file does not contain a dict of tensors"):
        SAE.load(path)
    write_with_torch(path, {"W_enc": torch.ones(2)})
    with pytest.raises(ModelError, match="has no W_dec: an autoencoder of the architecture"):
        SAE.load(path)
