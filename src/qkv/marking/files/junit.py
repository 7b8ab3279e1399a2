"""Verdicts as JUnit XML, which continuous integration and learning platforms read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from qkv.files import replacing
from qkv.marking.result import CheckResult

# what XML 1.0 cannot hold, not even escaped
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(
    path: str | os.PathLike[str], marked: Iterable[tuple[str, Sequence[CheckResult]]]
) -> None:
    """Write a test suite for each file, with a test for each task; whole or not at all.

    Args:
        path: where to.
        marked: each file's name, and its verdicts.

    Raises:
        OSError: it cannot be written.
    """
    _write(path, "qkv check", [_suite(file, results) for file, results in marked])


def write_features(
    path: str | os.PathLike[str], name: str, tests: Sequence[tuple[str, str, str]]
) -> None:
    """Write a test suite with a test for each feature of a report; whole or not at all.

    Args:
        path: where to.
        name: what was judged.
        tests: of each feature its name, "right", "wrong", "refused" or "absent", and words on it.
    """
    suite = ElementTree.Element("testsuite", name=_clean(name), errors="0")
    kinds = {"right": "system-out", "wrong": "failure"}
    for feature, status, words in tests:
        test = ElementTree.SubElement(suite, "testcase", classname=_clean(name), name=feature)
        told = ElementTree.SubElement(test, kinds.get(status, "skipped"))
        told.text = _clean(words)
        if status != "right":
            told.set("message", _clean(f"{status}: {words.partition(chr(10))[0]}"))
    statuses = [status for _, status, _ in tests]
    suite.set("tests", str(len(tests)))
    suite.set("failures", str(statuses.count("wrong")))
    suite.set("skipped", str(statuses.count("refused") + statuses.count("absent")))
    _write(path, "qkv conform", [suite])


def _write(path: str | os.PathLike[str], title: str, suites: list[ElementTree.Element]) -> None:
    root = ElementTree.Element("testsuites", {"name": title, **_counts(suites)})
    root.extend(suites)
    ElementTree.indent(root)
    with replacing(path) as out:
        ElementTree.ElementTree(root).write(out, encoding="utf-8", xml_declaration=True)


def _suite(file: str, results: Sequence[CheckResult]) -> ElementTree.Element:
    tests = [_test(file, result) for result in results]
    failures = sum(not result.passed for result in results)
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(file),
        tests=str(len(tests)),
        failures=str(failures),
        errors="0",
        skipped="0",
    )
    suite.extend(tests)
    return suite


def _test(file: str, result: CheckResult) -> ElementTree.Element:
    name = result.task or "file"
    test = ElementTree.Element("testcase", classname=_clean(file), name=name)
    properties = ElementTree.SubElement(test, "properties")
    for key in ("points", "mistakes", "fragile", "conventions"):
        value = getattr(result, key)
        text = str(value) if isinstance(value, int) else " ".join(value)
        ElementTree.SubElement(properties, "property", name=key, value=text)
    kind = "system-out" if result.passed else "failure"
    told = ElementTree.SubElement(test, kind)
    if not result.passed:
        told.set("message", _clean(result.message.partition("\n")[0]))
        told.set("type", " ".join(result.mistakes))
    told.text = _clean(str(result))
    return test


def _counts(suites: Iterable[ElementTree.Element]) -> dict[str, str]:
    """How many tests and failures there are in all."""
    every = [suite.attrib for suite in suites]
    return {name: str(sum(int(one[name]) for one in every)) for name in ("tests", "failures")}


def _clean(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
