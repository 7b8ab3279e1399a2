"""A task: what a learner writes, and the function that marks it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from qkv.marking.result import CheckResult

SECONDS = 10.0  # the limit of most tasks; a right solution takes a hundredth of this time
_TABLES = tomllib.loads(files(__package__).joinpath("tasks.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Task:
    """A task: what a learner writes (a function, a class or values), and how it is marked.

    Attributes:
        name: the name that `--task` takes.
        mark: marks a function that is called in one of `ways`, or a tuple of values; raises a
            TypeError if the function cannot be called in this way.
        looks_for: names of the function or class. The first of these names that a file has is
            marked, and `--task` takes these names too.
        signature: the call, and the shape or form of its result.
        asks: what the result should hold, in a sentence.
        ways: the signatures with which the function may be called, the usual signature first.
        also: further names of the function, if the task was chosen with `--task`.
        everyday: the names in `looks_for` that a helper function may have too; such a helper does
            not count as an answer.
        values: the names of the marked values, if the answer is not a function.
        may_use: whether an answer may call qkv.
        by_name: whether the task is marked only if it was chosen by its name, since another task
            looks for the same functions.
        seconds: the time limit; a cell of the task's notebook may take six times as long.
    """

    name: str
    mark: Callable[[Any, str], CheckResult]
    looks_for: tuple[str, ...]
    signature: str
    asks: str
    ways: tuple[str, ...] = ("",)
    also: tuple[str, ...] = ()
    everyday: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    may_use: bool = False
    by_name: bool = False
    seconds: float = SECONDS


def task(name: str, mark: Callable[[Any, str], CheckResult]) -> Task:
    """Return the task with this name in `tasks.toml`; the given function marks it."""
    fields: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in _TABLES[name].items()
    }
    return Task(name, mark, **fields)
