"""What the marker says, in how many points, and how it prints."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, repr=False, eq=False)
class CheckResult:
    """The marker's verdict on a function. It is true where the function is right.

    Attributes:
        message: in words: what was found, how it shows and what mends it; and what was tried.
        mistakes: what is wrong, by short names such as `"softmax-whole-matrix"`.
        fragile: what is right until numbers get large, a row sees nothing, or integers come in.
        conventions: what is right, but another habit than the field's.
        points: 10, less 4 for each mistake and 1 for what is fragile, but not below 0; 0 where
            nothing was done, or nothing that came out could be explained.
        example: the smallest inputs that show what was found first, by name, then `"yours"`, what
            came out (or the exception), and `"right"`, what should have. Empty where nothing was.
        task: what was marked; None for a file that no task could be marked in.
        hint: of what was found first, in three grades: a nudge, where to look, and the line that
            mends it. Empty where nothing was.
    """

    message: str
    mistakes: tuple[str, ...] = ()
    fragile: tuple[str, ...] = ()
    conventions: tuple[str, ...] = ()
    points: int = 10
    example: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = "attention"
    hint: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.mistakes

    @property
    def mistake(self) -> str | None:
        """The first mistake, or None."""
        return self.mistakes[0] if self.mistakes else None

    def __bool__(self) -> bool:
        return self.passed

    def text(self, hints: int = 3) -> str:
        """The verdict in words, with hints up to a grade, of which the third mends what was found.

        Args:
            hints: 3 for the whole message; 1 or 2 for so many of `hint` in the place of what mends
                it, 0 for none.
        """
        lines = self.message.splitlines()
        if hints < len(self.hint):
            lines = [line for line in lines if not line.startswith(_MENDS)]
            for grade, one in zip(("Hint", "Where to look"), self.hint[:hints], strict=False):
                lines.append(f"{grade}: {one}")
        lines = [line for paragraph in lines for line in _wrapped(paragraph)]
        if self.example:
            lines += ["", "The smallest input that shows it:"]
            for name, value in self.example.items():
                lines += [line.rstrip() for line in _named(name, value)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.text()}\n\n{self.points} of 10 points"

    __repr__ = __str__


_WIDTH = 80
_MENDS = "What mends it: "
_LABELS = {"yours": "your output", "right": "should be"}


def _wrapped(paragraph: str) -> list[str]:
    """Words wrapped at 80 columns; the statements of a long remedy on lines of their own."""
    words, sign, remedy = paragraph.partition(_MENDS)
    if sign and not words and len(paragraph) > _WIDTH:
        return [sign.rstrip(), *(f"    {statement}" for statement in remedy.split("; "))]
    return textwrap.wrap(paragraph, _WIDTH)


def _named(name: str, value: Any) -> list[str]:
    """An input or an output with its name before it."""
    label = _LABELS.get(name, name)
    if not isinstance(value, np.ndarray):
        return [f"  {label} = {value}"]
    text = np.array2string(value, precision=4, suppress_small=True, separator=" ")
    margin = " " * (len(label) + 5)
    return f"  {label} = {text}".replace("\n", f"\n{margin}").splitlines()
