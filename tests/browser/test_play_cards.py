"""Tests of the live page's lesson: the question of a card, what the page shows, and the answer."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page

import qkv
from training.play_cards import right

from .lesson import KEPT, by_the_formula
from .outcome import is_percent
from .play import address, after, button, in_lab, part, ready, shown
from .playing import held
from .support import Visit
from .test_play_page import check_layout

CARDS = KEPT["cards"]
OWN = "The moon shines in the [MASK]."


@pytest.fixture(scope="module")
def html() -> str:
    return in_lab(qkv.play(OWN)._document())


def begin(page: Page) -> None:
    after(page, page.get_by_role("button", name="A lesson").click)
    part(page, "cards").wait_for()


def options(page: Page) -> list[str]:
    return page.locator(".options button").all_inner_texts()


def check_told(card: dict[str, Any], text: str, said: str) -> None:
    """Check that `said` is this text with the probes' values filled in."""
    measured = by_the_formula(card)
    parts = re.split(r"(\{\d+\})", text.replace("*", ""))
    pattern = "".join(r"(under 0\.1%|[\d.]+%)" if x[:1] == "{" else re.escape(x) for x in parts)
    found = re.fullmatch(pattern, said)
    assert found, (text, said)
    for mark, shown_ in zip(re.findall(r"\{(\d+)\}", text), found.groups(), strict=True):
        assert is_percent(shown_, measured[int(mark)]), (mark, shown_)


@pytest.mark.parametrize("guesses_right", [True, False])
def test_each_card_leads_the_page_and_tells_right_from_wrong(
    quick_at: Visit, guesses_right: bool
) -> None:
    page = quick_at()
    begin(page)
    for number, card in enumerate(CARDS, 1):
        box = part(page, "cards")
        page.get_by_role("heading", name=f"Card {number} of 12", exact=True).wait_for()
        says, asks = box.locator("p").all_inner_texts()[:2]
        check_told(card, card["read"], says)
        assert asks == card["ask"].replace("*", "")
        assert options(page) == [label.replace("*", "") for label in card["options"]]
        state = {"inside": False, "colouring": "pattern"} | held(page)
        before = {name: value for name, value in card["before"].items() if name in state}
        assert before.items() <= state.items()
        own = right(card, by_the_formula(card))
        guess = own if guesses_right else (own + 1) % len(card["options"])
        after(page, box.locator(".options button").nth(guess).click)
        told = box.locator(".told").inner_text()
        verdict = "Right. " if guesses_right else "Wrong. "
        assert told.startswith(verdict)
        check_told(card, card["told"], told.removeprefix(verdict))
        check_options(page, card, own, guess)
        assert held(page)["guess"] == guess
        assert held(page)["edits"] == card["after"]["edits"]
        if number < len(CARDS):
            after(page, button(page, "Next").click)


def check_options(page: Page, card: dict[str, Any], own: int, guess: int) -> None:
    """Check the marks of the right option and of the guess, and the numbers of measured options."""
    measured = by_the_formula(card)
    for k, label in enumerate(page.locator(".options button").all()):
        sign, name, figure = label.locator("> span").all_text_contents()
        assert sign == ("✓" if k == own else "✗" if k == guess else "")
        assert name == card["options"][k].replace("*", "")
        if card["right"]["of"] == "largest":
            assert is_percent(figure, measured[card["right"]["among"][k]])
        else:
            assert figure == ""
        assert label.get_attribute("aria-pressed") == str(k == guess).lower()


def test_ending_the_lesson_restores_the_readers_page(quick_at: Visit) -> None:
    page = quick_at()
    after(page, page.locator(".offer").click)
    own = shown(page)
    begin(page)
    assert not page.get_by_label("Your sentence").is_visible()
    page.locator(".options button").first.click()
    after(page, button(page, "Next").click)
    after(page, button(page, "Back").click)
    assert "Card 1" in part(page, "cards").inner_text()
    after(page, button(page, "End").click)
    assert not part(page, "cards").is_visible()
    assert shown(page) == own


def test_a_card_is_in_the_address(quick_at: Visit) -> None:
    page = quick_at()
    begin(page)
    after(page, page.locator(".options button").nth(1).click)
    again = quick_at(page.evaluate("location.hash"))
    part(again, "cards").wait_for()
    assert shown(again).replace("Undo", "") == shown(page).replace("Undo", "")
    none = quick_at(card=99)
    assert not part(none, "cards").is_visible()


def test_it_is_read_and_answered_with_the_keys_alone(quick_at: Visit) -> None:
    page = quick_at()
    page.get_by_role("button", name="A lesson").focus()
    after(page, lambda: page.keyboard.press("Enter"))
    part(page, "cards").wait_for()
    page.keyboard.press("Tab")  # from the heading
    page.keyboard.press("Tab")
    after(page, lambda: page.keyboard.press("Space"))
    assert page.locator(".options button").nth(1).get_attribute("aria-pressed") == "true"
    assert page.locator(".told").get_attribute("role") == "status"
    after(page, lambda: page.keyboard.press("Enter"))  # the focus is on Next
    assert "Card 2" in part(page, "cards").inner_text()


def test_a_changed_model_has_no_lesson(visit: Visit, model: qkv.Model) -> None:
    changed = {name: array * 1.001 for name, array in model.parameters.items()}
    page = ready(visit(in_lab(qkv.play(OWN, model=model.with_parameters(changed))._document())))
    assert page.get_by_role("button", name="A lesson").count() == 0


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_cards_fit_the_window_and_pass_axe(quick_at: Visit, width: int) -> None:
    page = quick_at(width=width, height=800)
    begin(page)
    for number in (1, 7, 11):
        hash_ = address(**CARDS[number - 1]["after"], card=number - 1, guess=0)
        after(page, lambda to=hash_: page.evaluate("to => { location.hash = to; }", to))
        page.get_by_role("heading", name=f"Card {number} of").wait_for()
        check_layout(page)
        sizes = [one.bounding_box()["height"] for one in page.locator(".cards button").all()]
        assert min(sizes) >= 44
