"""Short texts: one sentence, and a batch of sentences."""

from collections.abc import Iterator

from benchmarks.common import Row, faster
from benchmarks.prefill import ORT, row


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for one text of 128 tokens, and for 32 texts of 32 tokens."""
    for shape in ((1, 12, 128 // shrink, 64), (32 // shrink, 12, 32, 64)):
        yield row(shape, (faster("torch", 1.5), faster(ORT, 1.0)), plain=True)
