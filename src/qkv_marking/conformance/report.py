"""The report card: the status of each feature, and an explanation of each error."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from qkv.files import StrPath, replacing
from qkv_marking._formula import list_diff
from qkv_marking.conformance._explain import Explanation
from qkv_marking.conformance._runs import CaseResult
from qkv_marking.files.page import mark_diff

_CAPTION = "the difference in the formula (-: as the function computes, +: right):"
_NAMED = 3  # the maximum number of refused cases to list


@dataclass(frozen=True)
class WrongCase:
    """The smallest wrong, fragile or refused case of a feature, and its explanation.

    Attributes:
        case: the smallest case that shows the error.
        explanation: the known defects that produce this result, or None.
        like: another feature that has the same error, or "".
    """

    case: CaseResult
    explanation: Explanation | None = None
    like: str = ""


@dataclass(frozen=True, repr=False, eq=False)
class Report:
    """The report card of a function; `bool(report)` is True if no feature is wrong.

    Attributes:
        name: the name of the function that was judged.
        features: the status of each feature: "right", "wrong", "fragile" (right except for inputs
            with NaN or infinity, rows that see nothing, or bits that differ between two runs),
            "refused" (the function raises an error) or "absent" (the function has no argument for
            the feature).
        cases: the result of each case, with `.case`, `.status`, `.error` and `.bound`.
        findings: a `WrongCase` for each wrong, fragile or refused feature, keyed by feature. A
            finding holds the smallest case with the error, and the known defects that explain it.
        limits: the limits of the function, such as "d is a multiple of 8". The function raises
            errors for other sizes, so the cases have only sizes within these limits.
        ignored: arguments that the function's `**options` accept, but that never change a result.
            Their features are absent.
        returned: the dtypes of results that differ from half-precision inputs, such as
            "float32 for float16". This is not an error: only the numbers are judged.
    """

    name: str
    features: Mapping[str, str]
    cases: tuple[CaseResult, ...]
    findings: Mapping[str, WrongCase] = field(default_factory=dict)
    limits: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no feature is wrong."""
        return "wrong" not in self.features.values()

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        """Return the card as text, as printed by `qkv conform`."""
        lines = [f"{self.name}: {self.summary()}", *self.notes()]
        for name, status in self.features.items():
            lines.append(f"  {name:<22}{status:<9}{self.remark(name)}".rstrip())
            lines += [textwrap.indent(line, " " * 33) for line in self.details(name)]
        return "\n".join(lines)

    __repr__ = __str__

    def summary(self) -> str:
        """Count the features that are right, wrong, fragile, refused and absent."""
        kinds = ("right", "wrong", "fragile", "refused", "absent")
        counts = {kind: [*self.features.values()].count(kind) for kind in kinds}
        return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)

    def notes(self) -> list[str]:
        """Return sentences about the whole function: limits, ignored arguments, other dtypes."""
        limits = f"Limits: {', and '.join(self.limits)}. The function refuses other sizes."
        ignored = f"Ignored: {', '.join(self.ignored)}. The function accepts these arguments in"
        ignored += " **options, but they never change its result."
        returned = f"Types: the function returns {' and '.join(self.returned)}."
        notes = ((limits, self.limits), (ignored, self.ignored), (returned, self.returned))
        return [note for note, those in notes if those]

    def remark(self, feature: str) -> str:
        """Describe the result of a feature, for example "as if the kernel ignored softcap"."""
        status = self.features[feature]
        finding = self.findings.get(feature)
        if finding is not None and status in ("wrong", "fragile"):
            if finding.explanation is not None:
                same = f", the same error as in {finding.like}" if finding.like else ""
                if finding.explanation.beside and not same:
                    same = f" (in addition to the error in {', '.join(finding.explanation.beside)})"
                return f"as if {finding.explanation.says}{same}"
            if finding.like:
                return f"the same error as in {finding.like}"
            return finding.case.message or "no known defect gives this result"
        results = self._results(feature)
        if finding is not None:
            return finding.case.message
        if status == "absent" or not results:
            return ""
        good = [result for result in results if result.status == "right"]
        pairs = [(case.error, case.bound) for case in good if case.error is not None and case.bound]
        error, bound = max(pairs, key=lambda pair: pair[0] / pair[1], default=(0.0, 0.0))
        cases = "1 case" if len(good) == 1 else f"{len(good)} cases"
        remark = f"{cases}, error {error:.1e} (at most {bound:.1e} is allowed)"
        refused = [result.case.name for result in results if result.status == "refused"]
        like = [result.like for result in results if result.like]
        if like:
            verb = "is" if len(like) == 1 else "are"
            remark += (
                f"; {len(like)} more {verb} wrong, with the same error as in"
                f" {', '.join(dict.fromkeys(like))}"
            )
        if refused:
            more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
            remark += f"; refused: {', '.join(refused[:_NAMED])}{more}"
        return remark

    def _results(self, feature: str) -> list[CaseResult]:
        return [result for result in self.cases if result.feature == feature]

    def details(self, feature: str) -> list[str]:
        """Return lines of text: the smallest wrong case of a feature, and the changed formula."""
        finding = self.findings.get(feature)
        if finding is None:
            return []
        results = self._results(feature)
        bad = sum(result.status != "right" for result in results)
        call = str(finding.case) if finding.case.error is not None else finding.case.case.describe()
        lines = [f"not right: {bad} of {len(results)} cases; the smallest of them: {call}"]
        if finding.explanation is not None and not finding.like:
            explained, compared = finding.explanation.explains
            lines.append(f"the defect explains {explained} of the {compared} wrong cases compared")
            lines.append(_CAPTION)
            lines += list_diff(finding.explanation.lines)
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the card as a dict for JSON."""
        return {
            "name": self.name,
            "passed": self.passed,
            "features": dict(self.features),
            "limits": [*self.limits],
            "ignored": [*self.ignored],
            "returned": [*self.returned],
            "findings": {name: _finding(finding) for name, finding in self.findings.items()},
            "cases": [*map(_case, self.cases)],
        }

    def to_html(self, path: StrPath) -> None:
        """Write the card as an HTML page that works offline.

        The file at `path` is replaced only when the page is complete.
        """
        page = files(__package__).joinpath("card.html").read_text("utf-8")
        text = Template(page).substitute(
            name=escape(self.name),
            summary=escape(f"{self.summary()}, in {len(self.cases)} cases"),
            notes="\n".join(f"<p>{escape(note)}</p>" for note in self.notes()),
            rows="\n".join(map(self._section, self.features)),
        )
        with replacing(path) as out:
            out.write(text.encode())

    def _section(self, feature: str) -> str:
        """Write a feature as HTML."""
        status, says = self.features[feature], escape(self.remark(feature))
        if lines := self.details(feature):
            says += f"<pre>{chr(10).join(map(mark_diff, lines))}</pre>"
        return (
            f'<section><h2>{escape(feature)}</h2><span class="status {status}">{status}</span>'
            f'<div class="says">{says}</div></section>'
        )

    def to_junit(self, path: StrPath) -> None:
        """Write the results as JUnit XML, with one test case for each feature.

        Only wrong features fail; the test cases of refused and absent features are skipped.
        """
        from qkv_marking.files.junit_gradescope import write_features

        tests = [
            (name, status, "\n".join([self.remark(name), *self.details(name)]))
            for name, status in self.features.items()
        ]
        write_features(path, self.name, tests)


def _finding(finding: WrongCase) -> dict[str, Any]:
    cause = finding.explanation
    return {
        "case": _case(finding.case),
        "as_if": None if cause is None else cause.says,
        "defects": [] if cause is None else [*cause.defects],
        # pairs of the function's line and the right line
        "lines": [] if cause is None else [[instead, line] for line, instead in cause.lines],
        "explains": None if cause is None else [*cause.explains],
    }


def _case(result: CaseResult) -> dict[str, Any]:
    return {
        "feature": result.feature,
        "name": result.case.name,
        "status": result.status,
        "error": _number(result.error),
        "bound": _number(result.bound),
        "message": result.message,
        "call": result.case.describe(),
        "case": json.loads(json.dumps(result.case.pack())),
    }


def _number(value: float | None) -> float | str | None:
    """Turn infinity into a string, because JSON has no infinity."""
    return str(value) if value is not None and abs(value) == float("inf") else value


def status_of(results: Sequence[CaseResult]) -> str:
    """Return the status of a feature; one wrong case makes the feature wrong.

    The function may refuse optional cases. A case does not count if its wrong result comes from a
    defect in a different feature; if no case is left, all cases count.
    """
    results = [result for result in results if not result.like] or results
    for status in ("wrong", "fragile"):
        if any(result.status == status for result in results):
            return status
    needed = [result for result in results if not result.case.optional] or results
    return "refused" if any(result.status == "refused" for result in needed) else "right"
