"""Build mistakes that look alike in several tasks: lost ends of loops, integer arrays, products."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, Steps, mended, mistake

FLOORED = "divided with //, which rounds down to whole numbers"
NOT_TO_FIT = "it fails, or gives other numbers where the shapes happen to fit"


def without(a: Array, at: int, axis: int, number: float = 0) -> Array:
    """Put a number in the place of the first (0) or the last (-1) along an axis."""
    a = np.array(a)
    np.moveaxis(a, axis, 0)[at] = number
    return a


def cut(a: Array, at: int, axis: int) -> Array:
    """Remove the first (0) or the last (-1) along an axis."""
    return np.delete(a, at, axis)


def pick(known: Iterable[Mistake], *keys: str) -> list[Mistake]:
    """Return the mistakes with these keys."""
    return [one for one in known if one.key in keys]


def drop(known: Iterable[Mistake], *keys: str) -> list[Mistake]:
    """Return the mistakes with other keys."""
    return [one for one in known if one.key not in keys]


def written_as(one: Mistake, *variants: Steps, **changes: Any) -> Mistake:
    """Return a mistake that replaces other steps, with the same words but for these changes."""
    return replace(one, variants=variants, **changes)


def forgotten(
    key: str,
    says: str,
    shows: str,
    *steps: Callable[[int], Steps],
    loop: str,
    nudge: str,
    where: str,
) -> tuple[Mistake, ...]:
    """Return the mistakes of a loop that ends one too early, or begins one too late.

    Args:
        key: of both.
        says: what is wrong, with {} for "last" or "first".
        shows: what this does to the result, too.
        steps: the variants, each from the index that is left out (-1 or 0).
        loop: how the loop should run, as in "j in range(n)".
        nudge: as of a mistake.
        where: as of a mistake.
    """
    return tuple(
        mistake(
            key,
            says.format(name),
            shows.format(name),
            *(step(at) for step in steps),
            remedy=f"for {loop}: ...  # neither range(1, ...) nor range(... - 1)",
            nudge=nudge,
            where=f"{where}: where does it begin and end?",
        )
        for at, name in ((-1, "last"), (0, "first"))
    )


def integers(
    stored: str, shows: str, *variants: Steps, array: str = "out", nudge: str = "", where: str = ""
) -> Mistake:
    """Return the mistake of an array of integers that cuts off fractions."""
    return mistake(
        "integer-table",
        f"{stored} stored in an array of integers, which cuts off the fractions",
        shows,
        *variants,
        remedy=f"{array} = np.zeros(...)  # of floats: no dtype=int, no np.full(..., 0)",
        nudge=nudge or "Print the dtype of the array that is written to.",
        where=where or "the line that makes this array: which numbers can it hold?",
    )


def overwritten(what: str, shows: str, variant: Steps, line: str, nudge: str) -> Mistake:
    """Return the mistake of a sum that keeps its last term alone."""
    return mistake(
        "sum-overwritten",
        f"{what} is overwritten and not added to: only its last term is left",
        shows,
        variant,
        remedy=f"{line} += ...  # not {line} = ...",
        nudge=nudge,
        where="the loop that makes the sum: = or +=?",
    )


def products(
    right: str,
    elementwise: Iterable[Steps],
    order: Iterable[Steps],
    remedy: str,
    nudge: str,
) -> tuple[Mistake, ...]:
    """Return the mistakes of a product number by number, and of one in the other order.

    Args:
        right: the product as it should be.
        elementwise: variants of the first; none where there is no such mistake.
        order: variants of the second.
        remedy: as of a mistake.
        nudge: as of a mistake.
    """
    known = (
        mistake(
            "product-elementwise",
            f"the factors are multiplied number by number; the product is {right}",
            NOT_TO_FIT,
            *elementwise,
        ),
        mistake(
            "product-order",
            f"the factors stand in the wrong order; the product is {right}",
            "it fails, or mixes rows for columns where the shapes happen to fit",
            *order,
        ),
    )
    where = f"the product {right}: which sign, and in which order?"
    return mended(remedy, *(one for one in known if one.variants), nudge=nudge, where=where)


def early_return(step: str, of: Callable[..., Array], row: str) -> Mistake:
    """Return the mistake of a return statement inside the loop over rows.

    Args:
        step: gives what is returned, by this function.
        of: the function.
        row: what a row belongs to.
    """

    def zeros(*arguments: Any) -> Array:
        out = of(*arguments)
        return np.concatenate([out[..., :1, :], np.zeros_like(out[..., 1:, :])], axis=-2)

    return mistake(
        "return-in-loop",
        f"only the first {row} is computed, as where the return statement stands inside the loop",
        "the other rows are missing, or stay 0",
        {step: zeros},
        {step: lambda *arguments: of(*arguments)[..., :1, :]},
        remedy="return out  # indented as the for of the loop is",
        nudge="Print the output: which of its rows are right?",
        where="the return statement: how far is it indented?",
    )
