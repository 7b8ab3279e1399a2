"""What a task is: what a learner writes, and what marks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qkv.marking.result import CheckResult

SECONDS = 10.0  # that most tasks may take, of which a right solution takes a hundredth


@dataclass(frozen=True)
class Task:
    """Something to write, and to have marked.

    Attributes:
        name: what `--task` takes.
        looks_for: what the function or class is called; the first that a file has is marked, and
            `--task` takes these names too.
        signature: how it is called, and what it gives.
        asks: what is to be written, in a sentence.
        mark: marks a function that is called in one of the task's ways, or a tuple of values; a
            TypeError where it cannot be called so.
        ways: by which arrays it may be called, the usual one first.
        also: other names, taken only where the task was asked for by its name.
        everyday: those of `looks_for` that a helper may have, which is no answer to the task.
        by_name: the task is marked only where it was asked for by its name, since another one looks
            for the same functions.
        may_use: the task is to use qkv, so that calls of it are no help.
        values: the names of the values that are marked, of a task whose answer is no function.
        seconds: how long the task may take; a cell of its notebook may take six times as long.
    """

    name: str
    looks_for: tuple[str, ...]
    signature: str
    asks: str
    mark: Callable[[Any, str], CheckResult]
    ways: tuple[str, ...] = ("",)
    also: tuple[str, ...] = ()
    everyday: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    may_use: bool = False
    by_name: bool = False
    seconds: float = SECONDS
