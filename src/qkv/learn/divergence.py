"""Whether a run goes well: what to do about NaN, and about a loss that rises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MOST_SKIPPED = 10  # steps in a row
_MEMORY = 0.95  # of the running mean of a loss
_SOME = 20  # steps before which a mean says little
_UNEASY, _TOO_MUCH = 1.0, 3.0  # what a loss may lie above its lowest, in nats


class Diverged(RuntimeError):
    """A run that has left the good path; its last good checkpoint is whole."""


@dataclass
class Watch:
    """Follows the losses of a run.

    Attributes:
        skipped: the steps that were skipped so far.
        seen: how many losses there were, by their names, as in the next two.
        mean: the running mean.
        lowest: the lowest that it was.
        in_a_row: the last steps, as far as they were all skipped.
    """

    skipped: int
    seen: dict[str, int]
    mean: dict[str, float]
    lowest: dict[str, float]
    in_a_row: int = 0

    @property
    def well(self) -> bool:
        """Whether the last step was made, and no loss lies far above its lowest."""
        rise = max((self.mean[name] - self.lowest[name] for name in self.mean), default=0.0)
        return self.in_a_row == 0 and rise <= _UNEASY

    def skip(self) -> None:
        """A step was skipped.

        Raises:
            Diverged: it is not the first in a row by far.
        """
        self.skipped += 1
        self.in_a_row += 1
        if self.in_a_row >= MOST_SKIPPED:
            raise Diverged(f"the gradient was not finite in {MOST_SKIPPED} steps in a row")

    def note(self, losses: Mapping[str, float]) -> None:
        """A step was made, with these losses.

        Raises:
            Diverged: one is far above what it was.
        """
        self.in_a_row = 0
        for name, loss in losses.items():
            self.seen[name] = seen = self.seen.get(name, 0) + 1
            mean = self.mean.get(name, loss)
            mean += (loss - mean) * (1 - _MEMORY) / (1 - _MEMORY**seen)
            self.mean[name] = mean
            self.lowest[name] = lowest = min(self.lowest.get(name, mean), mean)
            if seen >= _SOME and mean - lowest > _TOO_MUCH:
                raise Diverged(f"the loss of {name} has risen from {lowest:.2f} to {mean:.2f}")

    def loss(self) -> float:
        """The sum of the running means; NaN before the first step."""
        return sum(self.mean.values()) if self.mean else math.nan
