"""Models that are only a token table, like sentence-transformers' `StaticEmbedding`."""

from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.models.files import FLOATS, Stored, Tensors
from qkv.models.files.config import Config
from qkv.models.files.names import Family, Names, Storage
from qkv.models.files.read import ModelError
from qkv.models.network.design import Design

_TABLE, _ROWS, _CHOSEN, _FACTORS = "embedding.weight", "embeddings", "mapping", "weights"


def design(config: Config) -> Design:
    """Return the design of a model without layers."""
    return Design(
        vocabulary=config.size("vocab_size", 1),
        dim=config.size("hidden_size", 1),
        hidden=0,
        activation="relu",  # The activation is unused, because the model has no layers.
        eps=1e-5,
        layers=(),
        final_norm=False,
    )


STATIC = Family(model_type="static-embedding", design=design, names={"embed": "embedding"})


def read_static(tensors: Tensors, dtype: Any = None) -> tuple[dict[str, Any], Design, Storage]:
    """Return `(config, design, weights)` of a folder that has no config.json.

    The tensor "embedding.weight" is the table. A model2vec file has three tensors instead:
    "embeddings" (n, D) holds rows, "mapping" (V,) holds each token's row number, and "weights" (V,)
    holds each token's factor.

    Raises:
        ModelError: the table is missing, or the sizes of the three tensors do not match.
    """
    table = _table(tensors)
    wide = np.float64 if table.dtype == np.float64 else np.float32
    table = table.astype(np.dtype(dtype or wide), copy=False)
    config = {
        "model_type": STATIC.model_type,
        "vocab_size": len(table),
        "hidden_size": table.shape[1],
    }
    about = Config(config, tensors.source)
    return config, design(about), Storage(Names.of(STATIC, about), {"embed.weight": table})


def _table(tensors: Tensors) -> Array:
    """Return the table, with one row per token."""
    if _TABLE in tensors:
        return _need(tensors, _TABLE, 2).read()
    if _ROWS not in tensors:
        raise ModelError(
            f"{tensors.source}: the tensors {_TABLE} and {_ROWS} are missing: add one of them"
        )
    table = _need(tensors, _ROWS, 2).read()
    if _CHOSEN in tensors:
        rows = _need(tensors, _CHOSEN, 1, ("I64", "I32")).read()
        if rows.size and not 0 <= rows.min() <= rows.max() < len(table):
            raise ModelError(
                f"{tensors.source}: {_CHOSEN} has row numbers from {rows.min()} to {rows.max()} "
                f"and {_ROWS} has {len(table)} rows; row numbers must be from 0 to {len(table) - 1}"
            )
        table = table[rows]
    if _FACTORS in tensors:
        factors = _need(tensors, _FACTORS, 1).read()
        if len(factors) != len(table):
            raise ModelError(
                f"{tensors.source}: {_FACTORS} has {len(factors)} numbers and the table has "
                f"{len(table)} tokens: the two numbers must be equal"
            )
        wide = np.result_type(np.float32, table.dtype)
        table = (table.astype(wide) * factors[:, None].astype(wide)).astype(table.dtype)
    return table


def _need(tensors: Tensors, name: str, axes: int, kinds: tuple[str, ...] = FLOATS) -> Stored:
    """Return a tensor after checking its number of axes and its type."""
    tensor = tensors[name]
    if len(tensor.shape) != axes or tensor.kind not in kinds or 0 in tensor.shape:
        raise ModelError(
            f"{tensors.source}: {name} is {tensor.kind} {tensor.shape}: it must have {axes} "
            f"{'axes' if axes > 1 else 'axis'}, and the type {' or '.join(kinds)}"
        )
    return tensor
