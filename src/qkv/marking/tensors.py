"""Functions of torch: give them tensors where they do not take arrays, without importing torch."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


def takes_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which is called with tensors once it has failed on arrays.

    Where torch was never imported, nobody can have used it, and the function comes back as it is;
    so does a class.

    Args:
        function: takes arrays, or tensors of torch, or mappings of names to them.

    Returns:
        A function of arrays. It raises what the function raised on arrays if it fails on both.
    """
    if "torch" not in sys.modules or inspect.isclass(function):
        return function
    wants_tensors = False

    @functools.wraps(function, updated=())
    def of_arrays(*given: Any, **named: Any) -> Any:
        nonlocal wants_tensors
        if wants_tensors:
            return function(*as_tensors(given), **as_tensors(named))
        try:
            return function(*given, **named)
        except (AttributeError, TypeError) as refusal:
            try:
                returned = function(*as_tensors(given), **as_tensors(named))
            except Exception:
                raise refusal from None
            wants_tensors = True
            return returned

    return of_arrays


def as_tensors(given: Any) -> Any:
    """Arrays as tensors on the same memory, also in tuples and mappings; the rest as it is.

    Where torch was never imported, arrays stay arrays.
    """
    if isinstance(given, np.ndarray):
        return sys.modules["torch"].as_tensor(given) if "torch" in sys.modules else given
    if isinstance(given, tuple):
        return tuple(as_tensors(one) for one in given)
    if isinstance(given, dict):
        return {name: as_tensors(one) for name, one in given.items()}
    return given
