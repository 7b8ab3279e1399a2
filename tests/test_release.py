"""Tests of the scripts `.ci/kernel.py` and `.ci/release.py`.

`kernel.py` reuses the kernel of a wheel only if the kernel was compiled from the current sources
and can be loaded. `release.py` makes a complete release, or resets the clone to the commit before
the release if a step fails.
"""

import importlib.util
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qkv.ops.kernel import compiled

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n- A thing.\n\n## [1.0.0] - 2020-01-01\n\n- The first.\n"
)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(root: Path, content: bytes) -> None:
    (root / "dist").mkdir()
    with zipfile.ZipFile(root / "dist" / "qkv-1.0.0-cp311-abi3-any.whl", "w") as file:
        file.writestr("qkv/_kernel.abi3.so", content)


@pytest.mark.skipif(compiled is None, reason="there is no kernel here")
def test_a_kernel_compiled_from_these_sources_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = script("kernel")
    assert compiled is not None
    assert chooser.sources() == compiled.SOURCES
    (tmp_path / "native").symlink_to(ROOT / "native")
    monkeypatch.setattr(chooser, "ROOT", tmp_path)
    monkeypatch.setattr(chooser, "loads", lambda python, found: found.startswith(b"good"))
    assert chooser.built("python") is None
    digest = compiled.SOURCES.encode()
    wheel(tmp_path, b"good " + digest)
    assert chooser.built("python") == b"good " + digest


@pytest.mark.parametrize("content", [b"not ELF", b""])
def test_a_kernel_that_cannot_be_loaded_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    chooser = script("kernel")
    (tmp_path / "native").symlink_to(ROOT / "native")
    monkeypatch.setattr(chooser, "ROOT", tmp_path)
    wheel(tmp_path, content + chooser.sources().encode())
    assert chooser.built("python3") is None


def test_a_kernel_of_other_sources_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = script("kernel")
    wheel(tmp_path, b"good " + chooser.sources().encode())
    (tmp_path / "native").mkdir()
    for file in (ROOT / "native").glob("*.*"):
        if file.is_dir():
            continue
        (tmp_path / "native" / file.name).write_bytes(file.read_bytes() + b"\n")
    monkeypatch.setattr(chooser, "ROOT", tmp_path)
    monkeypatch.setattr(chooser, "loads", lambda python, found: True)
    assert chooser.built("python") is None


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `.ci/release.py`, set to a small clone with a fake build of one wheel."""
    release = script("release")
    files = {
        "src/qkv/__init__.py": '__version__ = "1.0.0"\n',
        "CITATION.cff": "cff-version: 1.2.0\nversion: 1.0.0\ndate-released: 2020-01-01\n",
        "docs/cite.md": '  version = "1.0.0",\n',
        "CHANGELOG.md": CHANGELOG,
        ".gitignore": "dist\n",
        ".ci/wheels.py": "import pathlib; pathlib.Path('dist').mkdir(exist_ok=True);"
        " pathlib.Path('dist/qkv-x.whl').write_bytes(b'wheel')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["config", "user.name", "A"],
        ["config", "user.email", "a@example.org"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "Begin"],
        ["tag", "v1.0.0"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "DIST", tmp_path / "dist")
    monkeypatch.setattr(release, "CHANGELOG", tmp_path / "CHANGELOG.md")
    return release


def test_a_release_has_its_version_everywhere(clone: Any, tmp_path: Path) -> None:
    clone.make("1.1.0")
    assert (tmp_path / "src/qkv/__init__.py").read_text() == '__version__ = "1.1.0"\n'
    lines = (tmp_path / "CITATION.cff").read_text().splitlines()
    assert lines[1] == "version: 1.1.0"
    assert "2026-01-01" < lines[2].removeprefix("date-released: ") < "2100"
    assert (tmp_path / "docs/cite.md").read_text() == '  version = "1.1.0",\n'
    assert clone.section("Unreleased") == ""
    assert clone.section("1.1.0") == "- A thing."
    assert clone.section("1.0.0") == "- The first."
    assert (tmp_path / "dist/notes.md").read_text() == "- A thing.\n"
    # sha256sum of the bytes "wheel"
    assert (
        subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path / "dist").returncode
        == 0
    )
    assert clone.git("tag", "--list") == "v1.0.0\nv1.1.0"
    assert clone.git("status", "--porcelain") == ""
    assert clone.git("log", "-1", "--format=%s") == "Release 1.1.0"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.0", "three numbers"),
        ("v1.1.0", "three numbers"),
        ("1.0.0", "higher"),
        ("0.9.9", "higher"),
    ],
)
def test_a_malformed_or_not_higher_version_is_refused(clone: Any, version: str, said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        clone.make(version)
    assert clone.git("status", "--porcelain") == ""


def test_a_release_needs_a_clean_tree_and_changelog_entries(clone: Any, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x")
    with pytest.raises(SystemExit, match="has changes"):
        clone.make("1.1.0")
    (tmp_path / "other").unlink()
    clone.CHANGELOG.write_text(CHANGELOG.replace("- A thing.\n", ""), encoding="utf-8")
    clone.git("commit", "--all", "--message", "Nothing new")
    with pytest.raises(SystemExit, match="nothing under"):
        clone.make("1.1.0")


def test_a_step_that_fails_leaves_nothing(clone: Any, tmp_path: Path) -> None:
    (tmp_path / ".ci/wheels.py").write_text("raise SystemExit(1)\n")
    clone.git("commit", "--all", "--message", "Break the wheels")
    before = clone.git("rev-parse", "HEAD")
    with pytest.raises(subprocess.CalledProcessError):
        clone.make("1.1.0")
    assert clone.git("rev-parse", "HEAD") == before
    assert clone.git("status", "--porcelain") == ""
    assert clone.git("tag", "--list") == "v1.0.0"


def test_the_site_is_committed_to_its_own_branch(clone: Any, tmp_path: Path) -> None:
    before = clone.git("rev-parse", "HEAD")
    with pytest.raises(SystemExit, match="run `make site` first"):
        clone.commit_site("1.0.0")
    site = tmp_path / "build/site"
    for number, text in enumerate(["old", "new"]):
        (site / "course").mkdir(parents=True, exist_ok=True)
        (site / "index.html").write_text(text)
        (site / "course" / f"{number}.ipynb").write_text("{}")
        clone.commit_site("1.0.0")
    assert clone.git("show", "site:index.html") == "new"
    assert clone.git("ls-tree", "-r", "--name-only", "site").splitlines() == [
        "course/0.ipynb",
        "course/1.ipynb",
        "index.html",
    ]
    assert clone.git("rev-list", "--count", "site") == "2"
    assert clone.git("rev-parse", "HEAD") == before
    assert clone.git("diff", "--cached", "--name-only") == ""
