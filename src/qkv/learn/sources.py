"""Where an objective takes its sequences of token ids from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from qkv.arrays import Array


class Source(Protocol):
    """Sequences of token ids without an end, the same again from the same state."""

    def take(self) -> Array:
        """The next sequence, (T,) integers."""

    def state(self) -> dict[str, Any]:
        """Where it is, as JSON can hold it."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""


class Sequences:
    """Sequences that are in memory, in a new order each time all were given.

    Args:
        sequences: token ids, (T,) integers each.
        seed: of the orders.

    >>> source = Sequences([[1, 2], [3, 4, 5]], seed=0)
    >>> sorted(len(source.take()) for _ in range(4))
    [2, 2, 3, 3]
    """

    def __init__(self, sequences: Iterable[Any], *, seed: int = 0) -> None:
        self._sequences = [np.asarray(one, np.int32) for one in sequences]
        if not self._sequences:
            raise ValueError("Sequences: there is none: give at least one")
        self._seed, self._epoch, self._next = seed, 0, 0
        self._order = self._shuffled()

    def _shuffled(self) -> Array:
        """The order of the present round."""
        rng = np.random.default_rng([self._seed, self._epoch])
        return rng.permutation(len(self._sequences))

    def take(self) -> Array:
        """The next sequence."""
        if self._next == len(self._order):
            self._epoch, self._next = self._epoch + 1, 0
            self._order = self._shuffled()
        self._next += 1
        found: Array = self._sequences[self._order[self._next - 1]]
        return found

    def state(self) -> dict[str, Any]:
        """Which order it is in, and where."""
        return {"sequences": len(self._sequences), "epoch": self._epoch, "next": self._next}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            ValueError: it is the state of other sequences.
        """
        if state["sequences"] != len(self._sequences):
            raise ValueError(
                f"Sequences: there are {len(self._sequences)}, and {state['sequences']} when the "
                "checkpoint was written: give the same"
            )
        self._epoch, self._next = state["epoch"], state["next"]
        self._order = self._shuffled()
