"""A small network, and an objective that does not run the layers of a network."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.learn import Network, fresh_model, train_tokenizer
from qkv.models.model import Model

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


def tiny_bert(
    texts: list[str], vocabulary: int, seed: int = 0, says: str | None = None, **sizes: int
) -> Model:
    """Make an untrained BERT of one layer, and train its tokenizer on the texts.

    It predicts the word `says` for every text.
    """
    tokenizer = train_tokenizer(texts, "wordpiece", vocabulary)
    config = BERT | {"num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": len(tokenizer)}
    config |= {"max_position_embeddings": 32, **sizes}
    model = fresh_model(config, tokenizer, seed=seed)
    if says is not None:
        bias = np.zeros(len(tokenizer), np.float32)
        bias[tokenizer.vocabulary[says]] = 1e6
        model.parameters["head.out_proj.bias"] = bias
    return model


class Pull:
    """An objective that pulls every parameter to a target near 3, which varies in each step.

    Args:
        poison: the steps at which the gradient has a NaN.
        shove: the step after which the loss rises: the next step adds 1 to the loss, the step after
            that adds 2, and so on.
        act: what happens before each batch: a function of the step and the random generator.
    """

    def __init__(
        self, name: str = "pull", *, poison: Any = (), shove: int | None = None, act: Any = None
    ) -> None:
        self.name, self.poison, self.shove, self.taken, self.act = name, poison, shove, 0, act

    def batch(self, step: int, rng: np.random.Generator) -> Any:
        if self.act is not None:
            self.act(step, rng)
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
