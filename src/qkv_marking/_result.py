"""The marker's verdict: findings, points, and their printed form."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv_marking._errors import words_of
from qkv_marking._formula import Diff, list_diff


@dataclass(frozen=True, repr=False, eq=False)
class CheckResult:
    """The marker's verdict on a function; `bool(result)` is True if the function is right.

    Attributes:
        message: the verdict as text. It lists the findings with their effects and corrections, or
            the tests that the function passed.
        mistakes: short names of the mistakes, such as `"softmax-whole-matrix"`.
        fragile: short names of fragile findings. A fragile function fails only for large numbers,
            fully masked rows or integers.
        conventions: short names of differences from the task's conventions; such differences are
            not mistakes.
        says: what `message` says about each finding, without the function's name; the keys are the
            short names of the findings.
        diffs: for each finding that replaces lines of the formula, pairs (right line, wrong line);
            the function gives the same results as the formula with the wrong lines. A wrong line
            "pass" means that the line is missing. The keys are the short names of the findings.
        points: 10 points for a right function, minus 1 for each fragile finding. A function with
            wrong results gets at most 8 points: up to 5 for results that depend on the same inputs
            as the right results, and up to 4 for the share of right numbers. If known lines give
            all results, one mistake leaves at least 4 points, and two leave 2. An empty stub, and a
            function that returns its input or always the same number, get 0 points. Values that
            are not functions lose 4 points for each mistake, and 1 for each time it occurs again.
        example: a mapping for the smallest call that shows the first finding. It holds the inputs,
            the function's output or exception (`"yours"`) and the right output (`"right"`). For a
            function with several outputs, a key also contains the output's name, as in
            `"yours d_w_q"`. The mapping is empty if nothing was found.
        task: the name of the task; None if a file could not be marked for any task.
        hint: three hints for the first finding: what to try, where to look, and the line that
            corrects the mistake. The tuple is empty if nothing was found.
        helped_by: the functions of qkv, torch and scipy that computed the answer in a student's
            file.
    """

    message: str
    mistakes: tuple[str, ...] = ()
    fragile: tuple[str, ...] = ()
    conventions: tuple[str, ...] = ()
    says: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    diffs: Mapping[str, Diff] = field(default_factory=dict, kw_only=True)
    points: int = 10
    example: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = "attention"
    hint: tuple[str, ...] = ()
    helped_by: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Is the function free of mistakes?"""
        return not self.mistakes

    @property
    def mistake(self) -> str | None:
        """The first mistake, or None."""
        return self.mistakes[0] if self.mistakes else None

    def __bool__(self) -> bool:
        return self.passed

    def text(self, hints: int = 1) -> str:
        """Return the verdict as text: the findings, the smallest example, and hints.

        Args:
            hints: the number of hints, from 0 to 3. The third hint is the line that corrects the
                first finding, so it gives the answer away. If the function has no mistakes and no
                fragile findings, corrections are shown even with `hints=0`.
        """
        paragraphs = self.message.splitlines()
        mends = [line.removeprefix(_MENDS) for line in paragraphs if line.startswith(_MENDS)]
        findings = [line for line in paragraphs if not line.startswith(_MENDS)]
        lines = [line for paragraph in findings for line in textwrap.wrap(paragraph, _WIDTH)]
        if self.example:
            lines += ["", "The smallest input that shows it:"]
            for name, value in self.example.items():
                lines += [line.rstrip() for line in _format_value(name, value)]
        diff = self.diffs.get(next(iter(self.says), ""), ())
        if changed := [*list_diff(diff, right=False)]:
            lines += ["", _CAPTION, *(f"  {line}" for line in changed)]
        advice = [*zip(_HINTS, self.hint, strict=False)][:hints]
        if hints >= len(_HINTS):
            others = mends[1:] if [*self.hint[2:]] == mends[:1] else mends
            advice += [(_ALSO_MENDS, remedy) for remedy in others]
        elif not self.mistakes and not self.fragile:
            advice = [(_MENDS, remedy) for remedy in mends]
        if advice:
            lines += ["", *(line for label, text in advice for line in _wrap_hint(label, text))]
        return "\n".join(lines)

    def __str__(self) -> str:
        points = f"{self.points} of 10 points"
        if self.mistakes and not self.hint:  # the function is an empty stub
            return f"{self.text()} {points}."
        if self.mistakes or self.fragile:
            points += "; result.text(2) says where to look, result.text(3) shows the correction"
        return f"{self.text()}\n\n{points}"

    __repr__ = __str__


_WIDTH = 80
_CAPTION = "The formula gives the same results if it has:"
_MENDS = "Correction: "
_HINTS = ("Hint 1: ", "Hint 2, where to look: ", "Hint 3, correction: ")
_ALSO_MENDS = "Other corrections: "
_LABELS = {"yours": "your output", "right": "should be"}


def _wrap_hint(label: str, text: str) -> list[str]:
    """Wrap a hint at 80 columns; write each statement of a long correction on its own line."""
    if label in _HINTS[:2]:
        return textwrap.wrap(label + text, _WIDTH)
    if len(label + text) > _WIDTH:
        return [label.rstrip(), *(f"    {statement}" for statement in text.split("; "))]
    return [label + text]


def _format_value(name: str, value: Any) -> list[str]:
    """Format an input or an output, preceded by its name."""
    side, _, part = name.partition(" ")
    label = " ".join(filter(None, [_LABELS.get(side, side), part]))
    if type(value) is not np.ndarray:
        return [f"  {label} = {words_of(value)}"]
    text = np.array2string(value, precision=4, suppress_small=True, separator=" ", threshold=60)
    margin = " " * (len(label) + 5)
    return f"  {label} = {text}".replace("\n", f"\n{margin}").splitlines()
