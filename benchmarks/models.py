"""Models of a given shape, with the same random weights for both libraries."""

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import qkv
from benchmarks.peers import needs, torch
from qkv.models.families import design_of
from qkv.models.files.names import Storage


def random_model(values: dict[str, Any], *, seed: int = 0) -> qkv.Model:
    """Make a random model from the values of a config.json, with norms of weight 1 and bias 0."""
    design, names = design_of(values, "benchmark")
    rng = np.random.default_rng(seed)
    parameters = {}
    for name, shape in design.shapes():
        is_norm = "norm" in name
        spread = 0.0 if is_norm or name.endswith(".bias") else shape[0] ** -0.5
        if name.startswith("embed."):
            spread = 1.0 if "bert" in values["model_type"] else 0.1
        numbers = rng.standard_normal(shape, np.float32) * np.float32(spread)
        parameters[name] = numbers + np.float32(is_norm and name.endswith(".weight"))
    return qkv.Model(
        name=values["model_type"],
        config=values,
        design=design,
        weights=Storage(names, parameters),
    )


@needs("transformers")
def in_transformers(model: qkv.Model, kind: str = "AutoModel", dtype: str = "float32") -> Any:
    """Load the same model in transformers, with fused attention."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        loaded = getattr(transformers, kind).from_pretrained(
            folder, attn_implementation="sdpa", dtype=getattr(torch(), dtype)
        )
    return loaded.eval()


def in_float64(model: qkv.Model, result: str, kind: str = "AutoModel") -> Callable[[Any], Any]:
    """Return transformers' result of the model for ids, in float64; without transformers, qkv's."""
    theirs = in_transformers(model, kind, "float64")
    if theirs is None:
        own = in_type(model, "float64")
        return lambda ids: getattr(own(ids), result)
    return lambda ids: getattr(theirs(torch().from_numpy(ids)), result).numpy()


def in_type(model: qkv.Model, dtype: str) -> qkv.Model:
    """Return the same model in another float type."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        return qkv.load(folder, dtype=dtype)


def largest(truth: np.ndarray, shown: Any = ...) -> Callable[[Any], float]:
    """Return a function that computes the largest error, relative to the largest true value."""
    most = float(np.abs(truth).max())
    return lambda found: float(np.abs(np.asarray(found, np.float64)[shown] - truth).max()) / most
