"""Build mistakes that are similar in several tasks: loops with a lost end, and missing rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.tasks.texts import Texts


def without(a: Array, at: int, axis: int, number: float = 0) -> Array:
    """Replace the first (`at` is 0) or the last (-1) item along an axis by a number."""
    a = np.array(a)
    np.moveaxis(a, axis, 0)[at] = number
    return a


def cut(a: Array, at: int, axis: int) -> Array:
    """Remove the first (`at` is 0) or the last (-1) item along an axis."""
    return np.delete(a, at, axis)


def pick(known: Iterable[Mistake], *keys: str) -> list[Mistake]:
    """Return the mistakes with these keys."""
    return [mistake for mistake in known if mistake.key in keys]


def both_ends(texts: Texts, name: str, *steps: Callable[[int], Steps]) -> tuple[Mistake, ...]:
    """Return two mistakes: a loop that leaves out the last item, and one without the first item.

    Args:
        texts: the texts of the module; {end} stands for "last" or "first".
        name: the name of the table of both mistakes.
        steps: the variants, as functions of the index that is left out (-1 or 0).
    """
    return tuple(
        texts.mistake(name, *(step(at) for step in steps), end=end)
        for at, end in ((-1, "last"), (0, "first"))
    )


def first_row_only(step: str, of: Callable[..., Array]) -> tuple[Steps, Steps]:
    """Return the two wrong versions of a step that returns inside its loop over rows.

    Args:
        step: the name of the step that computes the rows.
        of: the right function of this step.
    """

    def zeros(*arguments: Any) -> Array:
        out = of(*arguments)
        return np.concatenate([out[..., :1, :], np.zeros_like(out[..., 1:, :])], axis=-2)

    return {step: zeros}, {step: lambda *arguments: of(*arguments)[..., :1, :]}
