"""What the marker says, in how many points, and how it prints."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.marking.errors import words_of


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
            came out (or the exception), and `"right"`, what should have; where several arrays are
            returned, `"yours d_w_q"` and so on. Empty where nothing was.
        task: what was marked; None for a file that no task could be marked in.
        hint: of what was found first, in three grades: a nudge, where to look, and the line that
            mends it. Empty where nothing was.
        helped_by: the functions of qkv, torch and scipy that answered for the student, of a file.
    """

    message: str
    mistakes: tuple[str, ...] = ()
    fragile: tuple[str, ...] = ()
    conventions: tuple[str, ...] = ()
    points: int = 10
    example: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = "attention"
    hint: tuple[str, ...] = ()
    helped_by: tuple[str, ...] = ()

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

    def text(self, hints: int = 1) -> str:
        """The verdict in words: what was found, the smallest input that shows it, and hints.

        Args:
            hints: 0 for none, or up to which grade. The third is the line that mends what was
                found, and gives the answer away; of a habit that costs nothing it is said at once.
        """
        said = self.message.splitlines()
        mends = [line.removeprefix(_MENDS) for line in said if line.startswith(_MENDS)]
        found = [line for line in said if not line.startswith(_MENDS)]
        lines = [line for paragraph in found for line in textwrap.wrap(paragraph, _WIDTH)]
        if self.example:
            lines += ["", "The smallest input that shows it:"]
            for name, value in self.example.items():
                lines += [line.rstrip() for line in _named(name, value)]
        told = [*zip(_GRADES, self.hint, strict=False)][:hints]
        if hints >= len(_GRADES):
            others = mends[1:] if [*self.hint[2:]] == mends[:1] else mends
            told += [(_ALSO_MENDS, remedy) for remedy in others]
        elif not self.mistakes and not self.fragile:
            told = [(_MENDS, remedy) for remedy in mends]
        if told:
            lines += ["", *(line for label, text in told for line in _labelled(label, text))]
        return "\n".join(lines)

    def __str__(self) -> str:
        points = f"{self.points} of 10 points"
        if self.mistakes and not self.hint:  # nothing is there to be hinted at
            return f"{self.text()} {points}."
        if self.mistakes or self.fragile:
            points += "; .text(2) of this says where to look, .text(3) what mends it"
        return f"{self.text()}\n\n{points}"

    __repr__ = __str__


_WIDTH = 80
_MENDS = "What mends it: "
_GRADES = ("Hint 1: ", "Hint 2, where to look: ", "Hint 3, what mends it: ")
_ALSO_MENDS = "And what mends the rest: "
_LABELS = {"yours": "your output", "right": "should be"}


def _labelled(label: str, text: str) -> list[str]:
    """A hint wrapped at 80 columns; the statements of a long remedy on lines of their own."""
    if label in _GRADES[:2]:
        return textwrap.wrap(label + text, _WIDTH)
    if len(label + text) > _WIDTH:
        return [label.rstrip(), *(f"    {statement}" for statement in text.split("; "))]
    return [label + text]


def _named(name: str, value: Any) -> list[str]:
    """An input or an output with its name before it."""
    side, _, part = name.partition(" ")
    label = " ".join(filter(None, [_LABELS.get(side, side), part]))
    if type(value) is not np.ndarray:
        return [f"  {label} = {words_of(value)}"]
    text = np.array2string(value, precision=4, suppress_small=True, separator=" ", threshold=60)
    margin = " " * (len(label) + 5)
    return f"  {label} = {text}".replace("\n", f"\n{margin}").splitlines()
