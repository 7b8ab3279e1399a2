"""Tests of the positions of tokens, counted in each of the three ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qkv.models.network._embedding import Embedding

PAD = 1
IDS = np.array([[5, PAD, 6, 7, 8], [PAD, PAD, 6, PAD, 9]])
SHOWN = np.array([[1, 1, 0, 1, 1], [0, 0, 1, 0, 1]], bool)
SPANS = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], bool)  # computed positions, without holes


@pytest.mark.parametrize(
    ("options", "shown", "expected"),
    [
        ({}, SHOWN, [0, 1, 2, 3, 4, 2, 3, 4]),  # columns, whatever is masked
        ({"counted": True}, SHOWN, [0, 1, -1, 2, 3, 0, -1, 1]),  # -1 is the row before the first
        ({"counted": True}, None, [0, 1, 2, 3, 4, 0, 1, 2]),
        ({"padding": PAD}, SHOWN, [0, -1, 1, 2, 3, 0, -1, 1]),  # by the ids, not by the mask
    ],
)
def test_position_of_each_computed_token(
    options: dict[str, Any], shown: Any, expected: list[int]
) -> None:
    table = np.zeros((10, 2), np.float32)
    embedding = Embedding(table, positions=np.zeros((8, 2), np.float32), **options)
    assert embedding.token_positions(IDS, SPANS, shown).tolist() == expected
