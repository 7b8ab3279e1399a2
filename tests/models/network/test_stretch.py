"""Tests of detecting untrained models: only those whose W_Q and W_K are random."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.models import load, random_model
from qkv.models.network.transformer import LEARNED, stretch
from qkv.models.untrained import fresh_model
from qkv.trace import Trace

SHAPES = [(2, 1), (4, 2), (8, 1), (8, 2), (16, 4), (32, 4), (64, 8), (192, 6)]
SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 50}
SIZES |= {"intermediate_size": 64}
CONFIGS: list[dict[str, Any]] = [
    {"model_type": "bert", "architectures": ["BertForMaskedLM"], **SIZES},
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES},
    {
        **{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50},
        **{"n_embd": 64, "n_layer": 3, "n_head": 4},
    },
]


@pytest.mark.parametrize("shape", [(3, 5), (64, 32), (192, 192), (16, 1)])
def test_stretch_is_the_normalised_largest_singular_value(
    shape: tuple[int, int],
) -> None:
    weight = np.random.default_rng(1).standard_normal(shape)
    weight += 3 * np.outer(np.ones(shape[0]), np.arange(shape[1]) % 3)  # one learned direction
    edge = np.sqrt((weight**2).mean())
    expected = np.linalg.norm(weight, 2) / edge / sum(np.sqrt(shape))
    assert stretch(weight) == pytest.approx(expected, rel=1e-6)
    assert stretch(1e-3 * weight.astype(np.float32)) == pytest.approx(expected, rel=1e-5)


def test_stretch_of_zeros_and_nan() -> None:
    assert stretch(np.zeros((4, 4))) == 0
    assert stretch(np.full((4, 4), np.nan)) == np.inf


@pytest.mark.parametrize("seeds", [10, pytest.param(100, marks=pytest.mark.attack)])
@pytest.mark.parametrize("shape", SHAPES)
def test_random_models_are_untrained_for_every_shape_and_seed(
    shape: tuple[int, int], seeds: int
) -> None:
    dim, heads = shape
    for seed in range(seeds):
        assert random_model("a cat", dim=dim, heads=heads, seed=seed).network.untrained


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
@pytest.mark.parametrize("times", [0.1, 1, 30])
def test_fresh_models_are_untrained_at_every_scale(config: dict, times: float) -> None:
    model = fresh_model(config, seed=3)
    assert model.network.untrained
    larger = {name: array * np.float32(times) for name, array in model.parameters.items()}
    assert model.with_parameters(larger).network.untrained


@pytest.mark.parametrize("name", ["books", "books-decoder", "minilm"])
def test_trained_models_look_untrained_only_after_shuffling(name: str) -> None:
    model = load(name)
    assert not model.network.untrained
    assert not model.trace("a cat").untrained
    rng = np.random.default_rng(0)
    shuffled = {
        part: rng.permuted(array.ravel()).reshape(array.shape)
        if part.endswith(("q_proj.weight", "k_proj.weight"))
        else array
        for part, array in model.parameters.items()
    }
    other = model.with_parameters(shuffled)
    assert other.network.untrained
    most = max(stretch(shuffled[part]) for part in shuffled if part.endswith("q_proj.weight"))
    assert most < 1.1 < LEARNED


def test_a_trace_keeps_untrained_when_saved(tmp_path: Path) -> None:
    trace = random_model("a cat").trace(["a cat", "a"])
    assert trace.untrained
    assert trace[1].untrained
    trace.save(tmp_path / "trace")
    assert Trace.load(tmp_path / "trace").untrained
    assert not Trace({}, tokens=[["a"]]).untrained
