"""The texts in which each of many things is largest, of those that came so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.circuits.reading import Read
from qkv.models.model import Model
from qkv.models.run.inputs import named


class Best:
    """For each unit (a neuron, a feature, a measure of a head) the texts with the largest values.

    A text counts once for each unit, and only with a value above 0. Of equal values the earlier
    text comes first.

    Args:
        units: how many there are.
        count: how many texts are kept for each.

    Attributes:
        values: (units, count) float64, the largest first, 0 where there are fewer.
        numbers: (units, count), which text it is, -1 where there are fewer.
        places: (units, count), where in the text.
        rows: (units, count), what else is kept of each.
        texts: the texts that are kept, by their numbers.
    """

    def __init__(self, units: int, count: int) -> None:
        shape = (units, count)
        self.values, self.numbers = np.zeros(shape), np.full(shape, -1)
        self.places, self.rows = np.zeros(shape, np.int64), np.full(shape, None, object)
        self.texts: dict[int, Read] = {}

    def among(self, values: Array, numbers: Array, units: slice) -> tuple[Array, Array]:
        """Which values (B, n) of texts with these numbers (B,) are among the largest so far.

        Returns:
            The rows and columns of `values` where they are; a column counts from 0 in `units`.
        """
        least, latest = self.values[units, -1], self.numbers[units, -1]
        found = (values > least) | ((values == least) & (numbers[:, None] < latest))
        count = self.values.shape[1]
        if len(values) > count:  # more than are kept
            order = np.argsort(numbers)
            rest = order[np.argsort(-values[order], axis=0, kind="stable")[count:]]
            np.put_along_axis(found, rest, False, 0)
        return np.nonzero(found)  # type: ignore[return-value]  # of two axes

    def add(
        self, units: Array, values: Array, numbers: Array, places: Array, rows: Sequence[Any]
    ) -> None:
        """Take one more value for some units, (n,) each; a unit may be there several times."""
        touched = np.unique(units)
        there = self.numbers[touched] >= 0  # (touched, count)
        whole = np.empty(len(rows), object)
        whole[:] = rows
        owner = np.concatenate([np.repeat(touched, there.sum(1)), units])
        old = (self.values, self.numbers, self.places, self.rows)
        merged = [
            np.concatenate([array[touched][there], new])
            for array, new in zip(old, (values, numbers, places, whole), strict=True)
        ]
        order = np.lexsort((merged[2], merged[1], -merged[0], owner))
        pairs = owner[order] * (1 + merged[1].max()) + merged[1][order]
        order = order[np.sort(np.unique(pairs, return_index=True)[1])]  # each text once
        owner = owner[order]
        rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
        kept = rank < self.values.shape[1]
        for array, new, empty in zip(old, merged, (0, -1, 0, None), strict=True):
            array[touched] = empty
            array[owner[kept], rank[kept]] = new[order][kept]

    def keep(self, window: Sequence[Read]) -> None:
        """Keep the texts of this window that values are of, and no text that no value is of."""
        used = set(np.unique(self.numbers).tolist())
        known = self.texts | {text.number: text for text in window}
        self.texts = {number: text for number, text in known.items() if number in used}

    def spelled(self, model: Model) -> dict[int, str]:
        """What each token of the texts that are kept is called, by its id."""
        ids = np.unique([one for text in self.texts.values() for one in text.ids.tolist()])
        tokens = named(ids, np.ones(len(ids), bool), model.tokenizer).tokens
        return dict(zip(ids.tolist(), tokens, strict=True))
