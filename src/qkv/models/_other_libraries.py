"""Advice on attributes and arguments that exist in other libraries but not in qkv."""

import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import ParamSpec, TypeVar

from qkv._argument_errors import type_error
from qkv._suggest import nearest, suggestion
from qkv.models.files.read import plain

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_ADVICE = tomllib.loads(files("qkv.models").joinpath("other_libraries.toml").read_text("utf-8"))
# Each table maps names to advice. The names are attributes of a model, arguments of `load`, and
# arguments of `generate`.
ATTRIBUTES, LOADING, GENERATING = (
    {name: row["advice"] for row in _ADVICE[kind] for name in row["names"]}
    for kind in ("attributes", "loading", "generating")
)


def advising(
    advice: Mapping[str, str],
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function so that its errors about unknown arguments give advice.

    Raises:
        TypeError: an argument does not exist; the message gives advice or suggests similar names.

    >>> @advising({"device": "qkv computes on the CPU"})
    ... def load(name): ...
    >>> load("books", device="cuda")
    Traceback (most recent call last):
    TypeError: unknown argument device: qkv computes on the CPU
    """

    def wrap(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        known = [name for name in inspect.signature(function).parameters if name != "model"]

        @functools.wraps(function)
        def call_checked(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
            for name in options:
                if name not in known:
                    hint = advice.get(name) or suggestion(nearest(name, known, 2), known)
                    raise type_error(f"unknown argument {plain(name, 60)}: {hint}")
            return function(*args, **options)

        return call_checked

    return wrap
