"""Write verdicts to files for other programs: JUnit XML, or Gradescope's results.json.

CI systems and learning platforms read JUnit XML. Gradescope is a grading system, whose format is
described at
https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from xml.etree import ElementTree

from qkv.files import StrPath, replacing
from qkv_marking._result import CheckResult
from qkv_marking.files._class_table import ClassTable, Marked
from qkv_marking.files._plan import Column, Plan

# characters that XML 1.0 does not allow, even escaped
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = MappingProxyType({"right": "system-out", "fragile": "system-out", "wrong": "failure"})


class _Test(NamedTuple):
    """A test in a JUnit suite.

    The test passes if `status` is "right" or "fragile", and fails if it is "wrong". With any other
    `status`, the test counts as skipped.
    """

    name: str
    status: str
    message: str
    text: str
    mistakes: str = ""
    properties: Mapping[str, str] = MappingProxyType({})


def write_junit(
    path: StrPath, marked: Iterable[tuple[str, Sequence[CheckResult]]], hints: int = 1
) -> None:
    """Write a test suite per file, with one test per task.

    The file at `path` is replaced only when all the new content is written.

    Args:
        path: the file to write.
        marked: each file's name, and its verdicts.
        hints: the number of hints in a verdict's text, from 0 to 3.

    Raises:
        OSError: the file cannot be written.
    """
    suites = [
        _suite(file, [_of_verdict(result, hints) for result in results]) for file, results in marked
    ]
    _write(path, "qkv check", suites)


def write_features(path: StrPath, name: str, tests: Sequence[tuple[str, str, str]]) -> None:
    """Write a test suite with one test per feature of a report.

    The file at `path` is replaced only when all the new content is written.

    Args:
        path: the file to write.
        name: the function that was judged.
        tests: the name, the status ("right", "wrong", "fragile", "refused" or "absent") and a
            remark for each feature.
    """
    rows = [
        _Test(feature, status, f"{status}: {words.partition(chr(10))[0]}", words)
        for feature, status, words in tests
    ]
    _write(path, "qkv conform", [_suite(name, rows)])


def write_gradescope(
    path: StrPath,
    marked: Sequence[Marked],
    plan: Plan | None = None,
    hints: int = 1,
    take: str = "best",
) -> None:
    """Write the verdicts on one student's files for Gradescope: one test per task.

    If the plan lists the tasks, the best file counts for each task; otherwise, each
    task of each file is a test.

    Args:
        path: the file to write.
        marked: each file's name, and its verdicts.
        plan: the chosen tasks and the points of each task.
        hints: the number of hints in a verdict's text, from 0 to 3.
        take: which file counts for a task, "best" or "latest".

    Raises:
        OSError: the file cannot be written.
    """
    plan = plan or Plan()
    if plan.columns:
        best = ClassTable(marked, plan=plan, take=take).pick_best(marked)
        whole = "\n\n".join(result.text(hints) for result in best.get(None, ("", ()))[1])
        tests = [
            _of_task(c.title, min(best[c][1], key=lambda result: result.points), c, hints)
            if c in best
            else _test(c.title, 0, c.most, False, whole or "nothing was handed in for this task")
            for c in plan.columns
        ]
    else:
        tests = [
            _of_task(
                f"{os.path.basename(file)}: {result.task or 'file'}"
                if len(marked) > 1
                else result.task or os.path.basename(file),
                result,
                plan.column(result.task or "", file),
                hints,
            )
            for file, results in marked
            for result in results
        ]
    score = round(sum(test["score"] for test in tests), 2)
    with replacing(path) as out:
        text = json.dumps({"score": score, "tests": tests}, indent=1)
        out.write(text.encode("utf-8", "replace") + b"\n")


def _of_task(name: str, result: CheckResult, column: Column, hints: int) -> dict[str, Any]:
    points = column.weigh(result.points)
    passed = result.passed and points == column.most if result.by_teacher else result.passed
    return _test(name, points, column.most, passed, result.text(hints))


def _test(name: str, score: float, most: float, passed: bool, output: str) -> dict[str, Any]:
    status = "passed" if passed else "failed"
    return {"name": name, "score": score, "max_score": most, "status": status, "output": output}


def _of_verdict(result: CheckResult, hints: int) -> _Test:
    properties = {"points": f"{result.points:g}"}
    for key in ("mistakes", "fragile", "conventions"):
        properties[key] = " ".join(getattr(result, key))
    return _Test(
        result.task or "file",
        "right" if result.passed else "wrong",
        result.message.partition("\n")[0],
        result.text(hints),
        properties["mistakes"],
        properties,
    )


def _suite(name: str, tests: Sequence[_Test]) -> ElementTree.Element:
    statuses = [test.status for test in tests]
    wrong = statuses.count("wrong")
    counts = {"tests": len(tests), "failures": wrong, "errors": 0}
    counts["skipped"] = sum(status not in _ELEMENTS for status in statuses)
    attributes = {key: str(count) for key, count in counts.items()}
    suite = ElementTree.Element("testsuite", {"name": _clean(name), **attributes})
    for test in tests:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(name), name=test.name)
        if test.properties:
            properties = ElementTree.SubElement(case, "properties")
            for key, value in test.properties.items():
                ElementTree.SubElement(properties, "property", name=key, value=value)
        output = ElementTree.SubElement(case, _ELEMENTS.get(test.status, "skipped"))
        output.text = _clean(test.text)
        if test.status != "right":
            output.set("message", _clean(test.message))
        if test.mistakes:
            output.set("type", test.mistakes)
    return suite


def _write(path: StrPath, title: str, suites: list[ElementTree.Element]) -> None:
    root = ElementTree.Element("testsuites", name=title)
    for count in ("tests", "failures"):
        root.set(count, str(sum(int(suite.attrib[count]) for suite in suites)))
    root.extend(suites)
    ElementTree.indent(root)
    with replacing(path) as out:
        ElementTree.ElementTree(root).write(out, encoding="utf-8", xml_declaration=True)


def _clean(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
