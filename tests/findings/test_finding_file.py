"""Tests of the file of a finding: its contents, its schema, and invalid files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import qkv
from qkv.findings import schema

HEX = "0123456789abcdef" * 4
RIGHT: dict[str, Any] = {
    "qkv_finding": 1,
    "model": {"name": "books", "sha256": HEX},
    "text": "A _.",
    "position": 2,
    "edits": [{"op": "hide", "token": 1}],
    "claim": "",
    "before": [["cat", 0.5], ["dog", 0.25]],
    "after": [["dog", 1]],
}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in RIGHT.items() if key != name}


# Contents that are not a finding, and the error for each.
WRONG: dict[str, tuple[Any, str]] = {
    "a list": ([RIGHT], r"it is \[\{.*: it must be an object: what"),
    "a string": ("qkv", "it is 'qkv'"),
    "nothing": ({}, "it has no qkv_finding: its required fields are qkv_finding, model, text"),
    **{f"no {name}": (without(name), f"it has no {name}: ") for name in RIGHT},
    "an unknown key": ({**RIGHT, "note": 1}, "it has 'note': its required fields are qkv_finding"),
    "a later version": ({**RIGHT, "qkv_finding": 2}, "qkv_finding is 2: it must be 1, the version"),
    "true": ({**RIGHT, "qkv_finding": True}, "qkv_finding is True: it must be 1"),
    "a model's name": ({**RIGHT, "model": "books"}, "model is 'books': it must be an object"),
    "no digest": (
        {**RIGHT, "model": {"name": "books"}},
        "model has no sha256: its required fields are name",
    ),
    "a short digest": (
        {**RIGHT, "model": {"name": "books", "sha256": "ab"}},
        "model.sha256 is 'ab': it must be 64 hexadecimal digits",
    ),
    "a digest and a line": (
        {**RIGHT, "model": {"name": "books", "sha256": HEX + "\n"}},
        "model.sha256 is '0123",
    ),
    "no name": ({**RIGHT, "model": {"name": "", "sha256": HEX}}, "model.name is ''"),
    "ids": ({**RIGHT, "text": [1, 2]}, r"text is \[1, 2\]: it must be a string"),
    "no text": ({**RIGHT, "text": ""}, "text is ''"),
    "a position from the end": ({**RIGHT, "position": -1}, "position is -1: it must be the number"),
    "half a position": ({**RIGHT, "position": 1.5}, "position is 1.5"),
    "a position in words": ({**RIGHT, "position": "2"}, "position is '2'"),
    "edits by name": ({**RIGHT, "edits": {"op": "causal"}}, "edits is .*: it must be a list of"),
    "an unknown op": ({**RIGHT, "edits": [{"op": "hyde"}]}, r"edits\[0\] has op 'hyde': it"),
    "an edit with no token": ({**RIGHT, "edits": [{"op": "hide"}]}, r"edits\[0\] \(hide\) has no"),
    "no edit": ({**RIGHT, "edits": [7]}, r"edits\[0\] is 7; pass a record"),
    "a claim of numbers": ({**RIGHT, "claim": 7}, "claim is 7"),
    "no words": ({**RIGHT, "before": []}, r"before is \[\]: it must be 1 to 5 pairs"),
    "six words": ({**RIGHT, "before": [["a", 0.1]] * 6}, "before is .*: it must be 1 to 5 pairs"),
    "words alone": ({**RIGHT, "after": ["a"]}, r"after\[0\] is 'a': it must be a pair"),
    "a triple": ({**RIGHT, "after": [["a", 1, 2]]}, r"after\[0\] is \['a', 1, 2\]"),
    "numbers first": ({**RIGHT, "after": [[1, "a"]]}, r"after\[0\]\[0\] is 1: it must be a string"),
    "more than all": ({**RIGHT, "after": [["a", 1.5]]}, r"after\[0\]\[1\] is 1.5: it must be a n"),
    "less than nothing": ({**RIGHT, "after": [["a", -0.5]]}, r"after\[0\]\[1\] is -0.5"),
    "a probability in words": ({**RIGHT, "after": [["a", "1"]]}, r"after\[0\]\[1\] is '1'"),
    "a null": ({**RIGHT, "after": [["a", None]]}, r"after\[0\]\[1\] is None"),
}  # fmt: skip


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    Draft202012Validator.check_schema(schema())
    return Draft202012Validator(schema())


def file_of(folder: Path, content: Any) -> Path:
    path = folder / "finding.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_a_saved_file_holds_the_finding(
    glass: qkv.Finding, tmp_path: Path, validator: Draft202012Validator
) -> None:
    path = tmp_path / "glass.json"
    glass.save(path)
    held = json.loads(path.read_bytes())
    assert list(held) == list(RIGHT)
    assert held == glass.to_dict()
    assert held["edits"] == [{"op": "hide", "token": 4}]
    validator.validate(held)
    assert qkv.Finding.load(path) == glass
    assert [one.name for one in tmp_path.iterdir()] == ["glass.json"]


def test_any_letters_and_any_array_survive(model: qkv.Model, tmp_path: Path) -> None:
    z = model.trace("a [MASK] cat")["z", 0]
    found = qkv.finding(model, "a [MASK] cat", edit={("z", 0): z * 1.1}, claim="“Жук” </script>\n☃")
    found.save(tmp_path / "a.json")
    again = qkv.Finding.load(tmp_path / "a.json")
    assert again == found
    assert "Жук" in (tmp_path / "a.json").read_text("utf-8")
    assert again.verify().holds


def test_numbers_of_numpy_are_numbers_of_json(model: qkv.Model, tmp_path: Path) -> None:
    ones = np.ones(192, np.float32)
    edits: list[dict[str, Any]] = [
        {"op": "add", "at": "resid_pre", "layer": np.int64(1), "vector": vector}
        for vector in (ones, list(ones), tuple(ones))
    ]
    found = qkv.finding(model, "a [MASK] cat", edit=edits)
    found.save(tmp_path / "a.json")
    assert found.edits == [{**edits[0], "layer": 1, "vector": [1.0] * 192}] * 3
    assert qkv.Finding.load(tmp_path / "a.json") == found


def test_an_integer_is_a_probability_too(tmp_path: Path, validator: Draft202012Validator) -> None:
    validator.validate(RIGHT)
    found = qkv.Finding.load(file_of(tmp_path, RIGHT))
    assert found.after == [("dog", 1.0)]
    assert isinstance(found.after[0][1], float)


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_finding_is_refused_in_one_line(
    name: str, tmp_path: Path, validator: Draft202012Validator
) -> None:
    value, said = WRONG[name]
    assert not validator.is_valid(value)
    path = file_of(tmp_path, value)
    with pytest.raises(ValueError, match=f"^{path}: {said}") as raised:
        qkv.Finding.load(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 100_000,
        json.dumps({**RIGHT, "after": [["a", float("nan")]]}).encode(),
        json.dumps({**RIGHT, "position": float("inf")}).encode(),
        json.dumps(RIGHT).replace("0.5", "1e999").encode(),
        json.dumps(RIGHT).replace('"position": 2', f'"position": {"9" * 5000}').encode(),
    ],
    ids=["empty", "not UTF-8", "half", "deep", "NaN", "Infinity", "too large", "many digits"],
)
def test_damaged_files(content: bytes, tmp_path: Path) -> None:
    path = file_of(tmp_path, content)
    with pytest.raises(ValueError, match=f"^{path}(:| is not valid JSON:) ") as raised:
        qkv.Finding.load(path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < len(str(path)) + 400


def test_files_that_are_not_there_or_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        qkv.Finding.load(tmp_path / "nothing.json")
    monkeypatch.setattr("qkv.findings._finding_files._MAX_BYTES", 100)
    with pytest.raises(ValueError, match="bytes; pass a finding of at most 100 bytes"):
        qkv.Finding.load(file_of(tmp_path, RIGHT))
