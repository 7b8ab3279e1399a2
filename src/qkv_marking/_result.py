"""The marker's verdict: findings, points, and their printed form."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from qkv_marking._errors import words_of
from qkv_marking._formula import Diff, list_diff

BY_TEACHER = "Your teacher gave these points."  # the reason for points that were not computed


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
            as the right results, and up to 4 for the share of right numbers. If the right lines
            with one known mistake produce all results, the function gets at least 4 points; if two
            known mistakes are needed, it gets at least 2. An empty stub gets 0 points, and so does
            a function that returns its input or always the same number. Values that are not
            functions lose 4 points for each mistake, and 1 point for each repetition of a mistake.
        example: a mapping for the smallest call that shows the first finding. It holds the inputs,
            the function's output or exception (`"yours"`) and the right output (`"right"`). For a
            function with several outputs, a key also contains the output's name, as in
            `"yours d_w_q"`. The mapping is empty if nothing was found.
        task: the name of the task; None if a file could not be marked for any task.
        hint: three hints for the first finding: what to try, where to look, and the line that
            corrects the mistake. The tuple is empty if nothing was found.
        helped_by: the functions of qkv, torch and scipy that computed the answer in a student's
            file.
        reason: one sentence that explains the points.
    """

    message: str
    mistakes: tuple[str, ...] = ()
    fragile: tuple[str, ...] = ()
    conventions: tuple[str, ...] = ()
    says: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    diffs: Mapping[str, Diff] = field(default_factory=dict, kw_only=True)
    points: float = 10
    example: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = "attention"
    hint: tuple[str, ...] = ()
    helped_by: tuple[str, ...] = ()
    reason: str = field(default="Nothing could be marked.", kw_only=True)

    @property
    def by_teacher(self) -> bool:
        """Whether a teacher gave the points."""
        return self.reason == BY_TEACHER

    @property
    def passed(self) -> bool:
        """Whether the function is free of mistakes."""
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
        sections = self.sections(hints)
        return "\n\n".join("\n".join(section.wrap()) for section in sections)

    def sections(self, hints: int = 1) -> "list[Section]":
        """Return the parts of the verdict: findings, the smallest example, lines, and hints.

        Args:
            hints: the number of hints, from 0 to 3, as for `text`. The lines that the mistakes
                replace are shown with the right lines only if `hints` is 3.
        """
        paragraphs = self.message.splitlines()
        mends = [line.removeprefix(_MENDS) for line in paragraphs if line.startswith(_MENDS)]
        findings = [line for line in paragraphs if not line.startswith(_MENDS)]
        example = [
            line.rstrip()
            for name, value in self.example.items()
            for line in _format_value(name, value)
        ]
        everything = hints >= len(_HINTS)
        shown = self.says if everything else [*self.says][:1]
        pairs = dict.fromkeys(pair for key in shown for pair in self.diffs.get(key, ()))
        advice = [*zip(_HINTS, self.hint, strict=False)][:hints]
        if everything:
            others = mends[1:] if [*self.hint[2:]] == mends[:1] else mends
            advice += [(_ALSO_MENDS, remedy) for remedy in others]
        elif not self.mistakes and not self.fragile:
            advice = [(_MENDS, remedy) for remedy in mends]
        found = (
            Section("words", "", findings),
            Section("code", "The smallest input that shows it:", example),
            Section("diff", _CAPTIONS[everything], [*list_diff((*pairs,), right=everything)]),
            Section("hints", "", [label + text for label, text in advice]),
        )
        return [section for section in found if section.lines]

    def __str__(self) -> str:
        points = f"{self.points:g} of 10 points"
        if self.mistakes and not self.hint:  # the function is an empty stub
            return f"{self.text()} {points}."
        if self.mistakes or self.fragile:
            points += "; result.text(2) says where to look, result.text(3) shows the correction"
        return f"{self.text()}\n\n{points}"

    __repr__ = __str__


class Section(NamedTuple):
    """A part of a verdict: "words" (paragraphs), "code", "diff" or "hints"."""

    kind: str
    heading: str
    lines: list[str]

    def wrap(self) -> list[str]:
        """Return the lines for a terminal: words wrapped at 80 columns, code indented."""
        if self.heading:
            return [self.heading, *(f"  {line}" for line in self.lines)]
        return [line for paragraph in self.lines for line in self._wrap(paragraph)]

    def _wrap(self, text: str) -> list[str]:
        """Wrap a paragraph; write each statement of a long correction on its own line."""
        label, _, statements = text.partition(": ")
        if self.kind == "words" or f"{label}: " in _HINTS[:2]:
            return textwrap.wrap(text, _WIDTH)
        if len(text) > _WIDTH:
            return [f"{label}:", *(f"    {statement}" for statement in statements.split("; "))]
        return [text]


_WIDTH = 80
_CAPTIONS = (
    "The right solution with this change gives the same wrong results as your code:",
    "The formula gives these results with the lines -, and the right results with the lines +:",
)
_MENDS = "Correction: "
_HINTS = ("Hint 1: ", "Hint 2, where to look: ", "Hint 3, correction: ")
_ALSO_MENDS = "Other corrections: "
_LABELS = {"yours": "your output", "right": "should be"}


def _format_value(name: str, value: Any) -> list[str]:
    """Format an input or an output, preceded by its name."""
    side, _, part = name.partition(" ")
    label = " ".join(filter(None, [_LABELS.get(side, side), part]))
    if type(value) is not np.ndarray:
        return [f"{label} = {words_of(value)}"]
    text = np.array2string(value, precision=4, suppress_small=True, separator=" ", threshold=60)
    margin = " " * (len(label) + 3)
    return f"{label} = {text}".replace("\n", f"\n{margin}").splitlines()
