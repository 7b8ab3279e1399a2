"""Tests of `qkv encode --cluster`: its arguments and its messages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from qkv.cli import main
from qkv.scale.workers import connect


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with connect("local:1", "test") as client:
        yield client.scheduler.address


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("the cat\non the mat\n" * 300)
    return ["encode", str(tmp_path / "*.txt"), "--model", "random"]


def run(*arguments: str) -> tuple[int, str, str]:
    """Return the exit code, the standard output and the standard error."""
    found = CliRunner().invoke(main, list(arguments))
    return found.exit_code, found.stdout, found.stderr


def error_of(*arguments: str) -> str:
    """Return the standard error of a call that is refused."""
    code, _, errors = run(*arguments)
    assert code == 2
    return errors


def test_many_files_on_a_cluster(files: list[str], address: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    code, said, errors = run(*files, "-o", out, "--cluster", address, "--json")
    assert (code, errors) == (0, f"qkv encode: 1,200 rows, 4 parts, wrote {out}\n")
    assert json.loads(said) == {"rows": 1200, "skipped": [], "parts": 4, "output": out}
    assert json.loads((tmp_path / "out" / "_manifest.json").read_text())["whole"]


def test_columns_are_kept(address: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,name\nthe cat,Ann\non the mat,Bob\n")
    out = tmp_path / "out"
    asked = ["encode", str(tmp_path / "a.csv"), "-o", str(out), "--model", "random"]
    code, _, errors = run(*asked, "--cluster", address, "--keep", "name")
    assert code == 0, errors
    [part] = out.glob("*.parquet")
    assert pq.read_table(part)["name"].to_pylist() == ["Ann", "Bob"]
    assert "--keep needs a cluster: add --cluster local" in error_of(*asked, "--keep", "name")
    more = ["--cluster", address, "--keep", "name", "--keep", "text"]
    assert "but --keep is ['name', 'text']: " in error_of(*asked, *more)


def test_a_dry_run_writes_nothing(files: list[str], address: str, tmp_path: Path) -> None:
    code, said, errors = run(*files, "--cluster", address, "--dry-run", "--json")
    assert code == 0
    assert re.fullmatch(
        "qkv encode: 1,200 rows, 4 parts, (less than a second|about .* seconds)\n", errors
    )
    found = json.loads(said)
    assert (found["rows"], found["parts"]) == (1200, 4)
    assert 0 < found["hours"] < 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_a_bad_row_is_named_or_skipped(files: list[str], address: str, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"the cat\n" * 40 + b"the \xff\n")
    arguments = [*files, "-o", str(tmp_path / "out"), "--cluster", address]
    said = (
        "b.txt, row 40 is not UTF-8: byte 5 is 0xff: "
        "correct it, or skip bad rows with --on-error skip"
    )
    assert error_of(*arguments).endswith(f"{said}\n")
    assert not (tmp_path / "out").exists()
    code, _, errors = run(*arguments, "--on-error", "skip")
    assert code == 0
    assert "640 rows, skipped 1, " in errors


def test_no_resume_replaces_the_vectors_of_changed_sources(
    files: list[str], address: str, tmp_path: Path
) -> None:
    arguments = [*files, "-o", str(tmp_path / "out"), "--cluster", address]
    assert run(*arguments)[0] == 0
    (tmp_path / "b.txt").write_text("the mat\n")
    errors = error_of(*arguments)
    assert "b.txt has changed since" in errors
    assert errors.endswith("choose another folder, or start again with --no-resume\n")
    code, _, errors = run(*arguments, "--no-resume")
    assert code == 0
    assert "601 rows, " in errors


@pytest.mark.parametrize("option", [["--on-error", "skip"], ["--no-resume"]])
def test_options_for_many_files_need_a_cluster(
    option: list[str], files: list[str], tmp_path: Path
) -> None:
    errors = error_of(*files, "-o", str(tmp_path / "a.npy"), *option)
    assert f"{option[0]} needs a cluster: add --cluster local" in errors


@pytest.mark.parametrize("where", ["local:", "local:0", "local:x", "local:-1"])
def test_an_invalid_number_of_workers_is_refused(
    where: str, files: list[str], tmp_path: Path
) -> None:
    errors = error_of(*files, "-o", str(tmp_path / "out"), "--cluster", where)
    assert f"the cluster is {where}; pass local:N with N from 1 to 1024" in errors
