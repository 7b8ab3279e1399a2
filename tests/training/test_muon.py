"""Tests of Muon against an SVD in float64, and against AdamW for all other parameters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.learn import AdamW, Causal, Network, Sequences, fresh_model, train
from training.muon import Muon, orthogonal

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    **{"vocab_size": 23, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "intermediate_size": 12, "max_position_embeddings": 16},
}


def network(seed: int = 0) -> Network:
    return Network(fresh_model(CONFIG, seed=seed))


def turned(matrix: np.ndarray) -> np.ndarray:
    """Apply Muon's five iterations to the singular values alone."""
    u, s, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    s = s / np.sqrt((s**2).sum())
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5)])
def test_orthogonal_keeps_the_singular_vectors(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = orthogonal(matrix)
    np.testing.assert_allclose(found, turned(matrix), atol=1e-5)
    assert found.dtype == np.float32
    assert orthogonal(np.zeros(shape, np.float32)).tolist() == np.zeros(shape).tolist()


def test_two_steps_by_hand() -> None:
    """Matrices in blocks get Muon's steps with Nesterov momentum; all else gets AdamW's steps."""
    rate, decay, clip = 0.02, 0.1, 3.0
    one, two = network(), network()
    muon, adam = Muon(one, decay=decay, clip=clip), AdamW(two, decay=decay, clip=clip)
    rng = np.random.default_rng(1)
    gradients = [rng.standard_normal(one.flat.size).astype(np.float32) for _ in range(2)]
    assert all(np.linalg.norm(gradient) > clip for gradient in gradients)
    expected = {name: array.astype(np.float64) for name, array in one.parameters.items()}
    means = {name: np.zeros(array.shape) for name, array in expected.items()}
    for gradient in gradients:
        for net, optimizer in ((one, muon), (two, adam)):
            net.gradient[:] = gradient
            optimizer.step(rate)
        for name, array in expected.items():
            own = one.gradients[name] * (clip / np.linalg.norm(gradient.astype(np.float64)))
            means[name] = 0.95 * means[name] + 0.05 * own
            if array.ndim == 2:
                step = turned(0.95 * means[name] + 0.05 * own)
                size = 0.2 * np.sqrt(max(array.shape))
                expected[name] = array * (1 - rate * decay) - rate * size * step
    assert muon.count == 2
    for name, found in one.parameters.items():
        turns = name.startswith("blocks.") and found.ndim == 2
        other = expected[name] if turns else two.parameters[name]
        np.testing.assert_allclose(found, other, atol=1e-5 if turns else 1e-7, err_msg=name)
    assert sum(name.startswith("blocks.") for name in one.parameters) > 10


def test_a_gradient_that_is_not_finite_is_named() -> None:
    net = network()
    before = net.flat.copy()
    net.gradient[2] = np.nan
    with pytest.raises(FloatingPointError, match="Muon: a gradient is not finite"):
        Muon(net).step(0.01)
    np.testing.assert_array_equal(net.flat, before)


class Stops(Causal):
    """An objective that interrupts training at one step."""

    at = 5

    def batch(self, step: int, rng: np.random.Generator) -> Any:
        if step == self.at:
            raise KeyboardInterrupt
        return super().batch(step, rng)


def test_a_stopped_run_ends_as_the_unbroken_one_to_the_last_bit(tmp_path: Path) -> None:
    def run(net: Network, kind: type[Causal], folder: str, resume: bool = False) -> np.ndarray:
        rng = np.random.default_rng(0)
        texts = Sequences([rng.integers(0, 23, 8) for _ in range(30)])
        train(
            net,
            kind(texts, tokens_per_step=40),
            folder=tmp_path / folder,
            optimizer=Muon(net),
            **{"steps": 8, "checkpoint_steps": 3, "schedule": 0.01, "snapshots": []},
            resume=resume,
        )
        return net.flat

    whole = run(network(), Causal, "whole")
    with pytest.raises(KeyboardInterrupt):
        run(network(), Stops, "broken")
    np.testing.assert_array_equal(run(network(9), Causal, "broken", resume=True), whole)
