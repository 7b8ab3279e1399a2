"""A task: its name, its marker, and the texts and variants of its known mistakes."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.findings import Finding
from qkv.marking.mistake import Mistake, Steps, read_texts
from qkv.marking.outcome import Outcome
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


class Texts:
    """The texts of one module's mistakes.

    A table of the TOML file is a mistake with fields of `Mistake`, for example `says`. The table's
    name is the mistake's key, unless the table has a field `key`. A table that contains tables is
    a group: its fields are defaults for the mistakes in the group.

    Args:
        module: the module's `__name__`.

    >>> Texts("qkv.marking.tasks.exercises").mistake("rotation-one-step").shows
    'the matrix is right for steps = 1 only'
    """

    def __init__(self, module: str) -> None:
        self._mistakes = read_texts(module)

    def mistake(self, name: str, *variants: Steps, **values: object) -> Mistake:
        """Return the mistake of a table.

        Args:
            name: the table's name.
            variants: the steps that replace the right steps, for each way to make the mistake.
            values: replace placeholders in the texts; `row` replaces "{row}", for example.
        """
        fields = {"key": name, **self._mistakes[name]}
        if values:
            texts = {field: text for field, text in fields.items() if isinstance(text, str)}
            fields |= {field: text.format(**values) for field, text in texts.items()}
        return Mistake(**fields, variants=variants)

    def mistakes(
        self, variants: Mapping[str, Iterable[Steps | Callable[..., Any]]], step: str = ""
    ) -> tuple[Mistake, ...]:
        """Return the mistakes of several tables.

        Args:
            variants: for each table by name, the steps that replace the right steps, for each way
                to make the mistake. If a way is only a function, the function replaces `step`.
            step: the name of the step that such functions replace.
        """
        return tuple(
            self.mistake(name, *({step: way} if callable(way) else way for way in ways))
            for name, ways in variants.items()
        )

    def finding(
        self,
        name: str,
        run: Outcome | None,
        more: Mapping[str, Any] | None = None,
        **values: object,
    ) -> Finding:
        """Return the mistake of a table with the run that shows it; add `more` to the example."""
        return Finding(**vars(self.mistake(name, **values)), run=run, more=more or {})


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
