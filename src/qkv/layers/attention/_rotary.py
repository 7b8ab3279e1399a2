"""Rotary positions: the rotation of the queries and keys of an attention layer."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from qkv._argument_errors import type_error
from qkv.arrays import Array, compute_type
from qkv.embed.rotary import checked_rotary, rotary_speeds, rotate_pairs, rotation_at


class Scaling(Protocol):
    """A method that stretches rotary positions for longer texts."""

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Return the `speeds` (dims / 2,) of `qkv.apply_rotary`, and a scale for queries and keys.

        `length` is the number of tokens in the text; some methods derive the speeds from it.
        """


@dataclass(frozen=True)
class Rotary:
    """The rotation of queries and keys by their positions; see `qkv.apply_rotary`."""

    base: float = 10000.0
    dims: int | None = None
    interleaved: bool = False
    scaling: Scaling | None = None
    # The arguments and the result of the last call of `rotation`. If the next call has equal
    # arguments, `rotation` returns this stored result. Usually, consecutive layers have equal
    # arguments, because they rotate by the same positions.
    _last: list[tuple[Any, tuple[Array, Array], tuple[Array, Array]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def rotate(self, x: Array, positions: Array, length: int | Array) -> Array:
        """Rotate queries or keys `(..., L, d)` by their positions in a text of `length` tokens.

        If texts differ in length, `length` is an array: for each position, the length of its text.
        """
        cos, sin = self.rotation(x, positions, length)
        return rotate_pairs(x, cos, sin, interleaved=self.interleaved)

    def rotate_back(self, grad: Array, positions: Array, length: int | Array) -> Array:
        """Compute the gradient for `x` from `grad`, the gradient for rotated `x`.

        The function rotates `grad` by the opposite angles.
        """
        cos, sin = self.rotation(grad, positions, length)
        return rotate_pairs(grad, cos, -sin, interleaved=self.interleaved)

    def rotation(self, x: Array, positions: Array, length: int | Array) -> tuple[Array, Array]:
        """Return the cosines and sines with which `rotate_pairs` rotates `x` or its gradient."""
        wanted = x.shape[-1], compute_type(x.dtype)
        about = positions, np.asarray(0 if self.scaling is None else length)
        for last, others, result in self._last:
            if last == wanted and all(map(np.array_equal, others, about)):
                return result
        (base, dims), scale = checked_rotary(self.base, self.dims, x.shape[-1]), 1.0
        if self.scaling is None:
            speeds = rotary_speeds(base, dims)
        else:
            lengths, index = np.unique(about[1], return_inverse=True)
            made = [self.scaling.speeds(base, dims, int(length)) for length in lengths]
            speeds = np.reshape([speed for speed, _ in made], (-1, dims // 2))
            # The new shape of `speeds` is (dims / 2,), or (..., dims / 2) if `length` is an array.
            speeds = speeds[index.reshape(about[1].shape)]
            scale = made[0][1] if made else scale  # the scale does not depend on the length
        result = rotation_at(x, positions, speeds, self.interleaved, scale)
        self._last[:] = [(wanted, about, result)]
        return result


def as_rotary(rotary: Any) -> Rotary | None:
    """Return the `rotary` argument of a layer as a `Rotary`."""
    if rotary is None or isinstance(rotary, Rotary):
        return rotary
    try:
        return Rotary(**rotary)
    except TypeError:
        raise type_error(
            f"rotary is {rotary!r}; pass Rotary(base=, dims=, interleaved=) "
            "or a dict of these fields"
        ) from None
