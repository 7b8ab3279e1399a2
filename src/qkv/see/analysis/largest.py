"""Where the largest numbers stand."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array


def strongest(score: Array, count: int) -> list[int]:
    """The places of the `count` largest numbers, in their order of place; ties to the first.

    >>> strongest(np.array([0.1, 0.5, 0.3, 0.5]), 2)
    [1, 3]
    """
    return sorted(np.argsort(-np.nan_to_num(score), kind="stable")[:count].tolist())


def strongest_block(score: Array, most_rows: int, most_columns: int) -> tuple[list[int], list[int]]:
    """The rows and columns in which the largest numbers stand, in their order of place.

    >>> strongest_block(np.array([[1, 9, 0], [0, 0, 2], [8, 0, 0]]), 2, 2)
    ([0, 2], [0, 1])
    """
    n, m = score.shape
    rows = set(range(n)) if n <= most_rows else set()
    columns = set(range(m)) if m <= most_columns else set()
    for place in np.argsort(-np.nan_to_num(score), axis=None, kind="stable").tolist():
        if len(rows) >= min(n, most_rows) and len(columns) >= min(m, most_columns):
            break
        i, j = divmod(place, m)
        fits = (i in rows or len(rows) < most_rows), (j in columns or len(columns) < most_columns)
        if all(fits):
            rows.add(i)
            columns.add(j)
    return sorted(rows), sorted(columns)
