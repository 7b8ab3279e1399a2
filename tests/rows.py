"""Loops over tables: a failure names the row that failed, and QKV_SAMPLE leaves rows out."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

Row = TypeVar("Row")
SAMPLE = int(os.environ.get("QKV_SAMPLE") or 1)  # with 4, about a fourth of the cases run


@contextmanager
def failing(*row: object) -> Iterator[None]:
    """Add the row to the error of the block, as in `for row in table: with failing(*row): ...`."""
    try:
        yield
    except BaseException as error:  # `pytest.raises` fails with an error that is no `Exception`
        error.add_note(f"row: {', '.join(map(repr, row))}")
        raise


def sample(table: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows that QKV_SAMPLE keeps: with QKV_SAMPLE=4, the first and each fourth after it.

    Use it for a table of like rows that takes more than about ten seconds.
    """
    return islice(table, 0, None, SAMPLE)
