"""Tests of the live page: clicks, undo, addresses, typed texts, keyboard and window widths."""

from typing import Any

import pytest
from playwright.sync_api import Page

import qkv

from .play import address, after, button, changed, chip, in_lab, part, ready, rest, shown
from .playing import STATE, held, laid_out, open_tab
from .support import Visit, tight
from .test_page import problems

TEXT = "The oak is a small [MASK]."
HIDDEN = [{"op": "hide", "token": 2}]
WORD = qkv.play(TEXT).opening.word  # the word that the "Hide" button names
SEVERAL: list[dict[str, Any]] = [
    *HIDDEN,
    {"op": "ablate", "layer": 3, "head": 2},
    {"op": "mask", "query": 1, "key": 2},
    {"op": "mask", "query": 1, "key": 3, "layer": 2, "head": 1},
    {"op": "scale", "value": 0.1},
    {"op": "swap", "token": 1, "with": "he"},
    {"op": "row", "layer": 1, "head": 0, "query": 6, "weights": [0.1] * 8 + [0.2]},
    {"op": "causal"},
]
DAMAGED = [
    *("#", "#nonsense", "#text=%ff%fe&edits=[", "#layer=17", "#head=-1", "#position=1.5"),
    *("#inside=1", f"#text={'a' * 100_001}", address(tab="<script>alert(1)</script>")),
    *(address(edits=edits) for edits in ([{"op": "hide", "token": 99}], [{"op": "__proto__"}])),
    *(address(edits=edits) for edits in ([None], {"op": "hide"})),
    address(edits=[{"op": "masks", "rows": [[0, 0, 1e9]]}]),
]
# Returns the pairs of texts that overlap on a page, and the texts beyond the window's edge.
OVERLAPS = """() => {
  const found = [];
  const root = document.querySelector(".qkv-view").shadowRoot;
  const walk = document.createTreeWalker(root.querySelector(".view"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    const own = node.parentElement;
    if (!node.data.trim() || own.closest(".sr, option, textarea, [hidden]")) continue;
    if (!own.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    let clip = own;
    while (clip && getComputedStyle(clip).overflow === "visible") clip = clip.parentElement;
    const none = { left: -1e9, right: 1e9, top: -1e9, bottom: 1e9 };
    const edge = clip ? clip.getBoundingClientRect() : none;
    for (const box of range.getClientRects()) {
      const [left, right] = [Math.max(box.left, edge.left), Math.min(box.right, edge.right)];
      const [top, bottom] = [Math.max(box.top, edge.top), Math.min(box.bottom, edge.bottom)];
      if (right - left <= 1 || bottom - top <= 1) continue;
      found.push({ text: node.data.trim(), left, right, top, bottom });
    }
  }
  const wide = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const tall = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  const pairs = found.flatMap((a, i) => found.slice(i + 1)
    .filter((b) => wide(a, b) > 1 && tall(a, b) > 4)
    .map((b) => `${a.text} | ${b.text}`));
  return [...pairs, ...found.filter(({ right }) => right > innerWidth + 1).map(({ text }) => text)];
}"""
# Returns how many runs have one edit, how many arrays a run has, and whether these runs are equal
# bit for bit.
ALIKE = """() => {
  const bytes = (x) => [...new Uint8Array(x.buffer)].join();
  const own = runs.filter(({ edits }) => edits.length === 1).map(({ found }) =>
    [...found.pattern.flat(), ...found.resid, found.logits].map(bytes));
  const same = own.every((one) => one.every((x, i) => x === own[0][i]));
  return [own.length, own[0].length, same];
}"""


@pytest.fixture(scope="module")
def html() -> str:
    return in_lab(qkv.play(TEXT)._document())


def test_one_click_changes_the_prediction_and_the_headline_says_so(visit: Visit, html: str) -> None:
    page = ready(visit(html, width=1280, height=800))
    words = part(page, "outcome").get_by_role("rowheader")
    first = words.first.inner_text()
    said = part(page, "headline").inner_text()
    assert first in said
    for name in ("sentence", "head", "outcome"):  # all three are above the fold
        box = part(page, name).bounding_box()
        assert box["y"] + box["height"] <= 800, name
    after(page, button(page, f"Hide {WORD}").click)
    assert words.first.inner_text() != first
    assert part(page, "headline").inner_text() != said
    assert words.first.inner_text() in part(page, "headline").inner_text()
    assert chip(page, WORD).get_attribute("aria-label") == f"{WORD}, hidden"
    after(page, button(page, f"Show {WORD} again").click)
    assert part(page, "headline").inner_text() == said


def test_the_button_says_which_of_two_equal_words_it_hides(quick_at: Visit) -> None:
    page = quick_at(text="The dog saw the dog run.")
    after(page, chip(page, "dog").nth(1).click)
    after(page, button(page, "Hide dog (2 of 2)").click)
    assert changed(page) == [{"op": "hide", "token": 5}]
    after(page, button(page, "Show dog (2 of 2) again").click)
    after(page, chip(page, "dog").nth(0).click)
    assert button(page, "Hide dog (1 of 2)").is_visible()


def test_the_document_is_ready_only_after_painting(quick_at: Visit) -> None:
    page = quick_at()
    click = "(node) => { node.click(); return document.documentElement.dataset.qkv; }"
    assert button(page, "Look inside").evaluate(click) == "busy"  # painting takes long
    assert page.locator(".offer").evaluate(click) == "busy"
    ready(page)
    assert chip(page, WORD).get_attribute("aria-label") == f"{WORD}, hidden"
    assert part(page, "map").get_by_role("button", name="head 3.2").is_visible()


def test_undo_gives_the_same_bits(visit_at: Visit) -> None:
    page = visit_at()
    plain = shown(page)
    after(page, button(page, f"Hide {WORD}").click)
    once = shown(page)
    after(page, chip(page, "small").click)
    after(page, button(page, "Replace with a gap").click)
    after(page, button(page, "Undo").click)
    alike = page.evaluate(ALIKE)
    assert alike[0] > 1
    assert alike[1:] == [4 * 6 + 5 + 1, True]
    after(page, chip(page, "gap").click)
    assert shown(page) == once
    after(page, lambda: page.keyboard.press("Control+z"))
    assert shown(page).replace("Undo", "") == plain.replace("Undo", "")
    assert button(page, "Undo").is_disabled()


@pytest.mark.parametrize("inside", [False, True])
def test_an_address_opened_again_shows_the_same(visit_at: Visit, inside: bool) -> None:
    edits = SEVERAL if inside else HIDDEN
    page = visit_at(text=TEXT, edits=edits, layer=2, head=1, query=1, inside=inside)
    if inside:
        laid_out(page)
    assert chip(page, "oak").get_attribute("aria-label") == "oak, hidden"
    button(page, "Share").click()
    button(page, "Copy the address").click()
    shared = page.get_by_label("The address of this view").input_value()
    button(page, "Close").last.click()
    button(page, "Close").click()
    again = visit_at("#" + shared.partition("#")[2])
    if inside:
        laid_out(again)
    assert shown(again) == shown(page)


def test_a_damaged_address_gives_the_plain_page(visit_at: Visit, visit: Visit, html: str) -> None:
    plain = shown(ready(visit(html)))
    page = visit_at(DAMAGED[-1])
    rest(page)
    assert shown(page) == plain
    for hash_ in DAMAGED:
        page.evaluate("hash => { location.hash = hash; }", hash_)
        rest(page)
        assert shown(page) == plain, hash_


def test_place_in_an_earlier_address_is_read_as_position(page: Page) -> None:
    hash_ = address(**STATE | {"position": 2}).replace("position=", "place=")
    assert "place=2" in hash_
    after(page, lambda: page.evaluate("hash => { location.hash = hash; }", hash_))
    assert held(page)["position"] == 2


def test_an_address_is_followed_even_if_overwritten_at_once(page: Page) -> None:
    write = """(hash) => {
      const before = location.href;
      location.hash = hash;
      history.replaceState(null, "", before); // as the page does when the reader pauses
    }"""
    after(page, lambda: page.evaluate(write, address(**STATE | {"query": 3})))
    assert held(page)["query"] == 3


def test_an_address_is_written_once_all_is_drawn(page: Page) -> None:
    slow = """() => {
      let now = 0;
      performance.now = () => (now += 5); // one job a task
      const { postMessage } = MessagePort.prototype;
      MessagePort.prototype.postMessage = function (...told) {
        setTimeout(() => postMessage.apply(this, told), 50); // each of which comes late
      };
    }"""
    page.emulate_media(reduced_motion="reduce")
    page.evaluate(slow)
    first = page.evaluate(
        """(hash) => new Promise((said) => {
          const before = location.hash; // which the page may still write once more
          location.hash = hash;
          const waits = [before, location.hash];
          const view = document.querySelector(".qkv-view").shadowRoot.querySelector(".view");
          const look = () =>
            waits.includes(location.hash) ? setTimeout(look) : said(view.innerText);
          look();
        })""",
        address(**STATE | {"query": 3}) + "&",
    )
    assert first == shown(page)


def test_a_new_text_supersedes_the_one_that_runs(visit_at: Visit) -> None:
    page = visit_at()
    count = page.evaluate("runs.length")
    field = page.get_by_label("Your sentence")
    typed = ["A dog is a kind", "A dog is a kind of", "A dog is a kind of [MASK]."]
    write = """(field, typed) => { for (const text of typed) {
      field.value = text;
      field.dispatchEvent(new Event("input")); } }"""
    after(page, lambda: field.evaluate(write, typed))
    assert set(page.evaluate("runs.slice(-2).map(({ text }) => text)")) == {typed[-1]}
    assert page.evaluate("runs.length") <= count + 4  # the earlier texts were not run to the end
    assert chip(page, "kind").is_visible()
    assert field.input_value() == typed[-1]


def test_any_text_can_be_typed(quick_at: Visit) -> None:
    page = quick_at(inside=True)
    texts = {"": 2, "...": 5, "\u65e5\u672c \U0001f600": 5, "word " * 90: 64, "a": 3}
    for text, tokens in texts.items():
        after(page, lambda to=text: page.get_by_label("Your sentence").fill(to))
        assert page.evaluate("runs.at(-1).found.tokens.length") == tokens
        assert part(page, "sentence").get_by_text("too long").is_visible() == (tokens == 64)
        said = part(page, "headline").inner_text()
        assert ("There is no word yet" in said) == (text in ("", "...")), said
        assert tight(page)


def test_a_new_text_keeps_the_edits_that_still_apply(quick_at: Visit) -> None:
    page = quick_at(text=TEXT, edits=SEVERAL[:2])
    after(page, lambda: page.get_by_label("Your sentence").fill("Yesterday " + TEXT))
    assert chip(page, "oak").get_attribute("aria-label") == "oak, hidden"
    assert "head 3.2 removed" in part(page, "changes").inner_text()
    after(page, lambda: page.get_by_label("Your sentence").fill("The book is a small [MASK]."))
    assert "hidden" not in part(page, "changes").inner_text()
    assert "head 3.2 removed" in part(page, "changes").inner_text()


def test_words_are_hidden_masked_swapped_and_put_back(quick_at: Visit) -> None:
    page = quick_at()
    after(page, chip(page, "small").click)
    chosen = page.get_by_role("group", name="the chosen word")
    after(page, chosen.get_by_role("button", name="Hide", exact=True).click)
    assert chip(page, "small").get_attribute("aria-label") == "small, hidden"
    after(page, chosen.get_by_role("button", name="Show", exact=True).click)
    after(page, button(page, "Replace with a gap").click)
    assert changed(page) == [{"op": "swap", "token": 5, "with": "[MASK]"}]
    after(page, button(page, "Put back").click)
    swap = chosen.get_by_role("textbox")
    swap.fill("lost")
    after(page, lambda: swap.press("Enter"))
    assert changed(page) == [{"op": "swap", "token": 5, "with": "lost"}]
    after(page, part(page, "changes").get_by_role("button").first.click)
    assert changed(page) == []
    swap.fill("found again")  # more than one vocabulary entry: a new text
    after(page, lambda: swap.press("Enter"))
    expected = "The oak is a found again ___."
    assert page.get_by_label("Your sentence").input_value() == expected


def test_the_page_is_used_with_the_keys_alone(quick_at: Visit) -> None:
    page = quick_at()
    page.get_by_label("Your sentence").focus()
    page.keyboard.press("Enter")
    after(page, lambda: page.keyboard.press("Home"))
    assert chip(page, "[CLS]").get_attribute("aria-selected") == "true"
    for _ in range(2):
        after(page, lambda: page.keyboard.press("ArrowRight"))
    assert chip(page, "oak").get_attribute("aria-selected") == "true"
    page.keyboard.press("Tab")
    after(page, lambda: page.keyboard.press("Enter"))
    assert chip(page, "oak").get_attribute("aria-label") == "oak, hidden"
    after(page, lambda: page.keyboard.press("Control+z"))
    assert chip(page, "oak").get_attribute("aria-label") == "oak"


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_it_fits_the_window_and_passes_axe(quick_at: Visit, width: int) -> None:
    page = quick_at(text=TEXT, edits=SEVERAL, width=width, height=800)
    check_layout(page)
    if width == 390:
        for tab in ("Links", "Heads", "Numbers", "Result"):
            after(page, page.get_by_role("tab", name=tab).click)
            check_layout(page)
        return
    after(page, button(page, "Look inside").click)
    laid_out(page)
    for tab in ("Heads", "Words", "Links", "Numbers"):
        open_tab(page, tab)
        check_layout(page)


def check_layout(page: Page, part: str = "") -> None:
    assert tight(page)
    assert page.evaluate(OVERLAPS) == []
    assert problems(page, part) == []
