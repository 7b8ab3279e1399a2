"""A small network, and an objective that does not run the layers of a network."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.learn import Network, fresh_model

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    **{"vocab_size": 23, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16},
}
BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    **{"vocab_size": 23, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 12, "max_position_embeddings": 16},
}


def network(config: dict[str, Any] = GPT2, seed: int = 0, dtype: Any = np.float32) -> Network:
    return Network(fresh_model(config, seed=seed, dtype=dtype))


class Pull:
    """An objective that pulls every parameter to a target near 3, which varies in each step.

    Args:
        poison: the steps at which the gradient has a NaN.
        shove: the step after which the loss rises: the next step adds 1 to the loss, the step after
            that adds 2, and so on.
    """

    def __init__(self, name: str = "pull", *, poison: Any = (), shove: int | None = None) -> None:
        self.name, self.poison, self.shove, self.taken = name, poison, shove, 0

    def batch(self, step: int, rng: np.random.Generator) -> Any:
        self.taken += 1
        return step, rng.standard_normal(), self.taken

    def __call__(self, network: Network, batch: Any) -> tuple[float, int]:
        step, luck, taken = batch
        pull = network.flat - network.flat.dtype.type(3 + 0.1 * luck + 0.1 * np.sin(taken))
        network.gradient += pull * network.flat.dtype.type(network.weight)
        if step in self.poison:
            network.gradient[3] = np.nan
        loss = float(np.square(pull).mean())
        if self.shove is not None and step >= self.shove:
            loss += step - self.shove
        return loss, 10

    def state(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def restore(self, state: dict[str, Any]) -> None:
        self.taken = state["taken"]
