"""Train a small transformer to add modulo 113, until it generalises: `python -m training.grokking`.

The model reads the tokens a, b and "=", and predicts (a + b) mod 113. It learns from 30% of all
pairs (a, b), and is tested on the other pairs. It first memorises the training pairs; thousands of
steps later, it predicts the others too (grokking). The sizes, the learning rate and the weight
decay are those of the second source.

The command writes the losses and accuracies of the run to docs/data/grokking.json. It takes about
half an hour on two cores.

Source:
    Power et al. 2022, "Grokking: Generalization beyond overfitting on small algorithmic datasets";
    Nanda et al. 2023, "Progress measures for grokking via mechanistic interpretability".
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.files import replacing
from qkv.learn import AdamW, Network, Schedule, Words, fresh_model, train, words_loss
from qkv.learn.run_folder import read_metrics
from qkv.ops import cross_entropy
from training import command

FILE = Path(__file__).resolve().parents[1] / "docs" / "data" / "grokking.json"
PRIME, DIM, TRAINED = 113, 128, 0.3
STEPS, EVERY = 10_000, 100


class Addition:
    """The objective: predict (a + b) mod p after the tokens a, b and "=" (token p).

    Attributes:
        pairs: (p * p, 3), the tokens of all pairs.
        sums: (p * p,), the number to predict for each pair.
        trained: (n,), the indices of the training pairs.
        tested: the indices of all other pairs.
    """

    name = "addition"

    def __init__(self, prime: int = PRIME, trained: float = TRAINED, seed: int = 0) -> None:
        first, second = np.divmod(np.arange(prime * prime), prime)
        self.pairs = np.stack([first, second, np.full_like(first, prime)], axis=1)
        self.sums = (first + second) % prime
        order = np.random.default_rng(seed).permutation(len(self.pairs))
        self.trained, self.tested = np.split(order, [int(trained * len(order))])

    def batch(self, step: int, rng: np.random.Generator) -> Words:
        """Return all training pairs, in every step."""
        ids = self.pairs[self.trained]
        starts = np.arange(0, ids.size + 1, ids.shape[1])
        return Words(ids.ravel(), starts, starts[1:] - 1, self.sums[self.trained])

    def __call__(self, network: Network, batch: Words) -> tuple[float, int]:
        """Add the loss's gradient to the network; return the mean loss and the number of tokens."""
        return words_loss(network, batch), len(batch.ids)

    def state(self) -> dict[str, Any]:
        """Return the state, which is empty: all batches are equal."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""

    def measure(self, model: qkv.Model) -> dict[str, float]:
        """Return the mean loss and the accuracy, for the training pairs and for the other pairs."""
        logits = np.asarray(model(self.pairs).logits, np.float64)[:, -1]  # (p * p, p)
        losses, _ = cross_entropy(logits, self.sums)
        right = logits.argmax(-1) == self.sums
        return {
            f"{part}_{name}": float(values[chosen].mean())
            for part, chosen in (("train", self.trained), ("test", self.tested))
            for name, values in (("loss", losses), ("accuracy", right))
        }


def start(prime: int = PRIME, dim: int = DIM, seed: int = 0) -> Network:
    """Return an untrained network: one layer, four heads, an MLP and no norms.

    The standard deviation of all weights is `1 / sqrt(dim)`; biases are 0.
    """
    config = {"model_type": "qkv-plain", "vocab_size": prime + 1, "output_vocab_size": prime}
    config |= {"hidden_size": dim, "num_attention_heads": 4, "intermediate_size": 4 * dim}
    config |= {"num_hidden_layers": 1, "max_position_embeddings": 3, "norms": False}
    network = Network(fresh_model(config))
    rng = np.random.default_rng(seed)
    weights: Array = network.flat[: network.matrices]
    weights[...] = rng.standard_normal(len(weights)) / math.sqrt(dim)
    return network


def run(
    folder: Path,
    network: Network,
    objective: Addition,
    steps: int,
    every: int,
    *,
    resume: bool = False,
) -> list[list[float]]:
    """Train, and return the measured numbers as rows: step, losses and accuracies."""
    train(
        network,
        objective,
        folder=folder,
        steps=steps,
        schedule=Schedule(1e-3, warmup=min(0.5, 10 / steps), fall="none"),
        optimizer=AdamW(network, decay=1.0, clip=math.inf),
        evaluate=objective.measure,
        evaluate_steps=every,
        snapshots=[],
        resume=resume,
    )
    names = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
    return [
        [row["step"], *(float(f"{row[name]:.3g}") for name in names)]
        for row in read_metrics(folder)
        if "test_loss" in row
    ]


def main() -> None:
    """Train, and write docs/data/grokking.json."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("-o", type=Path, default=Path("build/grokking"), help="folder of the run")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps (default: {STEPS})")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    chosen = parser.parse_args()
    rows = run(chosen.o, start(), Addition(), chosen.steps, EVERY, resume=chosen.resume)
    with replacing(FILE) as file:
        file.write((json.dumps(rows) + "\n").encode())
    print(f"test accuracy {rows[-1][-1]:.3f}")


if __name__ == "__main__":
    command(main)
