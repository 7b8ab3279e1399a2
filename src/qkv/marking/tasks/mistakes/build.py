"""Build mistakes that look alike in several tasks: lost ends of loops, and missing rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.tasks.texts import Texts


def without(a: Array, at: int, axis: int, number: float = 0) -> Array:
    """Replace the first (0) or the last (-1) along an axis by a number."""
    a = np.array(a)
    np.moveaxis(a, axis, 0)[at] = number
    return a


def cut(a: Array, at: int, axis: int) -> Array:
    """Remove the first (0) or the last (-1) along an axis."""
    return np.delete(a, at, axis)


def pick(known: Iterable[Mistake], *keys: str) -> list[Mistake]:
    """Return the mistakes with these keys."""
    return [mistake for mistake in known if mistake.key in keys]


def both_ends(texts: Texts, name: str, *steps: Callable[[int], Steps]) -> tuple[Mistake, ...]:
    """Return the mistakes of a loop that ends one too early, and of a loop that begins too late.

    Args:
        texts: have the texts of both, with {end} for "last" or "first".
        name: the name of their table.
        steps: the variants, each from the index that is left out (-1 or 0).
    """
    return tuple(
        texts.mistake(name, *(step(at) for step in steps), end=end)
        for at, end in ((-1, "last"), (0, "first"))
    )


def first_row_only(step: str, of: Callable[..., Array]) -> tuple[Steps, Steps]:
    """Return what a return statement inside the loop over rows computes.

    Args:
        step: the name of the step that gives the rows.
        of: the right function of this step.
    """

    def zeros(*arguments: Any) -> Array:
        out = of(*arguments)
        return np.concatenate([out[..., :1, :], np.zeros_like(out[..., 1:, :])], axis=-2)

    return {step: zeros}, {step: lambda *arguments: of(*arguments)[..., :1, :]}
