"""Call a model with token ids, as in transformers: `model(input_ids)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array
from qkv.edits import Ablate, Edit, Edits, Hide, edits_of
from qkv.layers.packed import starts_of
from qkv.models.core import Core
from qkv.models.network.transformer import Transformer, unpacked
from qkv.models.run.edit import EditedRun
from qkv.models.run.inputs import checked_ids, checked_positions, named
from qkv.models.run.layout import columns


@dataclass(frozen=True)
class ModelOutput:
    """The result of calling a model.

    Attributes:
        last_hidden_state: (B, T, D), 0 at padding.
        logits: if the model has a head: (B, T, V) over words, 0 at padding; (B, classes) for a
            classifier; (B, T) for ELECTRA's discriminator, as in transformers.
        embeds: (B, E), if the head gives a vector for each text or image instead of logits.
        encoder_last_hidden_state: (B, S, D), for an encoder with a decoder. `last_hidden_state` and
            `logits` are then the decoder's.
    """

    last_hidden_state: Array
    logits: Array | None = None
    embeds: Array | None = None
    encoder_last_hidden_state: Array | None = None


def output_of(
    network: Transformer, rows: Array, mask: Array, ids: Array | None = None, **others: Array
) -> ModelOutput:
    """Return the output for a network's last vectors (total, D), at the tokens of a mask (B, T).

    `ids` (B, T) are the token ids, if the network reads any.
    """
    hidden = unpacked(rows, mask, network.dtype)
    head = network.head
    if head is None:
        return ModelOutput(hidden, **others)
    logits = head(rows, starts_of(mask.sum(1)), None if ids is None else ids[mask])
    if head.steps.embeds:
        return ModelOutput(hidden, embeds=logits, **others)
    if head.steps.flat:
        logits = logits[:, 0]
    return ModelOutput(hidden, logits if head.pools else unpacked(logits, mask), **others)


def call(
    model: Core,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None = None,
    *,
    position_ids: ArrayLike | None = None,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
) -> ModelOutput:
    """Run token ids.

    Args:
        input_ids: (B, T) integers, or (T,) for one text, which means (1, T).
        attention_mask: of the same shape: True or 1 at tokens, False or 0 at padding, on either
            side. Padding is never read. By default, there is no padding.
        position_ids: (B, T) integers, or (1, T) for all texts: the position of each token, for
            learned and rotary positions. Positions of padding are not read. As in transformers, the
            positions of RoBERTa and MPNet begin at the padding token's id + 1. By default, a
            token's position is its column; in OPT, the number of tokens before it; in RoBERTa and
            MPNet, the number of earlier tokens other than the padding token. If positions are
            learned and count columns (GPT-2, BERT), padding on the left changes the result; give
            `np.maximum(np.cumsum(attention_mask, 1) - 1, 0)` to avoid this. Masks, windows, ALiBi
            and relative biases always follow the order of the columns.
        ablate: heads to ablate, as in `trace`.
        hide: words and positions to mask, as in `trace`; positions are columns of `input_ids`.
        edit: activations to change, as in `trace`. Replacement arrays, the arrays that functions
            get, and `at.positions` have a column for each column of `input_ids`. A function gets
            all texts.

    Raises:
        TypeError: ids are not integers, or a mask has other values than bools, 0 and 1; as in
            `trace`.
        ValueError: shapes differ, an id has no row in the token table, or the model does not have a
            position; also as in `trace`.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> model([[0, 1, 2]], [[1, 1, 0]]).last_hidden_state.shape
    (1, 3, 8)
    >>> left = model([[0, 1, 2]], [[0, 1, 1]], position_ids=[[0, 0, 1]]).last_hidden_state
    >>> bool(np.allclose(left[:, 1:], model([[1, 2]]).last_hidden_state))
    True
    """
    network, counts = model.network, position_ids is None
    ids, mask = checked_ids(network.embedding, input_ids, attention_mask, counts=counts)
    positions = checked_positions(network, position_ids, mask, model.name)
    edited, ids = fit_ids(model, edits_of(edit, ablate, hide, call="model"), ids, mask)
    options = options_of_columns(model, edited, ids, mask, positions)
    rows, _ = network.masked(ids, mask, **options)
    return output_of(network, rows, mask, ids)


def fit_ids(
    model: Core, edits: Edits, ids: Array, mask: Array, **others: Any
) -> tuple[EditedRun, Array]:
    """Check edits against ids (B, T); return `(edits, ids)` after swaps of tokens."""
    if not edits:
        return EditedRun(), ids
    texts = [named(*row, model.tokenizer) for row in zip(ids, mask, strict=True)]
    texts, edited = model._fit(edits, texts, **others)
    return edited, np.array([text.ids for text in texts]).reshape(ids.shape)


def options_of_columns(
    model: Core, edited: EditedRun, ids: Array, mask: Array, positions: Array | None = None
) -> dict[str, Any]:
    """Return the options of `Transformer.masked` for edits of ids (B, T) at these positions."""
    plain: dict[str, Any] = {"positions": positions}
    if not edited.asked or not mask.any():
        return plain
    network = model.network
    spans = network.spans(mask)
    layout = columns(mask, spans)
    edited = edited.averaged(
        int(mask.sum()), lambda make: network.masked(ids, mask, record=make(layout), **plain)
    )
    masks, record = edited.masks(layout, int(spans.sum(1).max())), edited.recorder(layout)
    if record is not None and edited.is_pair:
        record = record.under("encoder.")
    return {"record": record, "masks": masks, **plain}
