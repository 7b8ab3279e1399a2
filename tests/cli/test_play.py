"""Tests of `qkv play`: its output, its files, and rejected arguments."""

import webbrowser
from pathlib import Path

import pytest

import qkv
from models.support import mask_bert
from qkv.see import play

from .test_cli import refused, run

TEXT = "the cat sat on the [MASK]."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("mask") / "small"
    mask_bert(made)
    return str(made)


def test_play_writes_the_page_and_prints_the_view(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    result = run("play", TEXT, "--model", folder, "-o", str(path))
    assert (result.exit_code, result.stderr) == (0, f"qkv play: wrote {path}\n")
    view = play(TEXT, model=qkv.load(folder))
    assert result.stdout.strip() == str(view).strip()
    assert path.read_text("utf-8") == view._document()


def test_a_text_and_a_file_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    result = run("play", "--open")
    assert (result.exit_code, result.stderr) == (0, "qkv play: wrote qkv-play.html\n")
    assert opened == [(tmp_path / "qkv-play.html").as_uri()]
    assert [path.name for path in tmp_path.iterdir()] == ["qkv-play.html"]
    assert play().sentence in result.stdout


def test_hide_and_ablate_apply_when_the_page_opens(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    options = ["--hide", "cat", "--hide", "sat", "--ablate", "0.1"]
    result = run("play", TEXT, "--model", folder, "-o", str(path), *options)
    assert result.exit_code == 0
    view = play(TEXT, model=qkv.load(folder), hide=["cat", "sat"], ablate=[(0, 1)])
    assert len(view.edits) == 3
    assert path.read_text("utf-8") == view._document()
    line = refused(run("play", TEXT, "--model", folder, "--ablate", "7"), "play")
    assert "7 is not a head; write LAYER.HEAD, for example 0.3" in line
    line = refused(run("play", TEXT, "--model", folder, "--hide", "dog"), "play")
    assert "`hide` has 'dog', which is in no text" in line


def test_refusals_are_one_line(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(run("play", TEXT, "-o", "a.gif"), "play")
    assert "a.gif: the name must end in .html or .htm" in line
    assert "the text is empty" in refused(run("play", "", "--model", folder), "play")
    assert "random has no language-model head" in refused(
        run("play", TEXT, "--model", "random"), "play"
    )
    monkeypatch.setenv("QKV_MODEL", "random")
    line = refused(run("play"), "play")
    assert "a page can run a decoder, or an encoder that guesses masked words" in line
    assert list(tmp_path.iterdir()) == []
