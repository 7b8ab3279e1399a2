"""Inspect a student's function before it is called: its options, stubs, tensors of torch."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.marking.outcome import Elsewhere, name_of


def options_of(
    function: Callable[..., Any],
    names: Sequence[str],
    known: Mapping[str, tuple[str, ...]],
) -> tuple[dict[str, str], frozenset[str]]:
    """Return `(taken, required)`: the options that a function takes, and those that it requires.

    `taken` maps our name of an option to the function's name; `required` holds our names.

    Args:
        function: a student's function.
        names: its positional arguments.
        known: maps our name of each option to the names that a function may give it.

    Raises:
        TypeError: the function cannot be called with these names, or requires other arguments.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature
        return {}, frozenset()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    rest = [p for p in parameters if p not in (*places[: len(names)], *several)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in several)
    options = {
        option: p.name
        for option, spelled in known.items()
        for p in rest
        if p.name in spelled and p.kind is not p.POSITIONAL_ONLY
    }
    needed = {p.name for p in rest if p.default is p.empty}
    if needed - {*options.values()} or (len(places) < len(names) and not takes_any):
        name = name_of(function)
        raise TypeError(
            f"check: {name}({', '.join(names)}) is called, but it is"
            f" {name}({', '.join(p.name for p in parameters)}):"
            " give further parameters a default"
        )
    return options, frozenset(option for option, p in options.items() if p in needed)


def is_number(default: Any) -> bool:
    """Is the default of a parameter a number (for example 0.0, for a mask that is added)?"""
    return type(default) in (int, float)


def _stub(x: Any) -> None: ...


def _stub_with_words(x: Any) -> None:
    """Serve as an example of a stub with a docstring."""


_EMPTY = {_stub.__code__.co_code, _stub_with_words.__code__.co_code}


def is_stub(thing: Any) -> bool:
    """Is the object a function whose body is only `...`, or a class of such functions?

    >>> def softmax(scores): ...
    >>> is_stub(softmax), is_stub(max)
    (True, False)
    """
    if isinstance(thing, Elsewhere):
        return thing.is_stub()
    if inspect.isclass(thing):
        functions = [value for value in vars(thing).values() if inspect.isfunction(value)]
        return "__call__" in vars(thing) and all(map(is_stub, functions))
    if not inspect.isfunction(thing) or thing.__name__ == "<lambda>":
        return False
    code = thing.__code__
    return code.co_code in _EMPTY and {*code.co_consts} <= {None, thing.__doc__}


def takes_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays that tries tensors of torch if `function` fails on arrays.

    Classes are returned unchanged. If torch was never imported, functions are unchanged too.

    Args:
        function: takes arrays, or tensors of torch, or mappings of names to them.

    Returns:
        A function of arrays. If `function` fails on arrays and on tensors, the error for arrays is
        raised.
    """
    if "torch" not in sys.modules or inspect.isclass(function):
        return function
    wants_tensors = False

    @functools.wraps(function, updated=())
    def of_arrays(*arguments: Any, **named: Any) -> Any:
        nonlocal wants_tensors
        if wants_tensors:
            return function(*as_tensors(arguments), **as_tensors(named))
        try:
            return function(*arguments, **named)
        except (AttributeError, TypeError) as refusal:
            try:
                returned = function(*as_tensors(arguments), **as_tensors(named))
            except Exception:
                raise refusal from None
            wants_tensors = True
            return returned

    return of_arrays


def as_tensors(values: Any) -> Any:
    """Turn arrays into tensors that share their memory, also inside tuples and mappings.

    If torch was never imported, return the arrays themselves.
    """
    if isinstance(values, np.ndarray):
        return sys.modules["torch"].as_tensor(values) if "torch" in sys.modules else values
    if isinstance(values, tuple):
        return tuple(map(as_tensors, values))
    if isinstance(values, dict):
        return {name: as_tensors(value) for name, value in values.items()}
    return values
