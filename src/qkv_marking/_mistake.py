"""Known mistakes, each with a description, its effect, a correction and wrong lines."""

import functools
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from qkv_marking._errors import sentence
from qkv_marking._formula import Lines

Kind = Literal["wrong", "fragile", "convention"]

Function = Callable[..., Any]

_NO_NUDGE = (
    "Compute the output for the smallest input on paper:"
    " which of your steps gives the first wrong number?"
)
_NO_LINE = "Work back from the right output, step by step."


@dataclass(frozen=True)
class Mistake:
    """A known mistake in a task.

    Attributes:
        key: the short name of the mistake.
        says: a description of the error.
        shows: the effect on the result.
        remedy: the line that corrects the mistake.
        kind: "wrong", "fragile" or "convention". Fragile code fails for large numbers or fully
            masked rows. With "convention", the code is correct but follows another convention.
        variants: the forms in which the mistake occurs. Each form maps names of lines of the task's
            formula to wrong lines.
        nudge: a first hint, which does not name the mistake.
        where: where to look in the code.
        alone: if True, the mistake is never reported together with another mistake, because many
            functions with other mistakes would, by coincidence, have the same results as such a
            pair.
    """

    key: str
    says: str
    shows: str
    remedy: str = ""
    kind: Kind = "wrong"
    variants: tuple[Lines, ...] = ()
    nudge: str = ""
    where: str = ""
    alone: bool = False

    @property
    def hint(self) -> tuple[str, ...]:
        """Three hints: what to try, where to look, and the line that corrects the mistake."""
        where = self.where or sentence(f"{self.says[:1].upper()}{self.says[1:]}")
        return self.nudge or _NO_NUDGE, where, self.remedy or _NO_LINE


@functools.lru_cache(16)
def read_tables(package: str, name: str) -> Mapping[str, Any]:
    """Read the TOML file of a package; `name` is the name of the file, without ".toml"."""
    # called at import, because a student's file may later replace functions that read files
    return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text("utf-8"))


def read_rows(
    tables: Mapping[str, Any], defaults: Mapping[str, Any], groups: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """Yield the groups, the name and the fields of each mistake in these tables.

    A table that contains subtables is a group: its fields are default values for the subtables.
    """
    for name, table in tables.items():
        inner = {key: value for key, value in table.items() if isinstance(value, dict)}
        fields = {**defaults, **{key: table[key] for key in table.keys() - inner.keys()}}
        if inner:
            yield from read_rows(inner, fields, (*groups, name))
        else:
            yield groups, name, fields


TEXTS = MappingProxyType(
    {name: fields for _, name, fields in read_rows(read_tables("qkv_marking", "mistakes"), {})}
)


def look_up(key: str, shows: str = "", **names: str) -> Mistake:
    """Create a mistake from its texts in mistakes.toml.

    Args:
        key: the name of the mistake's table in mistakes.toml.
        shows: the effect of the mistake, if the table does not describe it.
        names: values for the placeholders in the texts.

    >>> look_up("missing-function", "it has nothing", name="softmax", signature="").says
    'the file has no softmax'
    """
    row = TEXTS[key]
    texts = {field: text.format_map(names) for field, text in row.items() if field != "raised"}
    return Mistake(**({"key": key, "shows": shows} | texts))
