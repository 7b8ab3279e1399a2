"""The texts of known mistakes. A module's texts are in a TOML file with the module's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from qkv.marking.findings import Finding
from qkv.marking.mistake import Mistake, Steps, read_texts
from qkv.marking.outcome import Outcome


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
