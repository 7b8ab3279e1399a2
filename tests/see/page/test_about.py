"""Tests that a page with a model's parameters also has the model's card and licences."""

import re
from html import unescape
from pathlib import Path

import qkv
from models.support import mask_bert
from qkv.models.files.find import shipped_models
from qkv.see.page.html import about_model
from qkv.see.page.play import served_page

TEXT = "The oak is a small [MASK]."
HOSTILE = (
    "</pre></details><img src=x onerror=alert(1)>\n<script>alert(1)</script>\u202e&amp;\x00'\""
)


def texts_in(page: str) -> dict[str, str]:
    """Return the documents in a page, keyed by file name."""
    (found,) = re.findall(r'<details class="qkv-about" slot="about">(.*?)</details>', page, re.S)
    assert found.startswith("<summary>About this model</summary>")
    pairs = re.findall(r"<h3>(.*?)</h3><pre>(.*?)</pre>", found, re.S)
    return {unescape(name): unescape(text) for name, text in pairs}


def in_folder(folder: Path) -> dict[str, str]:
    names = [folder / "README.md", *sorted(folder.glob("LICENSE*"))]
    return {path.name: path.read_text("utf-8").rstrip("\n") for path in names}


def saved(view: qkv.see.View, folder: Path) -> str:
    view.to_html(folder / "view.html")
    return (folder / "view.html").read_text("utf-8")


def test_the_live_page_and_a_walk_have_the_files_of_their_model(tmp_path: Path) -> None:
    expected = in_folder(shipped_models()["books"])
    assert "WordNet 3.0 Copyright 2006" in expected["LICENSE.wordnet"]
    assert texts_in(saved(qkv.play(TEXT, model="books"), tmp_path)) == expected
    assert texts_in(saved(qkv.walk(TEXT), tmp_path)) == expected
    assert texts_in(qkv.walk(TEXT)._repr_html_()) == expected  # the HTML of a notebook cell
    writer = in_folder(shipped_models()["books-decoder"])
    assert texts_in(saved(qkv.walk("bank:", model="books-decoder"), tmp_path)) == writer
    assert texts_in(served_page(qkv.load(), [("1", 1.0)] * 4, plain=True)) == expected


def test_a_changed_model_has_the_files_of_the_original() -> None:
    model = qkv.load()
    changed = model.with_parameters({name: 2 * array for name, array in model.parameters.items()})
    assert texts_in(about_model(changed)) == in_folder(shipped_models()["books"])


def test_a_model_without_card_or_licence_has_no_about_section(tmp_path: Path) -> None:
    mask_bert(tmp_path)
    model = qkv.load(tmp_path)
    words = "the cat sat on the [MASK]"
    for view in (qkv.play(words, model=model), qkv.walk(words, model=model)):
        assert "about" not in saved(view, tmp_path).partition("<script>")[0]
    assert about_model(model) == ""
    assert "qkv-about" not in saved(qkv.walk("I love you", model="random"), tmp_path)


def test_pages_without_parameters_have_no_about_section(tmp_path: Path) -> None:
    trace = qkv.load().trace(TEXT)
    for view in (qkv.show(trace), qkv.compare(TEXT, "It is.", word="is"), qkv.walk(trace)):
        assert "qkv-about" not in saved(view, tmp_path)


def test_a_card_stays_text_whatever_it_says(tmp_path: Path) -> None:
    mask_bert(tmp_path)
    (tmp_path / "README.md").write_text(HOSTILE, encoding="utf-8")
    (tmp_path / "LICENSE <b>").write_text("a licence")
    about = about_model(qkv.load(tmp_path))
    assert "<img" not in about
    assert "<script" not in about
    assert "<b>" not in about
    said = HOSTILE.replace("\u202e", "\ufffd").replace("\x00", "\u2400")
    assert texts_in(about) == {"README.md": said, "LICENSE <b>": "a licence"}
