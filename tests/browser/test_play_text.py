"""Tests of what the live page says of a text: gaps, swapped words, words that are not read."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from qkv.models import Model

from .play import after, button, changed, chip, part, ready, rest
from .playing import TEXT, masks, open_tab
from .support import Visit

LOCAL = "This address works on this machine only."
FOX = "The fox is a small [MASK]."


def field(page: Page) -> str:
    return page.get_by_label("Your sentence").input_value()


def type_(page: Page, text: str) -> None:
    after(page, lambda: page.get_by_label("Your sentence").fill(text))


def chips(page: Page) -> list[str]:
    row = page.get_by_role("listbox", name="words of the sentence")
    return row.get_by_role("option").all_inner_texts()


def listed(page: Page) -> list[str]:
    """Return the texts in the list of changes, without the cross that undoes each change."""
    return [one[:-1] for one in part(page, "changes").locator("li").all_inner_texts()]


def headline(page: Page) -> str:
    return page.locator(".outcome-headline").inner_text()


def notes(page: Page) -> list[str]:
    return part(page, "sentence").locator(".unread p").all_inner_texts()


def test_a_gap_may_be_typed_in_every_way(quick_at: Visit) -> None:
    page = quick_at(text=FOX)
    said, words = headline(page), chips(page)
    assert re.match("Best guess: |Not sure: the best guess is ", said)
    assert words == ["[CLS]", "The", "fox", "is", "a", "small", "___", ".", "[SEP]"]
    for gap in ("[mask]", "_", "___", "?"):
        text = FOX.replace("[MASK]", gap)
        type_(page, text)
        assert (headline(page), chips(page), field(page)) == (said, words, text)
    type_(page, "Are you there ?")
    assert " at there: " in headline(page)


def test_a_word_may_be_swapped_for_a_gap(quick_at: Visit) -> None:
    page = quick_at(text=FOX, query=2)
    for gap in ("?", "__", "[mask]"):
        page.get_by_placeholder("swap for …").fill(gap)
        after(page, lambda: page.keyboard.press("Enter"))
        assert changed(page)[0]["with"] == "[MASK]"
        after(page, button(page, "Undo").click)


def test_text_chip_and_button_agree_after_a_swap(quick_at: Visit) -> None:
    page = quick_at(text=FOX, query=2, edits=[{"op": "swap", "token": 2, "with": "horse"}])
    assert field(page) == "The horse is a small [MASK]."
    assert chips(page)[2] == "horse"
    assert chip(page, "horse").get_attribute("aria-label") == "horse, in place of fox"
    assert page.locator(".offer").inner_text() == "Hide horse"
    assert page.locator(".acting .which").inner_text() == "horse"
    assert listed(page) == ["fox → horse"]
    assert "With horse in place of fox" in headline(page)
    after(page, page.locator(".offer").click)
    assert page.locator(".offer").inner_text() == "Show horse again"
    assert headline(page).startswith("With these changes it says ")
    assert listed(page)[:2] == ["fox → horse", "horse hidden"]


def test_typing_continues_from_the_swapped_text(quick_at: Visit) -> None:
    edits = [{"op": "swap", "token": 2, "with": "horse"}, {"op": "hide", "token": 5}]
    page = quick_at(text=FOX, query=2, edits=edits)
    typed = "The horse is a small [MASK] today."
    type_(page, typed)
    assert field(page) == typed
    assert chips(page)[2] == "horse"
    assert changed(page) == [{"op": "hide", "token": 5}]
    after(page, button(page, "Undo").click)
    assert changed(page) == edits
    type_(page, FOX)  # the text of the address
    assert (field(page), chips(page)[2]) == (FOX, "fox")
    assert changed(page) == [{"op": "hide", "token": 5}]


def test_a_swapped_subword_is_shown_as_a_separate_word(quick_at: Visit, model: Model) -> None:
    text = "A xylophonist sang."
    tokens = model.tokenize(text).tokens
    position = max(t for t, token in enumerate(tokens) if token.startswith("##"))
    page = quick_at(text=text, edits=[{"op": "swap", "token": position, "with": "dog"}])
    rest = "".join(token.removeprefix("##") for token in tokens[2:position])
    assert field(page) == f"A {rest} dog sang."
    assert chips(page)[-4:-2] == ["dog", "sang"]


def test_the_page_names_what_the_model_does_not_read(quick_at: Visit) -> None:
    page = quick_at(text="The 🙂 is a Ж and 🙂 a small _.")
    added = "The tokenizer adds [CLS] at the start and [SEP] at the end of every text."
    assert notes(page) == ["The model does not know 🙂 and Ж: it reads [UNK] there.", added]
    long = "word " * 70
    type_(page, f"{long}_ .")
    cut = "The text is too long: the model reads only its first 64 tokens."
    beyond = "The gap is beyond the first 64 tokens, so nothing is guessed there."
    assert notes(page) == [f"{cut} {beyond}", added]
    type_(page, f"_ {long}")
    assert notes(page) == [cut, added]
    type_(page, "The [UNK] is a _.")
    assert notes(page) == [added]
    after(page, button(page, "Look inside").click)
    open_tab(page, "Words")
    after(page, button(page, "Beside another sentence").click)
    other = part(page, "second")
    after(page, lambda: other.locator("textarea").fill(f"мир {long}? ."))
    assert other.locator(".unread p").count() == 2


def test_the_temperature_is_called_attention_temperature(quick_at: Visit, model: Model) -> None:
    usual = (model.dim // model.num_heads) ** -0.5
    page = quick_at(text=FOX, edits=[{"op": "scale", "value": usual / 8}])
    assert re.match("At attention temperature 8.00 it |Not sure at attention temp", headline(page))
    assert listed(page) == ["attention temperature 8.00"]
    after(page, button(page, "Look inside").click)
    open_tab(page, "Numbers")
    label = part(page, "changes").locator("label", has_text="temperature")
    assert label.inner_text() == "Attention temperature"


@pytest.mark.parametrize("text", ["word " * 2400, "Ж🙂 " * 3000 + "\n" * 9, "% & # + = ? " * 1000])
def test_a_long_text_survives_its_address(quick_at: Visit, text: str) -> None:
    assert len(text) >= 9000
    page = quick_at()
    type_(page, text)
    hash_ = page.evaluate("location.hash")
    again = quick_at(hash_)
    assert (field(again), chips(again), notes(again)) == (text, chips(page), notes(page))
    assert again.evaluate("location.hash") == hash_


def test_repeated_masks_of_an_address_are_kept_once(quick_at: Visit) -> None:
    rows = [[query, 0, 8] for query in range(1, 9)]
    wheres = [{}, {"layer": 1}, {"layer": 1, "head": 2}, {"layer": 3, "head": 0}]
    edits = [{"op": "masks", **where, "rows": rows} for where in wheres] * 5
    page = quick_at(text=FOX, edits=edits)
    rest(page)
    links = [(query, key) for query in range(1, 9) for key in range(9)]
    every = [(*link, *where.values()) for where in wheres for link in links]
    assert masks(changed(page)) == every
    assert [one.split(" ")[0] for one in listed(page)[:4]] == ["72"] * 4
    assert "ith 288 links hidden" in headline(page)
    after(page, part(page, "changes").locator("li button").first.click)
    assert masks(changed(page)) == every[72:]


@pytest.mark.parametrize(
    "rows", [[[0, 0, 10**12]], [[0, 0, 8], [0, 0]], [[q, 0, 8] for q in range(99)]]
)
def test_invalid_masks_give_the_plain_page(quick_at: Visit, rows: list[Any]) -> None:
    page = quick_at(text=FOX, edits=[{"op": "masks", "rows": rows}])
    rest(page)
    assert changed(page) == []
    assert field(page) == TEXT


HOSTS = {  # a page's address, and whether other people can open a page at this address
    "http://example.test/docs/play.html": True,
    "https://example.test/play.html": True,
    "http://127.0.0.1/play.html": False,
    "http://localhost/play.html": False,
}


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.split("/")[2] + host[:5])
def test_a_hosted_page_gives_an_address_for_others(chromium: Browser, html: str, host: str) -> None:
    context = chromium.new_context()
    framing = f'<!doctype html><title>docs</title><iframe src="{host.rpartition("/")[2]}"></iframe>'
    index = host.replace("play.html", "index.html")
    pages = {host: html, index: framing}

    def answer(route: Route) -> None:
        route.fulfill(body=pages[route.request.url.partition("#")[0]], content_type="text/html")

    context.route("**/*", answer)
    page = context.new_page()
    page.goto(index)
    frame = page.frame_locator("iframe")
    frame.locator("html[data-qkv=ready]").wait_for(timeout=60_000)
    frame.locator(".offer").click()
    frame.get_by_role("button", name="Share").click()
    frame.get_by_role("button", name="Copy the address").click()
    shared = frame.get_by_label("The address of this view").input_value()
    assert shared.startswith(f"{host}#text="), shared
    assert "hide" in shared
    assert frame.locator(".share .take .note").is_visible() == (not HOSTS[host])
    again = context.new_page()
    again.goto(shared)
    ready(again)
    assert changed(again) == [{"op": "hide", "token": 4}]
    context.close()


def test_the_page_says_that_a_file_address_works_only_locally(visit: Visit, html: str) -> None:
    page = ready(visit(html))
    button(page, "Share").click()
    button(page, "Copy the address").click()
    shared = page.get_by_label("The address of this view")
    assert shared.input_value().startswith("file://")
    assert page.locator(".share .take .note").inner_text() == LOCAL
    assert shared.evaluate("field => field.ariaDescribedByElements[0].textContent") == LOCAL
    button(page, "Copy as Python").click()
    assert not page.locator(".take .note").last.is_visible()
