"""What a sparse autoencoder keeps of a model: variance, features that fire, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.circuits.reading import PLACES
from qkv.circuits.streaming import rows_of
from qkv.models.model import Model
from qkv.ops.loss import cross_entropy


def measures(
    model: Model,
    texts: Any,
    at: str,
    encode: Callable[[Array], Array],
    decode: Callable[[Array], Array],
    splice: Any,
    call: str,
) -> dict[str, float]:
    """What `SAE.evaluate` gives, from the full name of a site and what is done there."""
    ids: list[Array] = []
    count = active = left = squares = 0.0
    total: Any = 0.0
    fired: Any = False
    for batch, found in rows_of(model, texts, [at], call):
        ids += [text.ids for text in batch]
        rows = found[at].reshape(len(found[at]), -1)
        features = encode(rows)
        count += len(rows)
        active += int((features > 0).sum())
        fired = fired | (features > 0).any(0)
        left += np.square(rows - decode(features)).sum(dtype=np.float64)
        squares += np.square(rows).sum(dtype=np.float64)
        total = total + rows.sum(0, dtype=np.float64)
    if not count:
        raise ValueError(f"{call}: texts hold no token: give some")
    variance = squares - float(np.square(total).sum() / count)
    result = {
        "explained_variance": 1 - left / variance if variance else np.nan,
        "l0": active / count,
        "dead": 1 - float(fired.mean()),
    }
    result = {name: float(value) for name, value in result.items()}
    if not model.generates:
        return result
    mean = (total / count).astype(np.float32)

    def silent(x: Array) -> Array:
        return np.broadcast_to(mean.reshape(x.shape[2:]), x.shape)

    whole, spliced, without = (_loss(model, ids, edit) for edit in ({}, {at: splice}, {at: silent}))
    gap = without - whole
    return {
        **result,
        "loss": whole,
        "loss_spliced": spliced,
        "loss_mean": without,
        "loss_recovered": float((without - spliced) / gap) if gap else np.nan,
    }


def _loss(model: Model, ids: Sequence[Array], edit: dict[str, Any]) -> float:
    """The mean loss in nats of each token but the first of its text; NaN where there is none."""
    total = count = 0.0
    batch: list[Any] = []
    for number, text in enumerate(ids, 1):
        batch.append(text)
        if number < len(ids) and sum(map(len, batch)) + len(ids[number]) <= PLACES // 2:
            continue
        logits = model.trace(batch, names=[], logits=True, edit=edit)["logits"]
        for own, rows in zip(batch, logits, strict=True):
            losses, _ = cross_entropy(rows[: len(own) - 1], own[1:])
            total += losses.sum(dtype=np.float64)
            count += len(losses)
        batch = []
    return float(total / count) if count else np.nan
