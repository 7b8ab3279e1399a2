"""Tests of damaged manifests: one error names the file, and says how to go on."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from qkv.scale._manifest import MANIFEST, Folder
from rows import failing

PART = {
    "name": "part-000000-0123abcd.parquet",
    "rows": 2,
    "skipped": [[1, "is empty"]],
    "bytes": 99,
    "checksum": "cd",
}
WHOLE: dict[str, Any] = {
    "qkv": 1,
    "model": {"name": "random", "checksum": "ab"},
    "column": "text",
    "sizes": {"block": 8, "bytes": 9, "rows": 2},
    "sources": [{"path": "a.txt", "rows": 3, "checksum": "ef"}],
    "whole": True,
    "parts": {"0": PART},
}
WAY = r"choose another folder, or start again with resume=False$"


def read(folder: Path, data: bytes) -> dict[str, Any] | None:
    (folder / MANIFEST).write_bytes(data)
    return Folder(str(folder)).manifest("scale.encode")


def test_a_complete_manifest_is_read_unchanged(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps(WHOLE).encode()) == WHOLE
    assert Folder(str(tmp_path / "none")).manifest("scale.encode") is None


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe{}", b"null x", b"[" * 100_000, b'{"qkv":' * 100_000, b"9" * 10_000],
    ids=["empty", "open", "not UTF-8", "more", "lists", "objects", "digits"],
)
def test_a_manifest_that_is_not_json_is_refused(data: bytes, tmp_path: Path) -> None:
    said = rf"^scale.encode: \S+{MANIFEST} cannot be read \(it is not JSON: .*\): {WAY}"
    with pytest.raises(ValueError, match=said):
        read(tmp_path, data)


def put(names: tuple[Any, ...], value: Any) -> bytes:
    """Return the manifest with a value at the path `names`; with `put`, without this entry."""
    whole = data = copy.deepcopy(WHOLE)
    for name in names[:-1]:
        data = data[name]
    if value is put:
        del data[names[-1]]
    else:
        data[names[-1]] = value
    return json.dumps(whole).encode()


PLACES: list[tuple[Any, ...]] = [
    *[(name,) for name in WHOLE if name != "whole"],
    *[("model", name) for name in WHOLE["model"]],
    *[("sizes", name) for name in WHOLE["sizes"]],
    *[("sources", 0, name) for name in WHOLE["sources"][0]],
    *[("parts", "0", name) for name in PART],
]


VALUES = [put, None, True, -1, 1.5, 10**30, 1e999, [[]], {"x": 1}, [1]]


@pytest.mark.parametrize("names", PLACES, ids=lambda names: ".".join(map(str, names)))
def test_missing_values_and_wrong_types_are_refused(names: tuple, tmp_path: Path) -> None:
    text = names[-1] in ("name", "checksum", "column", "path")
    for value in [*VALUES, [] if text else "text"]:
        said = rf"^scale.encode: .*{MANIFEST} cannot be read \(.*{WAY}"
        with failing(value), pytest.raises(ValueError, match=said):
            read(tmp_path, put(names, value))


@pytest.mark.parametrize(
    ("names", "value", "said"),
    [
        (("qkv",), 2, "qkv is 2 and must be a whole number, 1"),
        (("column",), put, "it is .* and must be an object with column"),
        (("parts", "0", "rows"), "x", "rows is 'x' and must be a whole number, 0 to 2147483647"),
        (("parts", "0", "name"), "../../etc/passwd", "name is .* and must be the name of a part"),
        (("parts", "x"), PART, "parts is .* and must be an object whose names are numbers"),
        (("parts", "0", "skipped"), [[1]], r"skipped is \[1\] and must be a list of 2"),
        (("sizes", "block"), 0, "block is 0 and must be a whole number, 1 to 2147483647"),
    ],
)
def test_the_error_names_the_invalid_value(
    names: tuple, value: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"cannot be read \({said}\): {WAY}"):
        read(tmp_path, put(names, value))


def test_a_folder_in_place_of_the_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    said = (
        rf"^scale.encode: .*{MANIFEST} cannot be read \(.*\): "
        r"choose another folder, or remove this file"
    )
    with pytest.raises(ValueError, match=said):
        Folder(str(tmp_path)).manifest("scale.encode")


@pytest.mark.parametrize("data", [b"\xff\xff \xff", b"run", b"run x", b"run 1e999", b"run nan"])
def test_a_damaged_lock_on_another_file_system_is_taken_over(data: bytes) -> None:
    from qkv.scale._manifest import LOCK, writing

    folder = Folder("memory://damaged-lock")
    folder.make()
    folder.write(LOCK, data)
    with writing(folder, "mine", "scale.encode"):
        assert folder.is_ours("mine")
