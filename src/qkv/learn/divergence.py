"""Whether a run goes well: what to do about NaN, and about a loss that rises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOST_SKIPPED = 10  # steps in a row
_MEMORY = 0.95  # of the running mean of a loss
_SOME = 20  # steps before which a mean says little
_UNEASY, _TOO_MUCH = 1.0, 3.0  # what a loss may lie above its lowest, in nats


class Diverged(RuntimeError):
    """A run that has left the good path; its last good checkpoint is whole."""


class Watch:
    """Follows the losses of a run.

    Attributes:
        skipped: the steps that were skipped so far.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self._in_a_row = 0
        self._seen: dict[str, int] = {}
        self._mean: dict[str, float] = {}
        self._lowest: dict[str, float] = {}

    @property
    def well(self) -> bool:
        """Whether the last step was made, and no loss lies far above its lowest."""
        rise = max((self._mean[name] - self._lowest[name] for name in self._mean), default=0.0)
        return self._in_a_row == 0 and rise <= _UNEASY

    def skip(self) -> None:
        """A step was skipped.

        Raises:
            Diverged: it is not the first in a row by far.
        """
        self.skipped += 1
        self._in_a_row += 1
        if self._in_a_row >= MOST_SKIPPED:
            raise Diverged(f"the gradient was not finite in {MOST_SKIPPED} steps in a row")

    def note(self, losses: Mapping[str, float]) -> None:
        """A step was made, with these losses.

        Raises:
            Diverged: one is far above what it was.
        """
        self._in_a_row = 0
        for name, loss in losses.items():
            self._seen[name] = seen = self._seen.get(name, 0) + 1
            mean = self._mean.get(name, loss)
            mean += (loss - mean) * (1 - _MEMORY) / (1 - _MEMORY**seen)
            self._mean[name] = mean
            self._lowest[name] = lowest = min(self._lowest.get(name, mean), mean)
            if seen >= _SOME and mean - lowest > _TOO_MUCH:
                raise Diverged(f"the loss of {name} has risen from {lowest:.2f} to {mean:.2f}")

    def loss(self) -> float:
        """The sum of the running means; NaN before the first step."""
        return sum(self._mean.values()) if self._mean else math.nan

    def state(self) -> dict[str, Any]:
        """What it knows, as JSON can hold it."""
        state = {"seen": self._seen, "mean": self._mean, "lowest": self._lowest}
        return {"skipped": self.skipped, **state}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.skipped = state["skipped"]
        self._seen = dict(state["seen"])
        self._mean, self._lowest = dict(state["mean"]), dict(state["lowest"])
