"""Tests of the page: themes, widths, several views, no scripts, hostile words, accessibility."""

from pathlib import Path

import axe_playwright_python
import numpy as np
import pytest
from playwright.sync_api import Page

import qkv
from processes import until
from qkv.models import random_model
from qkv.see.page.html import picture

from .support import WORDS, Visit, keys, made, page_of, part_of, sentence, tight, token, with_first

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "'\"&<b>bold</b>",
    "\u202edaeh",
    "",
    "\n",
    " ",
    "\u2028",
    "${alert(1)}",
    "a" * 300,
    "日本語",
    "]]>",
]
AXE = """([part, options]) => axe.run(
  part ? { fromShadowDom: [".qkv-view", `[data-part=${part}]`] } : document,
  { resultTypes: ["violations"], preload: false, ...options },
).then(({ violations }) => violations)"""
CASES = {
    "show": lambda: page_of(made(WORDS), query=5),
    "hostile": lambda: page_of(made(HOSTILE), query=3),
    "wide": lambda: page_of(made([f"word{i}" for i in range(90)], 2, 32), query=50),
    "one": lambda: page_of(made(["alone"], 1, 1)),
    "compare": lambda: qkv.compare(
        "I love you", "You love me", word="love", model="random"
    )._document(),
}


def background(page: Page) -> float:
    """Return the lightness of the view's background, 0 to 1."""
    colour = page.locator(".view").evaluate("node => getComputedStyle(node).backgroundColor")
    return sum(map(float, colour[4:-1].split(","))) / 3 / 255


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_window_and_passes_axe(visit: Visit, name: str, width: int) -> None:
    page = visit(CASES[name](), width=width)
    assert tight(page)
    assert problems(page) == []
    page.locator(".token.on").first.click()
    if name == "show":
        page.get_by_label("leave out special tokens").check()
        page.get_by_label("merge subwords into words").check()
        page.get_by_label("Show", exact=True).select_option("length")
    assert tight(page)
    assert problems(page) == []


def problems(page: Page, part: str = "") -> list[str]:
    """Return the violations that axe-core finds in a page or in a part of it, as lines.

    In the dark scheme only the colour rules run, since only colours differ. The page is left in
    the light scheme.
    """
    if not page.evaluate("'axe' in window"):
        path = Path(axe_playwright_python.__file__).parent / "axe.min.js"
        page.evaluate(path.read_text("utf-8"))
    found = page.evaluate(AXE, [part, {}])
    page.emulate_media(color_scheme="dark")
    page.locator(".view[data-theme=dark]").first.wait_for()
    found += page.evaluate(AXE, [part, {"runOnly": ["cat.color"]}])
    page.emulate_media(color_scheme="light")
    page.locator(".view[data-theme=light]").first.wait_for()
    return [
        f"{rule['id']}: {node['html']} {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_theme_that_was_asked_for_stays(visit: Visit, theme: str) -> None:
    view = qkv.show("The cat sat", model="random", theme=theme)
    for scheme in ("light", "dark"):
        page = visit(view._document(), scheme=scheme)
        assert (background(page) < 0.2) == (theme == "dark")


def test_the_theme_follows_the_switch_of_a_site_around_it(visit: Visit) -> None:
    asked = qkv.show("The cat sat", model="random", theme="light")._repr_html_()
    page = visit(f"<main>{qkv.show('The cat sat', model='random')._repr_html_()}{asked}</main>")
    views = "[...document.querySelectorAll('.qkv-view')].map((host) => host.shadowRoot)"
    themes = f"{views}.map((root) => root.querySelector('.view').dataset.theme)"
    for site, seen in (("dark", "dark"), ("auto", "light"), ("dark", "dark"), ("light", "light")):
        page.evaluate("name => { document.body.dataset.theme = name; }", site)
        page.wait_for_function(f"{themes}[0] === '{seen}'")
        assert page.evaluate(themes) == [seen, "light"]


def test_the_theme_follows_jupyterlab_and_vs_code(visit: Visit) -> None:
    view = qkv.show("The cat sat", model="random")
    # what a page without scripts shows
    still = picture("a title", ["a line"], view.panels(), "auto")
    page = visit(f"<main>{view._repr_html_()}{still}</main>")
    drawn = "getComputedStyle(document.querySelector('.qkv-picture [fill^=var]')).fill"
    colours = {}
    for name, value, seen in (
        ("jpThemeLight", "false", "dark"),
        ("jpThemeLight", "true", "light"),
        ("vscodeThemeKind", "vscode-dark", "dark"),
        ("vscodeThemeKind", "vscode-high-contrast", "dark"),
        ("vscodeThemeKind", "vscode-light", "light"),
        ("vscodeThemeKind", "vscode-high-contrast-light", "light"),
    ):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            set_ = "([name, value]) => { document.body.dataset[name] = value; }"
            page.evaluate(set_, [name, value])
            page.locator(f".view[data-theme={seen}]").wait_for()
            colours.setdefault(seen, set()).add(page.evaluate(drawn))
            page.evaluate("name => { delete document.body.dataset[name]; }", name)
    assert [len(found) for found in colours.values()] == [1, 1]
    assert colours["dark"] != colours["light"]


def test_the_theme_follows_the_system(visit: Visit) -> None:
    assert background(visit(page_of(made(WORDS)), scheme="dark")) < 0.2
    page = visit(page_of(made(WORDS)))
    assert background(page) > 0.8
    page.emulate_media(color_scheme="dark")
    page.locator(".view[data-theme=dark]").wait_for()
    assert background(page) < 0.2


def test_a_window_that_becomes_narrow(visit: Visit) -> None:
    page = visit(page_of(made(WORDS)))
    page.set_viewport_size({"width": 390, "height": 800})
    assert tight(page)
    box = until(page.locator(".map").bounding_box, "the map fits", lambda box: box["width"] <= 390)
    assert box is not None


def test_two_views_on_a_page_do_not_disturb_each_other(visit: Visit) -> None:
    one, two = part_of(made(WORDS), query=5), part_of(made(WORDS, seed=1), query=6)
    page = visit(f"<title>two</title><main>{one}{two}{one}</main>")
    assert page.locator(".view").count() == 3  # the first of them twice
    assert page.evaluate("['VIEWS', 'start', 'mount', 'el'].filter((name) => name in window)") == []
    sentences = page.locator(".sentence")
    before = sentences.all_inner_texts()
    page.locator(".view").nth(1).locator(".token").nth(3).click()
    after = sentences.all_inner_texts()
    assert (before[0], before[2]) == (after[0], after[2])
    assert after[1].startswith("##believ attends to ")
    for one_root in page.evaluate(
        "[...document.querySelectorAll('.qkv-view')].map((host) =>"
        " [...host.shadowRoot.querySelectorAll('[id]')].map((node) => node.id))"
    ):
        assert len(one_root) == len(set(one_root)) > 0


def test_keys_stay_in_the_view(visit: Visit) -> None:
    """A view stops key events: a notebook around it has its own arrow keys and Shift+Enter."""
    page = visit(page_of(made(WORDS)))
    page.evaluate("window.heard = []; addEventListener('keydown', (e) => heard.push(e.key))")
    token(page, 0).focus()
    for name in ("ArrowDown", "Shift+Enter", "Escape"):
        page.keyboard.press(name)
    page.get_by_role("application").focus()
    page.keyboard.press("ArrowDown")
    assert [key for key in page.evaluate("heard") if key != "Shift"] == []


def test_without_scripts_the_static_picture_shows(visit: Visit) -> None:
    page = visit(page_of(made(WORDS)), scripts=False)
    assert page.get_by_role("img", name="static picture").is_visible()
    page = visit(page_of(made(WORDS)))
    assert not page.get_by_role("img", name="static picture").is_visible()


def test_a_view_that_breaks_gives_way_to_the_static_picture(visit: Visit) -> None:
    broken = page_of(made(WORDS)).replace('"layers":[0,1]', '"layers":null')
    hear = "(event) => { event.preventDefault(); window.broke = true; }"
    page = visit(with_first(broken, f"<script>addEventListener('error', {hear});</script>"))
    assert page.get_by_role("img", name="static picture").is_visible()
    assert page.evaluate("window.broke")


def test_hostile_words_are_words(visit: Visit) -> None:
    text = made(HOSTILE, name="<i>name</i>")
    page = visit(page_of(text, query=2))
    assert page.locator("img, b b, main i, .view script").count() == 0
    shown = [name for name, _ in keys(page)]
    plain = ["⟨202e⟩daeh", "∅", "⏎", "␣", "⟨2028⟩"]
    assert shown[:1] + shown[2:8] == [HOSTILE[0], HOSTILE[2], *plain]
    token(page, 0).click()
    assert sentence(page).startswith(f"{HOSTILE[0]} attends to ")
    assert page.evaluate("typeof window.alerted") == "undefined"


def of_nothing_finite(view: str) -> qkv.see.View:
    """Return a view of a text whose middle word has infinite vectors and NaN weights."""
    trace = random_model("the cat sat").trace("the cat sat")
    arrays = {name: trace[name].copy() for name in trace.names()}
    for name, array in arrays.items():
        array[(0, 0, 1) if name.endswith(("pattern", "scores")) else (0, 1)] = np.nan
        if not name.endswith(("pattern", "scores")):
            array[0, 1] = np.inf
    broken = qkv.Trace(arrays, tokens=[trace.tokens])
    if view == "compare":
        return qkv.compare(broken, broken, word="cat")
    if view == "runs":
        return qkv.compare(trace, broken)
    return getattr(qkv, view)(broken)


@pytest.mark.parametrize("view", ["show", "walk", "compare", "runs"])
def test_non_finite_numbers_are_not_shown_as_nan(visit: Visit, view: str) -> None:
    page = visit(of_nothing_finite(view)._document())
    if view == "walk":
        page.get_by_role("tab").last.click()
        assert page.locator("p.lead").inner_text().endswith("the model's own is \N{EN DASH}.")
    shown = page.locator(".view").inner_text()
    assert "cat" in shown
    assert "NaN" not in shown
