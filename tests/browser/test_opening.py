"""Tests of opening.py, which opens pages for other tests.

A reused page equals a new one. A test fails if its page has an uncaught error, writes to the
console, opens a dialog or requests another address.
"""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from .opening import Openers
from .play import address, after, at, button, opened_at, part, ready, rest
from .playing import STATE, laid_out, open_tab, unfold, until
from .support import Visit, idle

# Returns the content of a page, the state of its controls, and its window and media settings.
WHOLE = """() => {
  const view = document.querySelector(".qkv-view").shadowRoot.querySelector(".view");
  const set = [...view.querySelectorAll("input, textarea, select, details")].map((one) =>
    [one.value, one.checked, one.disabled, one.open]);
  const media = ["prefers-color-scheme: dark", "prefers-reduced-motion: reduce"];
  const likes = media.map((one) => matchMedia(`(${one})`).matches);
  const shown = view.innerHTML.replaceAll(location.href.replace(/#.*/s, ""), "");
  return [shown, location.hash, set, innerWidth, innerHeight, scrollY, ...likes];
}"""
# Only a page from a disk has this button. A reused page comes from a server.
SAVES = '<button type="button">Save this page with your changes</button>'
BAD = {
    "says": "console.log(1)",
    "throws": "throw new Error('x')",
    "alerts": "alert(1)",
    "asks": "new Image().src = 'http://localhost:1/x.png'",
}


def whole(page: Page) -> object:
    laid_out(ready(page))
    small = part(page, "map").locator(".thumb")  # each picture is painted in a task of its own
    until(lambda: small.locator("canvas").count() == small.count())
    rest(page)
    idle(page)
    shown, *others = page.evaluate(WHOLE)
    return shown.replace(SAVES, ""), *others


def test_a_reused_page_equals_a_new_one(openers: Openers, visit: Visit, html: str) -> None:
    with openers.quickly() as quick:
        page = at(quick, html, width=800, scheme="dark", **STATE)
        page.emulate_media(reduced_motion="reduce")
        open_tab(page, "Words")
        after(page, button(page, "Hide crown").click)
        after(page, lambda: page.get_by_label("Your sentence", exact=True).fill("A [MASK]."))
        open_tab(page, "Links")
        page.get_by_label("paint: drag over cells to hide them").check()
        unfold(part(page, "head").locator("> details"))
        open_tab(page, "Heads")
        page.locator("[data-part=map] .cell-head").first.hover()
        page.evaluate("scrollTo(0, 300)")
    with openers.quickly() as quick:
        again = quick(opened_at(html, address(inside=True)))
        assert again is page
        assert whole(again) == whole(visit(opened_at(html, address(inside=True))))
        assert button(again, "Undo").is_disabled()


@pytest.mark.parametrize("bad", BAD)
def test_complaints_and_requests_of_a_page_are_errors(
    openers: Openers, tmp_path: Path, bad: str
) -> None:
    head = "<title>bad</title><link rel=icon href='data:,'>"
    with pytest.raises(AssertionError), openers.visiting(tmp_path) as visit:
        visit(f"{head}<script>{BAD[bad]}</script>")
