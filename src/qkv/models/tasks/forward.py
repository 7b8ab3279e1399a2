"""Token ids and their mask through a model: checked, run without padding, and laid out again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array
from qkv.models.network.embedding import Embedding
from qkv.models.network.transformer import Transformer
from qkv.models.tasks.inputs import check_ids


@dataclass(frozen=True)
class ModelOutput:
    """What calling a model gives.

    Attributes:
        last_hidden_state: (B, T, D), 0 where the attention mask hides.
        logits: where the model has a head: (B, T, V) over words, 0 where the mask hides, or
            (B, classes) for a classifier.
        encoder_last_hidden_state: (B, S, D) where there is an encoder beside the decoder, to
            which the other two belong.
    """

    last_hidden_state: Array
    logits: Array | None = None
    encoder_last_hidden_state: Array | None = None


def checked_ids(
    embedding: Embedding,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None,
    names: tuple[str, str] = ("input_ids", "attention_mask"),
) -> tuple[Array, Array]:
    """Ids (B, T) and which of them are tokens, or an error that calls them by `names`."""
    name = names[0]
    ids = as_array(input_ids, call="model", name=name)
    if ids.ndim != 2:
        raise ValueError(f"model: {name} have shape {ids.shape}: give (B, T)")
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"model: {name} are {ids.dtype}: give integers")
    mask = _checked_mask(attention_mask, ids.shape, names)
    room = embedding.room
    if room is not None and ids.shape[1] > room:
        raise ValueError(
            f"model: {name} have {ids.shape[1]} columns and the model {room} positions: cut them"
        )
    check_ids(ids[mask], len(embedding.table), "model")
    return ids, mask


def _checked_mask(
    given: Any, shape: tuple[int, ...], names: tuple[str, str] = ("input_ids", "attention_mask")
) -> Array:
    if given is None:
        return np.ones(shape, bool)
    mask = as_array(given, call="model", name=names[1])
    if mask.shape != shape:
        raise ValueError(
            f"model: {names[1]} has shape {mask.shape} and {names[0]} {shape}: "
            "they must be the same"
        )
    if mask.dtype.kind not in "biu" and mask.size:
        raise TypeError(
            f"model: {names[1]} is {mask.dtype}: write True or 1 where there is a token, "
            "False or 0 where there is padding"
        )
    if not np.isin(mask, (0, 1)).all():
        raise ValueError(f"model: {names[1]} holds other numbers than 0 and 1")
    return mask.astype(bool)


def run_masked(body: Transformer, ids: Array, mask: Array) -> tuple[Array, Array]:
    """The vectors (total, D) of the tokens that are seen, and where each text begins.

    What is hidden between two tokens keeps them apart, but for ALiBi, which counts what is
    seen.
    """
    if not mask.any():
        return np.zeros((0, body.dim), body.dtype), np.zeros(len(ids) + 1, np.int64)
    text = mask
    if not any("alibi_slopes" in options for options in body.options):
        text = outer(mask)
    lengths = text.sum(1)
    holes = None
    if (text != mask).any():
        seen = np.zeros((len(ids), lengths.max()), bool)
        seen[np.arange(lengths.max()) < lengths[:, None]] = mask[text]
        holes = dict.fromkeys(range(len(body.layers)), seen[:, None, None])  # (B, 1, 1, T)
    rows = body(
        np.where(mask, ids, 0)[text].astype(np.int64),
        body.embedding.places(ids, text),
        np.concatenate([[0], np.cumsum(lengths)]),
        masks=holes,
    )
    return rows[mask[text]], np.concatenate([[0], np.cumsum(mask.sum(1))])


def unpacked(rows: Array, mask: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """Rows (total, n) where the mask (B, T) shows a token, and 0 elsewhere: (B, T, n)."""
    out = np.zeros((*mask.shape, rows.shape[-1]), dtype or rows.dtype)
    out[mask] = rows
    return out


def outer(mask: Array) -> Array:
    """A mask (B, T) with no holes: from the first visible token of each row to the last."""
    text: Array = np.logical_or.accumulate(mask, axis=1)
    text &= np.logical_or.accumulate(mask[:, ::-1], axis=1)[:, ::-1]
    return text
