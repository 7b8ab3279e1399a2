"""Tests of packing texts end to end, and of unpacking them to one row per text."""

import numpy as np
import pytest

from qkv.layers.base import starts_of
from qkv.trace.recorder import pad_rows, padded_heads, unpad_rows

LENGTHS = {
    "one text": [3],
    "texts of one length": [2, 2, 2],
    "texts of several": [1, 3, 2],
    "one empty text": [2, 0],
    "only empty texts": [0, 0],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_rows_are_padded_by_text_and_unpadded_again(lengths: list[int]) -> None:
    starts = starts_of(lengths)
    rows = np.arange(2.0 * sum(lengths)).reshape(-1, 2) + 1
    wanted = np.zeros((len(lengths), max(lengths), 2))
    for text, (begin, length) in enumerate(zip(starts[:-1], lengths, strict=True)):
        for position in range(length):
            wanted[text, position] = rows[begin + position]
    found = pad_rows(rows, starts)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(unpad_rows(found, starts), rows)
    (heads,) = padded_heads([rows.reshape(-1, 2, 1).swapaxes(0, 1)], starts)  # (B, H, T, d)
    np.testing.assert_array_equal(heads[..., 0], wanted.swapaxes(1, 2))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_writing_into_padded_rows_leaves_the_packed_rows_unchanged(lengths: list[int]) -> None:
    rows = np.ones((sum(lengths), 2))
    pad_rows(rows, starts_of(lengths))[:] = 5
    np.testing.assert_array_equal(rows, 1)
