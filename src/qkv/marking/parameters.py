"""What a function takes beside what every solution of its task takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qkv.marking.outcome import name_of


def options_of(
    function: Callable[..., Any],
    names: Sequence[str],
    known: Mapping[str, tuple[str, ...]],
) -> tuple[dict[str, str], frozenset[str]]:
    """Which of the known options a function takes, under what name, and which must be given.

    Args:
        function: somebody's function.
        names: what it is given by place.
        known: the options by their names, and what each may be called.

    Raises:
        TypeError: it cannot be called with these names, or must be given something else.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins do not say
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
    """Is the default of a parameter a number, such as 0.0, which a mask to add may have?"""
    return type(default) in (int, float)
