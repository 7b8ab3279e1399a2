"""Tasks, and the texts of their known mistakes."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.findings import Finding
from qkv.marking.isolated import SECONDS
from qkv.marking.mistake import Mistake, Steps, read_texts
from qkv.marking.outcome import Outcome
from qkv.marking.result import CheckResult

_TABLES = tomllib.loads(files(__package__).joinpath("tasks.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Task:
    """A task: the function, class or values that a learner writes, and the marker.

    Attributes:
        name: the name for the option `--task`.
        mark: a function that marks an answer: a learner's function with one of `ways`, or a tuple
            of values. It raises a TypeError if the learner's function has the wrong parameters.
        looks_for: possible names of the function or class, also accepted by `--task`. The first
            name found in a file is marked.
        signature: the call, and the shape or form of its result.
        asks: a description of the right result.
        ways: the possible signatures of the function, the usual signature first.
        also: more names for the function, accepted if the task was chosen with `--task`.
        everyday: names in `looks_for` that are also common names of helper functions; a helper
            function does not count as an answer.
        values: the names of the marked values, if the answer is not a function.
        may_use: whether an answer may call qkv.
        by_name: whether the task must be chosen by name, since another task looks for the same
            functions.
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
    """Read the task with this name from `tasks.toml`, and add its marker."""
    fields: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in _TABLES[name].items()
    }
    return Task(name, mark, **fields)


class Texts:
    """Descriptions of the mistakes of one module.

    Each table of the module's TOML file describes a mistake with fields of `Mistake`, for example
    `says`. The table's name is the mistake's key, unless the table has a field `key`. A table that
    contains tables is a group: its fields are defaults for the mistakes in the group.

    Args:
        module: the module's `__name__`.

    >>> Texts("qkv.marking.tasks.exercises").mistake("rotation-one-step").shows
    'the matrix is right only for steps = 1'
    """

    def __init__(self, module: str) -> None:
        self._mistakes = read_texts(module)

    def mistake(self, name: str, *variants: Steps, **values: object) -> Mistake:
        """Return the mistake that a table describes.

        Args:
            name: the table's name.
            variants: the wrong steps, one mapping for each way to make the mistake.
            values: values for placeholders in the texts, for example `row` for "{row}".
        """
        fields = {"key": name, **self._mistakes[name]}
        if values:
            texts = {field: text for field, text in fields.items() if isinstance(text, str)}
            fields |= {field: text.format(**values) for field, text in texts.items()}
        return Mistake(**fields, variants=variants)

    def mistakes(
        self, variants: Mapping[str, Iterable[Steps | Callable[..., Any]]], step: str = ""
    ) -> tuple[Mistake, ...]:
        """Return the mistakes that several tables describe.

        Args:
            variants: the ways to make each mistake, keyed by the table's name: mappings of wrong
                steps, or functions that replace only `step`.
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
        """Return the finding that this run shows the mistake that a table describes."""
        return Finding(**vars(self.mistake(name, **values)), run=run, more=more or {})


def without(a: Array, at: int, axis: int, number: float = 0) -> Array:
    """Replace one item along an axis, the first (at = 0) or the last (at = -1), with a number."""
    a = np.array(a)
    np.moveaxis(a, axis, 0)[at] = number
    return a


def cut(a: Array, at: int, axis: int) -> Array:
    """Remove one item along an axis: the first (at = 0) or the last (at = -1)."""
    return np.delete(a, at, axis)


def pick(known: Iterable[Mistake], *keys: str) -> list[Mistake]:
    """Return the mistakes with these keys."""
    return [mistake for mistake in known if mistake.key in keys]


def both_ends(texts: Texts, name: str, *steps: Callable[[int], Steps]) -> tuple[Mistake, ...]:
    """Return two mistakes: a loop that skips the last item, and a loop that skips the first item.

    Args:
        texts: the texts of the module, in which {end} stands for "last" or "first".
        name: the name of the table that describes both mistakes.
        steps: functions that take the skipped index (-1 or 0) and return the wrong steps.
    """
    return tuple(
        texts.mistake(name, *(step(at) for step in steps), end=end)
        for at, end in ((-1, "last"), (0, "first"))
    )


def first_row_only(step: str, of: Callable[..., Array]) -> tuple[Steps, Steps]:
    """Return two variants of a step whose `return` is inside the loop over rows.

    Args:
        step: the name of the step that computes the rows.
        of: the right function of this step.
    """

    def zeros(*arguments: Any) -> Array:
        out = of(*arguments)
        return np.concatenate([out[..., :1, :], np.zeros_like(out[..., 1:, :])], axis=-2)

    return {step: zeros}, {step: lambda *arguments: of(*arguments)[..., :1, :]}
