"""Tests of `qkv replay`: its output, its files, and rejected arguments."""

import json
from pathlib import Path

import pytest

from qkv.see import replay
from see.training import STEPS, TEXT, run_folder

from .test_cli import refused, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("run"))


def test_it_prints_the_view(folder: Path) -> None:
    result = run("replay", str(folder), TEXT)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.strip() == str(replay(folder, TEXT))


def test_json_is_the_numbers_of_the_view(folder: Path) -> None:
    result = run("replay", str(folder), TEXT, "--json", "--layer", "0", "--head", "1")
    assert result.stdout.count("\n") == 1
    data = json.loads(result.stdout)
    assert (data["layer"], data["head"], data["steps"]) == (0, 1, STEPS)
    assert data == json.loads(json.dumps(replay(folder, TEXT, layer=0, head=1).to_dict()))


@pytest.mark.parametrize(
    ("name", "begins"), [("a.html", b"<!doctype"), ("a.svg", b"<svg"), ("a.png", b"\x89PNG")]
)
def test_the_output_format_follows_the_file_suffix(
    folder: Path, tmp_path: Path, name: str, begins: bytes
) -> None:
    path = tmp_path / name
    result = run("replay", str(folder), TEXT, "-o", str(path))
    assert result.exit_code == 0
    assert result.stderr == f"qkv replay: wrote {path}\n"
    assert path.read_bytes().startswith(begins)


def test_refusals_are_one_line(folder: Path, tmp_path: Path) -> None:
    assert "does not exist" in refused(run("replay", "/nowhere", TEXT), "replay")
    assert "has no snapshots" in refused(run("replay", str(tmp_path), TEXT), "replay")
    assert "the text is empty" in refused(run("replay", str(folder), " "), "replay")
    assert "no layer 2" in refused(run("replay", str(folder), TEXT, "--layer", "2"), "replay")
    bad = run("replay", str(folder), TEXT, "-o", str(tmp_path / "a.gif"))
    assert "must end in .html or .htm or .svg or .png" in refused(bad, "replay")
    assert "Missing argument 'TEXT'" in refused(run("replay", str(folder)), "replay")


def test_a_truncated_text_gives_one_warning(folder: Path) -> None:
    result = run("replay", str(folder), "the cat sat on a mat " * 5)
    assert result.exit_code == 0
    assert result.stderr == "qkv replay: warning: 1 of 1 text was cut to 16 tokens (it has 32)\n"
