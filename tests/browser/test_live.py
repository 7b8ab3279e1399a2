"""Tests of the script that frames the live views of a lesson."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from .bundling import ROOT
from .play import address, button
from .playing import START, go, until
from .support import Visit

SCRIPT = (ROOT / "docs/static/live.js").read_text(encoding="utf-8")
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>a lesson</title>
<link rel="icon" href="data:,"><script>{before}</script></head><body {body}>
<p class="live-view" data-height="333"><a href="{href}">Open a trained model: one head</a></p>
<script>{script}</script></body></html>"""
SAVES = "Object.defineProperty(navigator, 'connection', {value: {saveData: true}});"
HEARD = "window.heights = []; addEventListener('message', (it) => heights.push(it.data?.height));"
SET = "theme => { document.body.dataset.theme = theme; }"  # as the site's theme switch does


def lesson(*, before: str = "", body: str = "", href: str = "about:blank") -> str:
    return PAGE.format(before=before, body=body, href=href, script=SCRIPT)


def test_a_link_becomes_a_frame_that_says_what_it_is(visit: Visit) -> None:
    page = visit(lesson())
    frame = page.locator(".live-view iframe")
    own = {"title": "A trained model: one head", "loading": "lazy", "src": "about:blank"}
    assert {name: frame.get_attribute(name) for name in own} == own
    assert page.locator(".live-view a").count() == 0


def height(page: Page) -> str:
    return page.locator("iframe").evaluate("frame => frame.style.height")


def test_a_frame_takes_the_height_that_its_page_reports(visit: Visit) -> None:
    page = visit(lesson(before=HEARD))
    assert height(page) == "333px"
    for high in (420, 260):
        page.frames[1].evaluate("height => parent.postMessage({ height }, '*')", high)
        page.wait_for_function(
            "high => document.querySelector('iframe').style.height === `${high}px`", arg=high
        )
    page.frames[1].evaluate("['high', null, { height: -1 }].map((x) => parent.postMessage(x, '*'))")
    page.evaluate("postMessage({ height: 999 }, '*')")  # not sent by a frame
    page.wait_for_function("heights.includes(-1) && heights.includes(999)")
    assert height(page) == "260px"


@pytest.mark.parametrize(("before", "scripts"), [(SAVES, True), ("", False)])
def test_the_link_stays_where_data_is_saved_or_scripts_are_off(
    visit: Visit, before: str, scripts: bool
) -> None:
    page = visit(lesson(before=before), scripts=scripts)
    assert page.get_by_role("link", name="Open a trained model: one head").is_visible()
    assert page.locator("iframe").count() == 0


@pytest.mark.parametrize(("system", "site"), [("light", "dark"), ("dark", "light")])
def test_a_frame_follows_the_theme_of_the_page_around_it(
    chromium: Browser, html: str, tmp_path: Path, system: str, site: str
) -> None:
    """Check this with two files, since the browser does not let one file access another."""
    href = f"play.html{address(**START | {'only': ['sentence', 'head']})}".replace("&", "&amp;")
    (tmp_path / "play.html").write_text(html, encoding="utf-8")
    (tmp_path / "lesson.html").write_text(
        lesson(before=HEARD, body=f'data-theme="{site}"', href=href), encoding="utf-8"
    )
    page = chromium.new_page(color_scheme=system)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "lesson.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-qkv=ready]").wait_for(timeout=60_000)

    def follows(theme: str, asked: str) -> None:
        frame.locator(f".play[data-theme={theme}]").wait_for()
        assert frame.locator("html").evaluate("it => it.style.colorScheme") == asked

    follows(site, site)
    assert "theme=%22" in str(page.locator("iframe").get_attribute("src"))
    chip = frame.locator(".chip", has_text="crown")
    chip.click()
    for switch in (system, site, "auto"):
        page.evaluate(SET, switch)
        follows(system if switch == "auto" else switch, switch.replace("auto", ""))
    assert chip.get_attribute("aria-selected") == "true"  # the reader's choice stays

    def high() -> float:
        return float(frame.locator("body").evaluate("it => it.getBoundingClientRect().height"))

    # the frame says its height in a message
    until(lambda: 0 <= int(height(page).removesuffix("px")) - high() < 1)
    assert high() > 400
    for reported in page.evaluate("heights"):  # the frame does not jump while the model is read
        assert 0.5 * high() < reported < 1.5 * high()
    assert said == []
    page.context.close()


def test_a_theme_in_the_address_overrides_that_of_the_system(lab_at: Visit) -> None:
    page = lab_at(only=["head"], theme="dark")
    assert page.locator(".play[data-theme=dark]").count() == 1
    whole = str(page.get_by_role("link", name="The whole page").get_attribute("href"))
    assert "theme=%22dark%22" in whole
    go(page, only=None, inside=True, theme="dark")
    button(page, "Share").click()
    button(page, "Copy the address").click()
    shared = page.locator(".share .take textarea").input_value()
    assert "inside=true" in shared
    assert "theme=" not in shared
    go(page, only=None, inside=True)
    page.locator(".play[data-theme=light]").wait_for()
