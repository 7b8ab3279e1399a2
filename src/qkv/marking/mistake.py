"""Known mistakes: what is wrong, how it shows, what corrects it, and how it computes."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from qkv.marking.errors import sentence

Kind = Literal["wrong", "fragile", "convention"]

# a computation: each step by its name
Steps = Mapping[str, Callable[..., Any]]

_NO_NUDGE = "Compute the smallest input by hand: which of your steps gives the first wrong number?"
_NO_LINE = "Work back from the right output, step by step."


@dataclass(frozen=True)
class Mistake:
    """One way to get a task wrong.

    Attributes:
        key: its short name.
        says: what is wrong, in words.
        shows: its effect on the result.
        remedy: the line that corrects it.
        kind: wrong, fragile (right until numbers get large, or a row sees nothing), or another
            convention.
        variants: the steps that replace the right steps, for each way to write the mistake.
        nudge: what to try or to look at first; it does not give the mistake away.
        where: where to look in the code.
        alone: report it only where it explains everything. Pairs of mistakes are formed from the
            other mistakes only; otherwise too many pairs would fit by chance.
    """

    key: str
    says: str
    shows: str
    remedy: str = ""
    kind: Kind = "wrong"
    variants: tuple[Steps, ...] = ()
    nudge: str = ""
    where: str = ""
    alone: bool = False

    @property
    def hint(self) -> tuple[str, ...]:
        """Three grades: a nudge, where to look, the line that corrects the mistake."""
        where = self.where or sentence(f"{self.says[:1].upper()}{self.says[1:]}")
        return self.nudge or _NO_NUDGE, where, self.remedy or _NO_LINE


def read_texts(module: str) -> dict[str, dict[str, Any]]:
    """Read the fields of each mistake in the TOML file beside a module, named like the module.

    A table is a mistake; a table that contains tables is a group, whose fields are the defaults of
    the mistakes in it.
    """
    package, _, name = module.rpartition(".")
    tables = tomllib.loads(files(package).joinpath(f"{name}.toml").read_text("utf-8"))
    return dict(_rows(tables, {}))


def _rows(
    tables: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the fields of each mistake in these tables."""
    for name, table in tables.items():
        inner = {key: value for key, value in table.items() if isinstance(value, dict)}
        fields = {**defaults, **{key: table[key] for key in table.keys() - inner.keys()}}
        if inner:
            yield from _rows(inner, fields)
        else:
            yield name, fields


# read now, since a student's file may later change the functions that read files
TEXTS = MappingProxyType(read_texts("qkv.marking.mistakes"))


def described(key: str, shows: str = "", **names: str) -> Mistake:
    """Describe a mistake by its texts in mistakes.toml.

    Args:
        key: its table there.
        shows: how the mistake shows, if the table does not say so.
        names: fill the placeholders of the texts.

    >>> described("missing-function", "it has nothing", name="softmax", signature="").says
    'the file has no softmax'
    """
    row = TEXTS[key]
    texts = {field: text.format_map(names) for field, text in row.items() if field != "raised"}
    return Mistake(**({"key": key, "shows": shows} | texts))


def mended(
    remedy: str,
    *mistakes: Mistake,
    nudge: str = "",
    where: str = "",
    kind: Kind = "wrong",
    alone: bool = False,
) -> tuple[Mistake, ...]:
    """Give mistakes one remedy, nudge and place, except where a mistake has its own."""
    return tuple(
        replace(
            one,
            remedy=one.remedy or remedy,
            nudge=one.nudge or nudge,
            where=one.where or where,
            kind=kind if one.kind == "wrong" else one.kind,
            alone=alone or one.alone,
        )
        for one in mistakes
    )
