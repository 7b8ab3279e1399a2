"""The script that frames the live views of a lesson."""

import notebooks
import pytest

from .support import Visit

SCRIPT = (notebooks.COURSE.parent / "static/live.js").read_text(encoding="utf-8")
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>a lesson</title>
<link rel="icon" href="data:,"><script>{before}</script></head><body>
<p class="live-view" data-height="333"><a href="about:blank">Open a trained model: one head</a></p>
<script>{script}</script></body></html>"""
SAVES = "Object.defineProperty(navigator, 'connection', {value: {saveData: true}});"


def test_a_link_becomes_a_frame_that_says_what_it_is(visit: Visit) -> None:
    page = visit(PAGE.format(before="", script=SCRIPT))
    frame = page.locator(".live-view iframe")
    assert frame.get_attribute("title") == "A trained model: one head"
    assert frame.get_attribute("loading") == "lazy"
    assert frame.get_attribute("src") == "about:blank"
    assert page.locator(".live-view a").count() == 0


def test_a_frame_is_as_high_as_what_is_in_it(visit: Visit) -> None:
    page = visit(PAGE.format(before="", script=SCRIPT))
    for high in (420, 260):
        page.frames[1].evaluate(
            "high => { document.body.style.cssText = `margin: 0; height: ${high}px`; }", high
        )
        page.wait_for_function(
            "high => document.querySelector('iframe').style.height === `${high + 2}px`", arg=high
        )


@pytest.mark.parametrize(("before", "scripts"), [(SAVES, True), ("", False)])
def test_the_link_stays_where_data_is_saved_or_scripts_are_off(
    visit: Visit, before: str, scripts: bool
) -> None:
    page = visit(PAGE.format(before=before, script=SCRIPT), scripts=scripts)
    page.wait_for_timeout(200)
    assert page.get_by_role("link", name="Open a trained model: one head").is_visible()
    assert page.locator("iframe").count() == 0
