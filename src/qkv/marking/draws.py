"""Random inputs for the marker, drawn from a seed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np

_T = TypeVar("_T")
_SEED: ContextVar[int] = ContextVar("seed", default=0)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw the inputs from this seed in this context; seed 0 draws inputs that print shortest."""
    before = _SEED.set(seed)
    try:
        yield
    finally:
        _SEED.reset(before)


def by_seed() -> bool:
    """Is the seed of the inputs not 0?"""
    return _SEED.get() != 0


def generator(number: int) -> np.random.Generator:
    """Return the random generator of the input with this number.

    >>> bool(generator(3).integers(9) == np.random.default_rng(3).integers(9))
    True
    """
    return np.random.default_rng((_SEED.get(), number) if by_seed() else number)


def per_seed(make: Callable[[], _T]) -> Callable[[], _T]:
    """Cache a function that makes inputs, once for each seed."""

    @functools.lru_cache(maxsize=8)
    def of_seed(seed: int) -> _T:
        return make()

    @functools.wraps(make)
    def of_this_seed() -> _T:
        return of_seed(_SEED.get())

    return of_this_seed
