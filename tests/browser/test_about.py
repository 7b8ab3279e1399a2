"""Tests of a page's notes on the model that the page holds.

A click or a key press opens the notes. The page shows HTML in the notes as plain text.
"""

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page

import qkv
from models.support import mask_bert
from qkv.models.files.find import shipped_models
from qkv.see.page.html import about_model

from .play import address, opened_at, ready
from .support import Visit, tight
from .test_page import problems

TEXT = "The oak is a small [MASK]."
CARD, LICENCE = (
    (shipped_models()["books"] / name).read_text("utf-8")
    for name in ("README.md", "LICENSE.wordnet")
)
HOSTILE = (
    "</pre></details></div><script>window.ran = 1</script>"
    "<img src=x onerror='window.ran = 2'><a href='javascript:window.ran = 3'>x</a>"
)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Each kind of page that holds a model's parameters."""
    views = {"play": qkv.play(TEXT, model="books"), "walk": qkv.walk(TEXT)}
    return {kind: view._document() for kind, view in views.items()}


def opened(visit: Visit, html: str, **options: object) -> Page:
    page = visit(html, **options)
    return ready(page) if "data-side=" in html and options.get("scripts", True) else page


def line(page: Page) -> Locator:
    return page.get_by_text("About this model", exact=True)


def texts(page: Page) -> list[str]:
    """Return the visible texts, stripped."""
    shown = page.locator(".qkv-about pre").all()
    return [one.inner_text().strip() for one in shown if one.is_visible()]


def plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.parametrize("kind", ["play", "walk"])
def test_the_mouse_and_the_keyboard_open_it(visit: Visit, pages: dict[str, str], kind: str) -> None:
    # `visit` opens a file. The test fails if the page requests another address: see opening.py.
    page = opened(visit, pages[kind])
    assert line(page).count() == 1
    assert line(page).is_visible()
    assert texts(page) == []
    line(page).click()
    assert [*map(plain, texts(page))] == [plain(CARD), plain(LICENCE)]
    page.keyboard.press("Enter")
    assert texts(page) == []
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")  # back to the line, which is a tab stop
    page.keyboard.press("Space")
    assert len(texts(page)) == 2


@pytest.mark.parametrize("kind", ["play", "walk"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_passes_axe(visit: Visit, pages: dict[str, str], kind: str, width: int) -> None:
    page = opened(visit, pages[kind], width=width)
    line(page).click()
    for pre in page.locator(".qkv-about pre").all():
        box = pre.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert line(page).bounding_box()["height"] >= 44  # type: ignore[index]
    assert tight(page)
    assert problems(page) == []  # all rules in the light scheme, colour rules in the dark one


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_has_the_colours_of_the_view(visit: Visit, pages: dict[str, str], scheme: str) -> None:
    page = opened(visit, pages["play"], scheme=scheme)
    line(page).click()
    ink = "node => getComputedStyle(node).color"
    assert page.locator(".qkv-about pre").first.evaluate(ink) == page.locator(".view").evaluate(ink)


def test_a_frame_with_some_regions_has_it_too(visit: Visit, pages: dict[str, str]) -> None:
    html = opened_at(pages["play"], address(text=TEXT, only=["sentence", "head"]))
    page = ready(visit(html, width=390))
    line(page).click()
    assert len(texts(page)) == 2
    assert tight(page)


def test_model_notes_open_without_scripts(visit: Visit, pages: dict[str, str]) -> None:
    page = opened(visit, pages["walk"], scripts=False)
    line(page).click()
    assert len(texts(page)) == 2


def test_a_hostile_card_runs_nothing(visit: Visit, tmp_path: Path) -> None:
    mask_bert(tmp_path)
    (tmp_path / "README.md").write_text(HOSTILE)
    (tmp_path / "LICENSE.<img src=x onerror=alert(1)>").write_text(HOSTILE)
    model = qkv.load(tmp_path)
    for view in (
        qkv.play("the cat sat on the [MASK]", model=model),
        qkv.walk("the cat", model=model),
    ):
        for scripts in (True, False):
            page = opened(visit, view._document(), scripts=scripts)
            line(page).click()
            assert texts(page) == [HOSTILE, HOSTILE]
            assert page.locator("img, .qkv-about a, .qkv-about script").count() == 0
            if scripts:
                assert page.evaluate("window.ran") is None


def test_each_view_of_a_page_has_its_own_model_notes(visit: Visit) -> None:
    parts = [qkv.walk(text)._repr_html_() for text in (TEXT, "The cat sat.")]
    page = visit(f"<main>{''.join(parts)}</main>")
    assert line(page).count() == 2
    line(page).last.click()
    assert len(texts(page)) == 2
    assert about_model(qkv.load()) in parts[0]
