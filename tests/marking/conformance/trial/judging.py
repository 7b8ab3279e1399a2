"""Judge the kernels of all trials, and compare the cards with the tables.

`make judge` runs this module as a program: it judges all kernels by all cases, in two processes.
"""

import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

from qkv_marking.conformance.card import conform
from qkv_marking.conformance.report import Report

from .correct import CORRECT, GRADIENTS
from .fifth_table import FIFTH, FIFTH_RIGHT
from .fourth_table import FOURTH
from .second_table import RIGHT, RIGHT_GRADIENTS, SECOND
from .seventh_table import SEVENTH, SEVENTH_RIGHT, SEVENTH_RIGHT_GRADIENTS
from .sixth_table import SIXTH, SIXTH_RIGHT, SIXTH_RIGHT_GRADIENTS
from .table import DEFECTIVE, Entry
from .third_table import THIRD


class Trial(NamedTuple):
    """The kernels of a trial; `gradients` holds the backward passes of correct kernels."""

    defective: list[Entry]
    correct: list[Any]
    gradients: Mapping[Any, Any]


TRIALS = {
    "first": Trial(DEFECTIVE, CORRECT, GRADIENTS),
    "second to fourth": Trial([*SECOND, *THIRD, *FOURTH], RIGHT, RIGHT_GRADIENTS),
    "fifth": Trial(FIFTH, FIFTH_RIGHT, {}),
    "sixth": Trial(SIXTH, SIXTH_RIGHT, SIXTH_RIGHT_GRADIENTS),
    "seventh": Trial(SEVENTH, SEVENTH_RIGHT, SEVENTH_RIGHT_GRADIENTS),
}


class Verdict(NamedTuple):
    """What the card says of a kernel of the trial.

    Attributes:
        bad: the wrong features, and the fragile feature if the table expects it.
        placed: the features of `bad` that the table expects.
        name: the first name of a defect at these features, or "".
        named: whether the name is the right one.
    """

    bad: tuple[str, ...]
    placed: tuple[str, ...]
    name: str
    named: bool


def judge(function, gradient=None, features: Collection[str] | None = None) -> Report:
    """Return the card of a kernel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return conform(function, gradient=gradient, features=features)


def decide(entry: Entry, report: Report) -> Verdict:
    """Compare a card with the table."""
    fragile = {entry.feature: "fragile"}
    bad = [f for f, status in report.features.items() if status in ("wrong", fragile.get(f))]
    placed = [f for f in (entry.feature, *entry.also) if f in bad]
    # an explanation and a message are names of the defect; an error alone is none
    findings = {f: report.findings[f] for f in placed}
    names = [report.remark(f) for f, it in findings.items() if it.explanation or it.case.message]
    name = names[0] if names else ""
    return Verdict(tuple(bad), tuple(placed), name, bool(entry.named) and entry.named in name)


def name_of(function) -> str:
    """Return the name of a kernel, which may be an object or a functools.partial."""
    return getattr(function, "__name__", "") or type(getattr(function, "func", function)).__name__


def _judge_number(name: str, number: int) -> tuple[Report, float]:
    start = time.perf_counter()
    trial = TRIALS[name]
    if number < len(trial.defective):
        report = judge(trial.defective[number].function, trial.defective[number].gradient)
    else:
        function = trial.correct[number - len(trial.defective)]
        report = judge(function, trial.gradients.get(function))
    return report, time.perf_counter() - start


class _Counts(NamedTuple):
    """How many of the defective kernels of a trial were found and named, or misnamed."""

    kernels: int
    found: int
    placed: int
    named: int
    misnamed: int

    @classmethod
    def of(cls, verdicts: Collection[Verdict]) -> "_Counts":
        return cls(
            len(verdicts),
            sum(bool(it.bad) for it in verdicts),
            sum(bool(it.placed) for it in verdicts),
            sum(it.named for it in verdicts),
            sum(bool(it.name) and not it.named for it in verdicts),
        )

    def limits(self) -> "_Counts":
        """Return what a trial of this size demands; of 60 kernels: 57, 57, 50 and at most 2."""
        found = -(-self.kernels * 19 // 20)
        return _Counts(self.kernels, found, found, -(-self.kernels * 5 // 6), self.kernels // 30)

    def lines(self) -> Iterator[str]:
        """Yield the counts, beside what the trial demands."""
        least = self.limits()
        yield f"found: {self.found} of {self.kernels} (at least {least.found})"
        yield f"at the right feature: {self.placed} (at least {least.placed})"
        yield f"named rightly: {self.named} (at least {least.named})"
        yield f"misnamed: {self.misnamed} (at most {least.misnamed})"

    def is_short(self) -> bool:
        """Return whether the trial demands more."""
        least = self.limits()
        short = self.found < least.found or self.placed < least.placed or self.named < least.named
        return short or self.misnamed > least.misnamed


def _judge_trial(name: str, pool: ProcessPoolExecutor) -> bool:
    """Print the verdict on each kernel of a trial; return whether the trial demands more."""
    trial = TRIALS[name]
    verdicts, accused, seconds = [], 0, []
    numbers = range(len(trial.defective) + len(trial.correct))
    results = pool.map(_judge_number, [name] * len(numbers), numbers)
    for entry, (report, took) in zip(trial.defective, results, strict=False):
        verdict = decide(entry, report)
        verdicts.append(verdict)
        seconds.append(took)
        where = ", ".join(verdict.placed or verdict.bad) or "NOT FOUND"
        mark = "named" if verdict.named else "MISNAMED" if verdict.name else "NOT NAMED"
        print(f"{name_of(entry.function)} ({took:.1f} s): {where}; {mark}", flush=True)
        print(f"    the table: {entry.says}\n    the card:  {verdict.name}")
    for function, (report, took) in zip(trial.correct, results, strict=True):
        wrong = [feature for feature, status in report.features.items() if status == "wrong"]
        accused += bool(wrong)
        seconds.append(took)
        print(f"{name_of(function)} ({took:.1f} s): {', '.join(wrong) or 'right'}", flush=True)
    counts = _Counts.of(verdicts)
    print(f"The {name} trial", *counts.lines(), sep="\n")
    print(f"correct kernels called wrong: {accused} of {len(trial.correct)} (0)")
    print(f"a whole card takes {sum(seconds) / len(seconds):.1f} s, at most {max(seconds):.1f} s")
    return counts.is_short() or accused > 0


def main() -> int:
    """Judge all trials; return 1 if one of them demands more."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        return max([_judge_trial(name, pool) for name in TRIALS])


if __name__ == "__main__":
    sys.exit(main())
