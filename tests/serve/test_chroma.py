"""Tests of the answer about Chroma in docs/how-do-i.md, whose last calls need chromadb."""

import re
import textwrap
from pathlib import Path
from typing import Any

import chromadb
import pytest

import qkv

PAGE = Path(__file__).parents[2] / "docs" / "how-do-i.md"


def test_the_calls_on_the_page_find_the_nearest_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    [places] = re.findall(r"^places = .*\n", text, re.M)
    section = text.split("### Search with Chroma\n")[1].split("\n### ")[0]
    [cell] = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```", section, re.M | re.S)
    *calls, last = textwrap.dedent("".join(re.findall(r"^    .*\n", section, re.M))).splitlines()
    names: dict[str, Any] = {"chromadb": chromadb, "model": qkv.load("books")}
    monkeypatch.chdir(tmp_path)
    exec(places + cell + "\n".join(calls), names)
    model, kept = names["model"], names["places"]
    cosines = model.similarity(model.encode("The river and the sea."), model.encode(kept))[0]
    assert eval(last, names) == [[kept[cosines.argmax()]]]
