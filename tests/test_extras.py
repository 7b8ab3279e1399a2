"""Tests of the error for a missing package, which names the extra to install."""

import re
from pathlib import Path

import pytest

from qkv.extras import need


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(ImportError, match=r"needs not_there.*pip install '.\[plot\]'"):
        need("not_there.inside", "plot")


def test_a_package_that_lacks_a_part_is_not_called_missing(tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_package.py").write_text("import not_there_either\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_either"):
        need("broken_package", "plot")


def test_nobody_is_told_to_install_from_an_index() -> None:
    """The name is not on any index yet, so anybody could register it there."""
    root = Path(__file__).resolve().parents[1]
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("docs/*.py")]
    for path in [*pages, *root.glob("src/**/*.py"), *root.glob("src/**/*.js")]:
        if "_build" not in path.parts:
            text = path.read_text(encoding="utf-8")
            told = re.search(r"pip install (-\S+ )*['\"]?qkv\b[^-]", text)
            assert told is None, f"{path}: {told and told[0]}"
