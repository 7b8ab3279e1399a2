"""Texts, traces and models made by hand, and a function that unpacks the numbers of pages."""

import base64
from typing import Any

import numpy as np

from qkv.models import Model
from qkv.models.families import design_of
from qkv.models.files.names import Storage
from qkv.trace import Trace

BANK = "I sat on the bank of the river."
MONEY = "The bank raised its interest rates."
CAT = "The cat sat on the mat"
TOKENS = ["[CLS]", "the", "bank", "##er", ".", "[SEP]"]


def made_trace(
    tokens: list[str], weights: np.ndarray, special: list[bool] | None = None, **arrays: np.ndarray
) -> Trace:
    """Make a trace of `weights`, (layers, heads, T, T), and of `arrays`, keyed by name."""
    named = {f"blocks.{layer}.attn.hook_pattern": part[None] for layer, part in enumerate(weights)}
    if special is None:
        special = [token.startswith("[") and token != "[UNK]" for token in tokens]
    return Trace(named | arrays, tokens=[tokens], special=[special], model="made")


def vectors_trace(before: np.ndarray, after: np.ndarray, tokens: list[str]) -> Trace:
    """Make a trace of one layer that has only static and contextual vectors `(n, D)`."""
    arrays = {"hook_embed": before[None], "blocks.0.hook_resid_post": after[None]}
    return Trace(arrays, tokens=[tokens])


def small_llama(model_type: str, **others: Any) -> dict[str, Any]:
    """Return the config of a small Llama or of a similar model."""
    return {
        "model_type": model_type,
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 20,
        "max_position_embeddings": 32,
        **others,
    }


def random_of(values: dict[str, Any]) -> Model:
    """Make a model with this config and with random weights, norms and biases."""
    (design, names), rng = design_of(values, "config.json"), np.random.default_rng(0)
    parameters = {
        name: rng.standard_normal(shape).astype(np.float32) * 0.5 + ("norm" in name)
        for name, shape in design.shapes()
    }
    return Model(
        name="random",
        config=values,
        design=design,
        weights=Storage(names, {name: np.float32(array) for name, array in parameters.items()}),
    )


def weights(layers: int = 2, heads: int = 2, **cells: float) -> np.ndarray:
    """Make weights of 0.01 over TOKENS, except the given cells, such as `L0H1_2_3=0.5`."""
    table = np.full((layers, heads, 6, 6), 0.01, dtype=np.float32)
    for place, weight in cells.items():
        where, i, j = place.split("_")
        table[int(where[1]), int(where[3]), int(i), int(j)] = weight
    return table


def unpack(packed: dict) -> np.ndarray:
    """Unpack numbers as a page does."""
    kind = f"<u{packed['bits'] // 8}" if "bits" in packed else "<f4"
    data = np.frombuffer(base64.b64decode(packed["b64"]), kind)
    return data.reshape(packed["shape"]).astype(np.float64)


def changed(trace: Trace, name: str, place: Any, value: float) -> Trace:
    """Copy a trace, and replace one number of the array with this full name."""
    arrays, about = trace.packed()
    arrays[name] = arrays[name].copy()
    arrays[name][place] = value
    return Trace.unpacked(arrays, about)
