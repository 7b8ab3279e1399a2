"""A model with the shape of BERT-base, on a batch of eight texts."""

from collections.abc import Iterable, Iterator

import numpy as np

import qkv
from benchmarks.common import Row, Way, faster, timed
from benchmarks.models import in_float64, in_transformers, largest, random_model
from benchmarks.parts import parts
from benchmarks.peers import if_compiled, torch

CONFIG = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
}


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for texts of 128 and of 512 tokens."""
    config = CONFIG | {"num_hidden_layers": max(1, 12 // shrink)}
    if shrink > 8:
        config |= {"hidden_size": 96, "intermediate_size": 384, "vocab_size": 1000}
    model = random_model(config)
    exact, theirs = in_float64(model, "last_hidden_state"), in_transformers(model)
    for length in (128, 512):
        ids = np.random.default_rng(0).integers(0, config["vocab_size"], (8, length // shrink))
        error = largest(exact(ids[:1]), slice(0, 1))
        work = operations(model, [ids.shape[1]] * len(ids))
        compiled = theirs and if_compiled(forward(torch().compile(theirs, dynamic=False), ids))
        ways = {
            "qkv": Way(lambda ids=ids: model(ids).last_hidden_state, error, operations=work),
            "transformers": theirs and Way(forward(theirs, ids), error, operations=work),
            "transformers, compiled": timed(compiled, error, operations=work),
        }
        yield Row(
            f"8 texts of {ids.shape[1]} tokens",
            ways,
            (faster("transformers|transformers, compiled", 1.5, 1.9),),
            parts=lambda ids=ids: parts(lambda: model(ids)),
            rounds=5,
        )


def operations(model: qkv.Model, lengths: Iterable[int]) -> float:
    """Count the operations of the projections and of attention only, for texts of these lengths."""
    weights = sum(
        array.size
        for name, array in model.parameters.items()
        if name.startswith("blocks.") and name.endswith("_proj.weight")
    )
    # one product of queries and keys, and one of weights and values
    looks = 2 * model.num_layers * model.dim
    return float(sum(2 * length * (weights + looks * length) for length in lengths))


def forward(model, ids: np.ndarray):
    """Run the model, and return its last hidden states as an array."""
    given = torch().from_numpy(ids)
    return lambda: model(given).last_hidden_state.numpy()
