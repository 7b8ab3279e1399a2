"""How the learning rate goes up at first, and then down."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The learning rate by the share of the run that is over.

    Attributes:
        rate: the highest.
        warmup: the share of the run in which it rises to that.
        fall: "linear" or "cosine", how it then falls; "none" if it does not.
        least: what part of the highest is left at the end.

    >>> schedule = Schedule(1.0, warmup=0.5)
    >>> [schedule(share) for share in (0.25, 0.5, 0.75, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    """

    rate: float
    warmup: float = 0.05
    fall: str = "linear"
    least: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise ValueError(f"Schedule: rate is {self.rate}: it must be a finite number above 0")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"Schedule: warmup is {self.warmup}: it must be from 0 to below 1")
        if not 0 <= self.least <= 1:
            raise ValueError(f"Schedule: least is {self.least}: it must be from 0 to 1")
        if self.fall not in ("linear", "cosine", "none"):
            raise ValueError(f"Schedule: fall is {self.fall!r}: choose linear, cosine or none")

    def __call__(self, share: float) -> float:
        """The rate when this share of the run, 0 to 1, is over."""
        share = min(max(share, 0.0), 1.0)
        if share < self.warmup:
            return self.rate * share / self.warmup
        left = (1 - share) / (1 - self.warmup)
        if self.fall == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
        elif self.fall == "none":
            left = 1.0
        return self.rate * (self.least + (1 - self.least) * left)
