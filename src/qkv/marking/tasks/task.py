"""A task: what a learner writes, and the function that marks it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from qkv.marking.result import CheckResult

SECONDS = 10.0  # the limit of most tasks, of which a right solution takes a hundredth
_TABLES = tomllib.loads(files(__package__).joinpath("tasks.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Task:
    """A task: a function, a class or values that a learner writes, and a function that marks it.

    Attributes:
        name: the name that `--task` takes.
        mark: marks a function that is called in one of the task's ways, or a tuple of values; it
            raises a TypeError if the function cannot be called so.
        looks_for: names of the function or class; the first of them in a file is marked, and
            `--task` takes these names too.
        signature: the call, and its result.
        asks: the contents of the result, in a sentence.
        ways: the signatures by which the function may be called, the usual way first.
        also: further names of the function, for a task that was asked for by its name.
        everyday: those of `looks_for` that a helper may have, which then is no answer to the task.
        values: the names of the marked values, of a task whose answer is not a function.
        may_use: whether an answer may call qkv.
        by_name: whether the task is marked only if it was asked for by its name, since another task
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
    """Return the task of this name in `tasks.toml`, which a function marks."""
    fields: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in _TABLES[name].items()
    }
    return Task(name, mark, **fields)
