"""Read the texts of mistakes from TOML files beside the code that makes these mistakes."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any

from qkv.marking.mistake import Mistake, Steps


class MistakeTexts:
    """The texts of a task's mistakes, in groups.

    The file has a table for each group, and in it a table for each mistake, named by the key of the
    mistake. Such a table has the fields of `Mistake`; another `key` replaces the table's name.
    Fields of the group stand for those that a mistake leaves out.

    Args:
        package: the package that holds the file, as `__package__` gives it.
        file: the name of the file.
        constants: replace their names in braces, as in `{SCALE}`.
    """

    def __init__(self, package: str | None, file: str, **constants: object) -> None:
        self.file, self.constants = file, constants
        self.groups = tomllib.loads(files(package or "").joinpath(file).read_text("utf-8"))

    def mistakes(
        self,
        group: str,
        variants: Mapping[str, Iterable[Steps | Callable[..., Any]]],
        step: str = "",
    ) -> tuple[Mistake, ...]:
        """Return the mistakes of a group, in the order of `variants`.

        Args:
            group: the name of the group's table.
            variants: by the name of each mistake's table, the steps that it replaces, in each way
                in which it is written. A function alone replaces `step`.
            step: the name of that step.

        Raises:
            KeyError: the group in the file has other mistakes than `variants`.
        """
        tables = {name: it for name, it in self.groups[group].items() if isinstance(it, dict)}
        if unlike := tables.keys() ^ variants.keys():
            raise KeyError(
                f"{self.file}: [{group}] and the code differ: give {', '.join(sorted(unlike))} a"
                " table there and an entry here"
            )
        shared = {name: it for name, it in self.groups[group].items() if name not in tables}
        return tuple(
            Mistake(
                **{
                    name: self._filled(it)
                    for name, it in {"key": key, **shared, **tables[key]}.items()
                },
                variants=tuple({step: way} if callable(way) else way for way in ways),
            )
            for key, ways in variants.items()
        )

    def found(self, group: str) -> dict[str, Mistake]:
        """Return the mistakes of a group that code detects without computing as they do, by key."""
        names = [name for name, it in self.groups[group].items() if isinstance(it, dict)]
        return {one.key: one for one in self.mistakes(group, {name: () for name in names})}

    def _filled(self, field: Any) -> Any:
        """Return a field with the constants in the places of their names."""
        if isinstance(field, str):
            for name, constant in self.constants.items():
                field = field.replace(f"{{{name}}}", str(constant))
        return field
