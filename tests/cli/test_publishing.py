"""Tests of `qkv publish` and `qkv verify`: their output, files, exit codes and errors."""

import json
import os
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

import qkv
from models.gguf_files import write_llama
from models.support import mask_bert
from qkv.findings.measured import view_of
from qkv.models.files._short_names import SHORT_NAMES

from .test_cli import refused, run

TEXT = "the cat sat on the [MASK]."


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a finding that holds, one that does not, and an article."""
    folder = tmp_path_factory.mktemp("findings")
    (folder / "small").mkdir()
    mask_bert(folder / "small")
    found = qkv.finding(qkv.load(folder / "small"), TEXT, hide="cat", claim="The cat counts.")
    found.save(folder / "a.json")
    held = json.loads((folder / "a.json").read_bytes())
    held["after"][0][1] -= 2e-4
    (folder / "b.json").write_text(json.dumps(held))
    (folder / "article.md").write_text("# Cats\n\n![The cat counts.](a.json)\n")
    return folder


def paths(files: Path, *names: str) -> list[str]:
    return [str(files / name) for name in names]


# ---- verify


def test_a_finding_that_holds_exits_with_0(files: Path) -> None:
    result = run("verify", *paths(files, "a.json"), "--model", str(files / "small"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{files / 'a.json'}: holds: The cat counts.\n"


def test_a_finding_that_does_not_hold_exits_with_1(files: Path) -> None:
    result = run("verify", *paths(files, "a.json", "b.json"), "--model", str(files / "small"))
    assert (result.exit_code, result.stderr) == (1, "")
    first, second, why = result.stdout.splitlines()
    assert first == f"{files / 'a.json'}: holds: The cat counts."
    assert second == f"{files / 'b.json'}: does not hold: The cat counts."
    assert why.startswith("  after, word 1: ")


def test_json_is_a_list(files: Path) -> None:
    result = run(
        "verify", "--json", *paths(files, "a.json", "b.json"), "--model", str(files / "small")
    )
    assert result.exit_code == 1
    one, two = json.loads(result.stdout)
    about = {"claim": "The cat counts.", "model": "small"}
    assert one == {"file": str(files / "a.json"), **about, "holds": True, "differences": []}
    assert (two["holds"], len(two["differences"])) == (False, 1)


def test_other_weights_exit_with_1(files: Path) -> None:
    result = run("verify", *paths(files, "a.json"), "--model", "books")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "the parameters differ: the finding belongs to small" in result.stdout


def test_a_shipped_model_is_found_by_its_name(tmp_path: Path) -> None:
    found = qkv.finding(qkv.load("books-decoder"), "The old man and the", ablate=[(0, 0)])
    found.save(tmp_path / "a.json")
    assert run("verify", str(tmp_path / "a.json")).exit_code == 0


def test_a_gguf_file_is_found_by_its_path_or_short_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = SHORT_NAMES["smollm2"]
    path = tmp_path / known.package / known.path
    path.parent.mkdir()
    (path.parent / "__init__.py").write_text("raise RuntimeError")  # it is not imported
    write_llama(path, kinds={"token_embd.weight": "Q8_0"})  # a small model in place of SmolLM2
    monkeypatch.syspath_prepend(tmp_path)
    own, other, page = (str(tmp_path / name) for name in ("a.json", "b.json", "page.html"))
    qkv.finding("smollm2", "the cat sat", hide="cat").save(own)
    assert json.loads(Path(own).read_bytes())["model"]["name"] == "smollm2"
    for more in ([], ["--model", str(path)], ["--model", "smollm2"]):
        assert run("verify", own, *more).stdout.endswith(": holds: the cat sat\n")
        assert run("publish", own, "-o", page, *more).exit_code == 0
        assert Path(page).read_bytes().startswith(b"\xff\xfe")  # UTF-16: the model is in blocks
        Path(page).unlink()
    qkv.finding("books", TEXT, hide="cat").save(other)
    line = refused(run("publish", own, other, "-o", page), "publish")
    assert "belong to 2 models, smollm2 and books: publish one page per model" in line
    path.unlink()
    for command in ("verify", "publish"):
        line = refused(run(command, own), command)
        assert "smollm2 is not on this machine, and nothing is downloaded; run `pip install" in line


def test_bad_requests_exit_with_2(files: Path, tmp_path: Path) -> None:
    [good] = paths(files, "a.json")
    assert "which does not come with qkv" in refused(run("verify", good), "verify")
    assert "Missing argument" in refused(run("verify"), "verify")
    assert "No such file" in refused(run("verify", good, "none.json"), "verify")
    line = refused(run("verify", good, "--model", "someone/unknown"), "verify")
    assert "is not on this machine, and nothing is downloaded" in line
    assert "does not exist" in refused(
        run("verify", good, "--model", str(tmp_path / "none")), "verify"
    )
    bad = tmp_path / "bad\x1b[31m.json"
    bad.write_text('{"qkv_finding": 2}')
    line = refused(run("verify", str(bad)), "verify")
    assert r"bad\x1b[31m.json: it has no model" in line
    bad.write_text('{"text": NaN}')
    assert " is not valid JSON" in refused(run("verify", str(bad)), "verify")
    held = json.loads(Path(good).read_bytes())
    for name, value, said in (
        ("position", 99, "position is 99, but the text has 9 tokens"),
        ("edits", [{"op": "hide", "token": "cat"}], "edits[0] (hide) has token 'cat'"),
        ("edits", [7], "edits[0] is 7; pass a record"),
        (
            "edits",
            [{"op": "scale", "value": 2**70}],
            f"edits[0] (scale) has value {2**70}; pass a finite number that fits in 64 bits",
        ),
    ):
        bad.write_text(json.dumps({**held, name: value}))
        line = refused(run("verify", str(bad), "--model", str(files / "small")), "verify")
        assert rf"bad\x1b[31m.json: {said}" in line


def test_nothing_is_downloaded(files: Path, tmp_path: Path) -> None:
    program = """if True:
        import socket
        def refuse(*_):
            raise AssertionError("asks the network")
        socket.socket.connect = socket.getaddrinfo = refuse
        from qkv.cli import main
        main()
    """
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", program, "verify", str(files / "a.json"), "--model", "minilm/other"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "nothing is downloaded" in done.stderr


# ---- publish


def test_findings_become_a_page(files: Path, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    model = str(files / "small")
    result = run("publish", *paths(files, "a.json"), "-o", str(page), "--model", model)
    assert (result.exit_code, result.stderr) == (0, f"qkv publish: wrote {page}\n")
    view = view_of([qkv.Finding.load(files / "a.json")], model=model)
    assert page.read_text("utf-8") == view._document()
    assert result.stdout.strip() == str(view).strip()


def test_an_article_becomes_a_page(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    names = paths(files, "a.json", "article.md", "b.json")
    result = run("publish", *names, "--model", str(files / "small"), "--open")
    assert result.exit_code == 0
    warning, wrote = result.stderr.splitlines()
    assert (
        "'The cat counts.' does not hold, which the page also reports: after, word 1: " in warning
    )
    assert wrote == "qkv publish: wrote qkv-findings.html"
    assert opened == [(tmp_path / "qkv-findings.html").as_uri()]
    html = Path("qkv-findings.html").read_text("utf-8")
    assert "<title>Cats</title>" in html
    assert '"parts":["prose-0",0,1]' in html


def test_a_refused_publish_writes_nothing(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    article, good = paths(files, "article.md", "a.json")
    assert "there are 2 articles" in refused(run("publish", article, article), "publish")
    assert "Missing argument" in refused(run("publish"), "publish")
    assert "the name must end in .html" in refused(run("publish", good, "-o", "a.png"), "publish")
    assert "which does not come with qkv" in refused(run("publish", article), "publish")
    line = refused(run("publish", good, "--model", "books"), "publish")
    assert line.startswith("qkv publish: the parameters differ: the finding belongs to small")
    Path("a.md").write_text("![a](none.json)")
    assert "none.json: No such file" in refused(run("publish", "a.md"), "publish")
    assert [one.name for one in tmp_path.iterdir()] == ["a.md"]
