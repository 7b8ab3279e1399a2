"""Judge the planted kernels, and compare the cards with the tables.

`make judge` runs this module as a program: it judges all kernels by all cases, in two processes.
"""

import sys
import time
import warnings
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from qkv_marking.conformance.card import conform
from qkv_marking.conformance.report import Report

from .decode import DECODE
from .dtypes import DTYPES
from .entry import Entry, change
from .foreign import FOREIGN
from .gradients import GRADIENTS
from .heads import HEADS
from .masks import MASKS
from .right import RIGHT
from .right_full import RIGHT_FULL, RIGHT_GRADIENTS
from .scores import SCORES
from .sinks import SINKS
from .softmax import SOFTMAX
from .tiles import TILES

TABLES = {
    "masks": MASKS,
    "scores": SCORES,
    "softmax": SOFTMAX,
    "tiles": TILES,
    "sinks": SINKS,
    "decode": DECODE,
    "dtypes": DTYPES,
    "heads": HEADS,
    "gradients": GRADIENTS,
    "foreign": FOREIGN,
}


def _name_of(kernel):
    """Return the name of a kernel, which may be an object or a functools.partial."""
    kernel = getattr(kernel, "func", kernel)
    return getattr(kernel, "__name__", type(kernel).__name__).strip("_")


DEFECTIVE = {f"{table}.{name}": it for table, them in TABLES.items() for name, it in them.items()}
_ALL = (
    "attn_mask is_causal q_offset window bias alibi_slopes softcap sinks scale query_lengths"
    " key_lengths return_weights return_lse"
)
_BASES = {
    "plain": change("plain", {}, _ALL),
    "tiled": change("tiled", {}, _ALL),
    "split": change("split", {}, _ALL.replace(" return_weights", "")),
}
CORRECT = _BASES | {_name_of(it): it for it in (*RIGHT, *RIGHT_FULL)}
CORRECT_GRADIENTS = RIGHT_GRADIENTS | {
    _BASES["plain"]: change(
        "backward", {}, "attn_mask is_causal q_offset window bias softcap scale key_lengths"
    )
}


class Verdict(NamedTuple):
    """What the card says of a defective kernel.

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
    feature, words = next(iter(entry.card.items()))
    fragile = {feature: "fragile"}
    bad = [f for f, status in report.features.items() if status in ("wrong", fragile.get(f))]
    placed = [f for f in entry.card if f in bad]
    # an explanation and a message are names of the defect; an error alone is none
    findings = {f: report.findings[f] for f in placed}
    names = [report.remark(f) for f, it in findings.items() if it.explanation or it.case.message]
    name = names[0] if names else ""
    return Verdict(tuple(bad), tuple(placed), name, bool(words) and words in name)


def _judge_named(name: str) -> tuple[Report, float]:
    start = time.perf_counter()
    if name in DEFECTIVE:
        report = judge(*DEFECTIVE[name].functions())
    else:
        report = judge(CORRECT[name], CORRECT_GRADIENTS.get(CORRECT[name]))
    return report, time.perf_counter() - start


class _Counts(NamedTuple):
    """How many of the defective kernels were found and named, or misnamed."""

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
        """Return what is demanded; of 60 kernels: 57, 57, 50 and at most 2."""
        found = -(-self.kernels * 19 // 20)
        return _Counts(self.kernels, found, found, -(-self.kernels * 5 // 6), self.kernels // 30)

    def lines(self) -> Iterator[str]:
        """Yield the counts, beside what is demanded."""
        least = self.limits()
        yield f"found: {self.found} of {self.kernels} (at least {least.found})"
        yield f"at the right feature: {self.placed} (at least {least.placed})"
        yield f"named rightly: {self.named} (at least {least.named})"
        yield f"misnamed: {self.misnamed} (at most {least.misnamed})"

    def is_short(self) -> bool:
        """Return whether more is demanded."""
        least = self.limits()
        short = self.found < least.found or self.placed < least.placed or self.named < least.named
        return short or self.misnamed > least.misnamed


def main() -> int:
    """Judge all kernels and print the verdicts; return 1 if more is demanded."""
    verdicts, accused, seconds = [], 0, []
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        names = [*DEFECTIVE, *CORRECT]
        for name, (report, took) in zip(names, pool.map(_judge_named, names), strict=True):
            seconds.append(took)
            if name in CORRECT:
                wrong = [feature for feature, it in report.features.items() if it == "wrong"]
                accused += bool(wrong)
                print(f"{name} ({took:.1f} s): {', '.join(wrong) or 'right'}", flush=True)
                continue
            verdict = decide(DEFECTIVE[name], report)
            verdicts.append(verdict)
            where = ", ".join(verdict.placed or verdict.bad) or "NOT FOUND"
            mark = "named" if verdict.named else "MISNAMED" if verdict.name else "NOT NAMED"
            print(f"{name} ({took:.1f} s): {where}; {mark}", flush=True)
            print(f"    the table: {DEFECTIVE[name].says}\n    the card:  {verdict.name}")
    counts = _Counts.of(verdicts)
    print(*counts.lines(), sep="\n")
    print(f"correct kernels called wrong: {accused} of {len(CORRECT)} (0)")
    print(f"a whole card takes {sum(seconds) / len(seconds):.1f} s, at most {max(seconds):.1f} s")
    return counts.is_short() or accused > 0


if __name__ == "__main__":
    sys.exit(main())
