"""Loops over tables: a failure names the row that failed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def failing(*row: object) -> Iterator[None]:
    """Add the row to the error of the block, as in `for row in table: with failing(*row): ...`."""
    try:
        yield
    except BaseException as error:  # `pytest.raises` fails with an error that is no `Exception`
        error.add_note(f"row: {', '.join(map(repr, row))}")
        raise
