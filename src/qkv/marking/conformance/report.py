"""The report card: features right, wrong, refused or absent, and what went wrong."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from qkv.files import replacing
from qkv.marking.conformance.explain import Explanation
from qkv.marking.conformance.runs import CaseResult

_SLIGHT = 3  # kinds of refused cases that are named


@dataclass(frozen=True)
class Finding:
    """What is to say of a feature that is not simply right.

    Attributes:
        case: the smallest case that shows it.
        explanation: which known defect would give just that, if any.
        like: the feature at which that was found, if another one's.
    """

    case: CaseResult
    explanation: Explanation | None = None
    like: str = ""


@dataclass(frozen=True, repr=False, eq=False)
class Report:
    """The report card of a function. It is true where nothing is wrong.

    Attributes:
        name: what was judged.
        features: by name "right", "wrong", "refused" (it raises an error) or "absent" (it has no
            argument for it).
        cases: what came of each case, with `.case`, `.status`, `.error` and `.bound`.
        findings: of each feature that is wrong or refused the smallest case that shows it, and
            which known defect explains it.
    """

    name: str
    features: Mapping[str, str]
    cases: tuple[CaseResult, ...]
    findings: Mapping[str, Finding] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return "wrong" not in self.features.values()

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """The card in words, as `qkv conform` prints it."""
        lines = [f"{self.name}: {self.summary()}"]
        for name, status in self.features.items():
            lines.append(f"  {name:<22}{status:<9}{self.remark(name)}".rstrip())
            lines += [textwrap.indent(line, " " * 33) for line in self.details(name)]
        return "\n".join(lines)

    def summary(self) -> str:
        """How many features are right, wrong, refused and absent."""
        kinds = ("right", "wrong", "refused", "absent")
        counts = {kind: [*self.features.values()].count(kind) for kind in kinds}
        return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)

    def remark(self, feature: str) -> str:
        """A few words on a feature: its largest error, or what went wrong."""
        status = self.features[feature]
        finding = self.findings.get(feature)
        if finding is not None and status == "wrong":
            if finding.explanation is not None:
                same = f", as at {finding.like}" if finding.like else ""
                if finding.explanation.beside and not same:
                    same = f" (beside what is wrong at {', '.join(finding.explanation.beside)})"
                return f"as if {finding.explanation.says}{same}"
            if finding.like:
                return f"as at {finding.like}"
            return finding.case.message or "no known defect gives just this"
        mine = [one for one in self.cases if one.feature == feature]
        if finding is not None:
            return finding.case.message
        if status == "absent" or not mine:
            return ""
        good = [one for one in mine if one.status == "right"]
        pairs = [(one.error, one.bound) for one in good if one.error is not None and one.bound]
        error, bound = max(pairs, key=lambda pair: pair[0] / pair[1], default=(0.0, 0.0))
        cases = "1 case" if len(good) == 1 else f"{len(good)} cases"
        told = f"{cases}, error {error:.1e} of {bound:.1e} allowed"
        refused = [one.case.name for one in mine if one.status == "refused"]
        like = [one.like for one in mine if one.like]
        if like:
            verb = "is" if len(like) == 1 else "are"
            told += f"; {len(like)} more {verb} wrong as at {', '.join(dict.fromkeys(like))}"
        if refused:
            more = f" and {len(refused) - _SLIGHT} more" if len(refused) > _SLIGHT else ""
            told += f"; refused: {', '.join(refused[:_SLIGHT])}{more}"
        return told

    def details(self, feature: str) -> list[str]:
        """Lines on what went wrong: the smallest case, and how the formula would have to read."""
        finding = self.findings.get(feature)
        if finding is None:
            return []
        mine = [one for one in self.cases if one.feature == feature]
        bad = sum(one.status != "right" for one in mine)
        call = str(finding.case) if finding.case.error is not None else finding.case.case.shown()
        lines = [f"{bad} of {len(mine)} cases; the smallest: {call}"]
        if finding.explanation is not None and not finding.like:
            for line, instead in finding.explanation.lines:
                lines += [f"- {one}" for one in line.splitlines()]
                lines += [f"+ {one}" for one in instead.splitlines()]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The card as JSON holds it."""
        return {
            "name": self.name,
            "passed": self.passed,
            "features": dict(self.features),
            "findings": {name: _finding(one) for name, one in self.findings.items()},
            "cases": [_case(one) for one in self.cases],
        }

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the card as one HTML page that needs no network, whole or not at all."""
        page = files(__package__).joinpath("card.html").read_text("utf-8")
        text = Template(page).substitute(
            name=escape(self.name),
            summary=escape(f"{self.summary()}, in {len(self.cases)} cases"),
            rows="\n".join(map(self._section, self.features)),
        )
        with replacing(path) as out:
            out.write(text.encode())

    def _section(self, feature: str) -> str:
        """Write a feature as HTML."""
        status, says = self.features[feature], escape(self.remark(feature))
        if lines := self.details(feature):
            says += f"<pre>{chr(10).join(map(_html_line, lines))}</pre>"
        return (
            f'<section><h2>{escape(feature)}</h2><span class="status {status}">{status}</span>'
            f'<div class="says">{says}</div></section>'
        )

    def to_junit(self, path: str | os.PathLike[str]) -> None:
        """Write a test for each feature as JUnit XML; what is refused or absent is skipped."""
        from qkv.marking.files.exports import write_features

        tests = [(name, status, self._told(name)) for name, status in self.features.items()]
        write_features(path, self.name, tests)

    def _told(self, feature: str) -> str:
        return "\n".join([self.remark(feature), *self.details(feature)])


def _html_line(line: str) -> str:
    """Mark a removed or an added line of the formula."""
    tag = {"- ": "del", "+ ": "ins"}.get(line[:2])
    return f"<{tag}>{escape(line)}</{tag}>" if tag else escape(line)


def _finding(finding: Finding) -> dict[str, Any]:
    found = finding.explanation
    return {
        "case": _case(finding.case),
        "as_if": None if found is None else found.says,
        "defects": [] if found is None else [*found.defects],
        "lines": [] if found is None else [[*pair] for pair in found.lines],
        "explains": None if found is None else [*found.explains],
    }


def _case(result: CaseResult) -> dict[str, Any]:
    return {
        "feature": result.feature,
        "name": result.case.name,
        "status": result.status,
        "error": _number(result.error),
        "bound": _number(result.bound),
        "message": result.message,
        "call": result.case.shown(),
        "case": json.loads(json.dumps(result.case.packed())),
    }


def _number(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return str(value) if value is not None and abs(value) == float("inf") else value


def status_of(results: Sequence[CaseResult]) -> str:
    """Of a feature's cases: what is wrong in one is wrong; the optional ones may be refused.

    Those that show what is wrong with another feature count where there are no others.
    """
    results = [one for one in results if not one.like] or results
    kinds = {one.status for one in results}
    if "wrong" in kinds:
        return "wrong"
    needed = [one for one in results if not one.case.optional] or [*results]
    return "refused" if any(one.status == "refused" for one in needed) else "right"
