"""The first guesses of a model at masked positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import qkv
from qkv.arrays import Array

_AT_ONCE = 64  # the number of texts in a batch


def named(
    model: qkv.Model, texts: Sequence[Array], positions: Sequence[Sequence[int]]
) -> list[Array] | None:
    """Return the first guess at each masked position of each text, from unadjusted logits.

    Args:
        model: an encoder that predicts masked words.
        texts: the token ids (T,) of each text, including special tokens.
        positions: the masked positions of each text.

    Returns:
        For each text, the id with the largest logit at each position. None if the model has no
        mask token or no language-model head.
    """
    assert model.tokenizer is not None
    if model.tokenizer.mask is None or model(texts[0][None]).logits is None:
        return None
    mask = model.tokenizer.vocabulary[model.tokenizer.mask]
    found: list[Array] = [np.zeros(0, np.int64)] * len(texts)
    order = sorted(range(len(texts)), key=lambda one: len(texts[one]))
    for begin in range(0, len(order), _AT_ONCE):
        part = order[begin : begin + _AT_ONCE]
        ids = np.zeros((len(part), len(texts[part[-1]])), np.int64)
        for row, one in zip(ids, part, strict=True):
            row[: len(texts[one])] = texts[one]
            row[list(positions[one])] = mask
        seen = np.arange(ids.shape[1]) < np.array([[len(texts[one])] for one in part])
        logits = model(ids, seen).logits
        assert logits is not None
        for row, one in zip(logits, part, strict=True):
            found[one] = row[list(positions[one])].argmax(-1)
    return found
