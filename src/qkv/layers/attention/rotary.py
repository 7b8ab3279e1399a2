"""Rotary positions, as an attention layer has them: how its queries and keys are rotated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.embed.rotary import rotate_pairs, rotation_at


class Scaling(Protocol):
    """How a model's rotary positions were stretched for longer texts."""

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """The angles of `qkv.apply_rotary` (dims / 2,), and what queries and keys are scaled by.

        `length` is that of the text: some stretch no more than it needs.
        """


@dataclass(frozen=True)
class Rotary:
    """How queries and keys are rotated by their positions; see `qkv.apply_rotary`."""

    base: float = 10000.0
    dims: int | None = None
    interleaved: bool = False
    scaling: Scaling | None = None
    # what was asked for last, which the next layers ask for again: for what, and for which places
    _last: list[tuple[Any, tuple[Array, Array], tuple[Array, Array]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def rotate(self, x: Array, positions: Array, length: int | Array) -> Array:
        """Queries or keys `(..., L, d)` at these positions of a text of `length` tokens.

        Positions of several texts may have a length each, of their shape.
        """
        cos, sin = self.rotation(x, positions, length)
        return rotate_pairs(x, cos, sin, interleaved=self.interleaved)

    def rotate_back(self, grad: Array, positions: Array, length: int | Array) -> Array:
        """From the gradient of what `rotate` gave to that of `x`: rotated the other way."""
        cos, sin = self.rotation(grad, positions, length)
        return rotate_pairs(grad, cos, -sin, interleaved=self.interleaved)

    def rotation(self, x: Array, positions: Array, length: int | Array) -> tuple[Array, Array]:
        """What `rotate_pairs` multiplies arrays of the shape and type of `x` by."""
        wanted = x.shape[-1], compute_type(x.dtype)
        about = positions, np.asarray(0 if self.scaling is None else length)
        for last, others, found in self._last:
            if last == wanted and all(map(np.array_equal, others, about)):
                return found
        speeds, scale = None, 1.0
        if self.scaling is not None:
            lengths, each = np.unique(about[1], return_inverse=True)
            dims = self.dims or x.shape[-1]
            made = [self.scaling.speeds(self.base, dims, int(one)) for one in lengths]
            speeds = np.reshape([own for own, _ in made], (-1, dims // 2))
            speeds = speeds[each.reshape(about[1].shape)]  # (dims / 2,), or one for each position
            scale = made[0][1] if made else scale  # the same for all lengths
        found = rotation_at(
            x,
            positions,
            base=self.base,
            interleaved=self.interleaved,
            dims=self.dims,
            speeds=speeds,
            scale=scale,
        )
        self._last[:] = [(wanted, about, found)]
        return found


def as_rotary(rotary: Any, *, call: str) -> Rotary | None:
    """What a layer was given as its rotary positions, as a `Rotary`."""
    if rotary is None or isinstance(rotary, Rotary):
        return rotary
    try:
        return Rotary(**rotary)
    except TypeError:
        raise TypeError(
            f"{call}: rotary is {rotary!r}: give Rotary(base=, dims=, interleaved=) "
            "or a dict of those"
        ) from None
