"""In one forward pass, compute the next tokens of texts that are generated independently."""

from dataclasses import dataclass

import numpy as np

from qkv.arrays import Array
from qkv.layers.stepping import NewTokens
from qkv.models.network.transformer import Transformer

MAX_TEXTS = 64  # The maximum number of texts in a forward pass, unless a batch has more texts.


@dataclass(eq=False)
class Waiting:
    """A batch that is waiting for its logits (B, V), or that already has its logits or an error."""

    network: Transformer
    tokens: NewTokens
    logits: Array | None = None
    error: BaseException | None = None


class Together:
    """Joins the steps of several calls to `steps`, so that they share one pass over the weights.

    Each call adds its new tokens and yields. When a call continues, it requests its logits. The
    first call to do so computes the logits of all waiting batches. So a call may begin or end
    between any two tokens. All calls must run on the same thread.
    """

    def __init__(self) -> None:
        self._waiting: dict[Waiting, None] = {}

    def add(self, network: Transformer, tokens: NewTokens) -> Waiting:
        """Add new tokens, whose caches must not change until `logits` or `drop` is called."""
        batch = Waiting(network, tokens)
        self._waiting[batch] = None
        return batch

    def drop(self, batch: Waiting) -> None:
        """Remove a batch whose logits are not needed."""
        self._waiting.pop(batch, None)

    def logits(self, batch: Waiting) -> Array:
        """Return the logits (B, V) of a batch; compute them if this has not yet been done."""
        if batch in self._waiting:
            self._compute(batch)
        if batch.error is not None:
            raise batch.error
        assert batch.logits is not None
        return batch.logits

    def _compute(self, first: Waiting) -> None:
        """Compute the logits of a batch and of other batches that wait, in their order.

        After an error, caches may hold only a part of the new tokens, so all these batches fail.
        """
        batches, rows = [first], len(first.tokens.ids)
        for other in self._waiting:
            count = len(other.tokens.ids)
            if other is not first and other.network is first.network and rows + count <= MAX_TEXTS:
                batches.append(other)
                rows += count
        for batch in batches:
            self.drop(batch)
        try:
            x = first.network.step_together([batch.tokens for batch in batches])
            logits = first.network.logits(x)
        except BaseException as error:
            for batch in batches:
                batch.error = error
            return
        stops = np.cumsum([len(batch.tokens.ids) for batch in batches])
        for batch, part in zip(batches, np.split(logits, stops[:-1]), strict=True):
            batch.logits = part.copy() if len(batches) > 1 else part  # frees the other logits
