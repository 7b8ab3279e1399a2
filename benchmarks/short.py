"""Short texts: one sentence, and a batch of sentences."""

from collections.abc import Iterator

from benchmarks.common import Row, faster, share_of_peak
from benchmarks.prefill import ORT, row


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield rows for one text of 128 tokens, and for batches of texts of 16, 32 and 48 tokens."""
    yield row((1, 12, 128 // shrink, 64), (faster("torch", 1.5), faster(ORT, 1.0)), plain=True)
    for texts, tokens, goals in (
        (64, 16, (faster("torch", 1.25),)),
        (32, 32, (faster("torch", 1.5), faster(ORT, 1.0), share_of_peak(0.5))),
        (16, 48, (faster("torch", 1.25),)),
    ):
        yield row((max(1, texts // shrink), 12, tokens, 64), goals, plain=True)
