"""Tests of the head that the live page opens.

The page opens the same head as `qkv.play` in Python, until the reader chooses a head.
"""

import pytest
from playwright.sync_api import Page

import qkv
from qkv.models import Model
from qkv.see.analysis.selection import PAGE
from qkv.see.views.view import link_in_words
from see.views.test_opening import FIRST, SECOND

from .play import after, button, in_lab, part, ready
from .playing import held, later, until
from .support import Visit

GAPS = [
    "The sun rises in the [MASK].",
    "He sat on the [MASK].",
    "The [MASK] barked at the stranger.",
    "Unbelievably, the [MASK] antidisestablishmentarian slept [MASK].",
    "[MASK]",
]
OTHERS = [
    "I love you",
    "Dogs bark.",
    "So!",
    "",
    "...",
    "She doesn't know the king's name, and he can't say \u2018it\u2019.",
    "Antidisestablishmentarianism is a long word; qwzxv jklmnop is none.",
    "C++ costs $5 + 10% < 100^2 `now` | ~then = x > y",
    "the bank the bank The Bank",
    "日本語のテキスト и русский",
]


@pytest.fixture(scope="module")
def html(model: Model) -> str:
    return in_lab(qkv.play(model=model)._document())


def said(page: Page) -> tuple[str, str]:
    """Return the name of the open head, and the reason that the page gives for it."""
    node = part(page, "head").last
    title = node.locator("h3").inner_text()
    return title.split(" · ")[0], node.locator(".why").text_content() or ""


def by_python(text: str, model: Model) -> tuple[str, str]:
    view = qkv.play(text, model=model)
    line = link_in_words(view.shown, view.head, PAGE)
    return f"Head {view.head.layer}.{view.head.head}", line


def typed(page: Page, text: str) -> None:
    after(page, lambda: page.get_by_label("Your sentence").fill(text))


@pytest.mark.parametrize(
    "texts",
    [GAPS, OTHERS, FIRST[:12], FIRST[12:], SECOND[:12], SECOND[12:]],
    ids=["gaps", "others", "first", "more of them", "second", "more of these"],
)
def test_page_and_terminal_choose_the_same_head_and_say_the_same(
    texts: list[str], quick_at: Visit, model: Model
) -> None:
    page = quick_at()
    for text in texts:
        typed(page, text)
        if text:
            assert said(page) == by_python(text, model)


def test_the_page_opens_on_the_head_of_its_text(quick_at: Visit, model: Model) -> None:
    page = quick_at()
    assert said(page) == by_python(qkv.play().text, model)
    again = quick_at(text=SECOND[7])  # an address without a head
    assert said(again) == by_python(SECOND[7], model)
    asked = quick_at(text=SECOND[7], layer=1, head=1)
    assert said(asked)[0] == "Head 1.1"


def test_a_chosen_head_stays_until_the_rule_chooses_again(quick_at: Visit, model: Model) -> None:
    page = quick_at(inside=True, tab="heads")
    after(page, lambda: page.locator("[data-part=map] [data-head='2.3']").click())
    assert said(page) == ("Head 2.3", "You chose this head. Let the rule choose")
    typed(page, SECOND[7])
    assert said(page)[0] == "Head 2.3"
    after(page, lambda: button(page, "Let the rule choose").click())
    assert said(page) == by_python(SECOND[7], model)
    later(page)  # undo joins letters typed within a second of each other
    typed(page, GAPS[1])
    assert said(page) == by_python(GAPS[1], model)
    after(page, lambda: button(page, "Undo").click())
    assert held(page)["text"] == SECOND[7]
    assert said(page) == by_python(SECOND[7], model)


# the roles of heads that attend to positions
POSITIONS = ("word before", "word after", "start of the text")


def test_a_role_says_what_its_head_usually_does(quick_at: Visit) -> None:
    page = quick_at(inside=True, layer=1, head=1)
    until(lambda: page.locator("[data-part=map] .role").count() > 0)
    title = part(page, "head").last.locator("h3")
    assert title.inner_text() == "Head 1.1 \N{MIDDLE DOT} usually attends to the word before"
    assert title.locator("span").get_attribute("title") == "previous, mean weight 99%"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("She drank a glass of [MASK].", []),  # neither adjective, verb, possessive nor auxiliary
        ("She drank a glass of wine.", []),  # no gap
        ("She wore a crown on her [MASK].", [("the noun", "my, his, her")]),
        ("He [MASK] the cigarette again.", [("the verb", "the object")]),
        ("She locked a [MASK] in the morning.", [("the object", "the verb")]),
        ("She wore a [MASK] crown.", [("the adjective", "the noun")]),
    ],
)
def test_a_role_of_gaps_is_shown_only_for_a_gap_that_can_have_it(
    text: str, pairs: list[tuple[str, str]], quick_at: Visit, model: Model
) -> None:
    page = quick_at(text=text, inside=True, layer=3, head=2)
    until(lambda: page.locator("[data-part=map] .role").count() > 0)
    of_gaps = {f"a gap in place of {one} usually attends to {other}" for one, other in pairs}
    roles = {"mixed", *of_gaps, *(f"usually attends to the {name}" for name in POSITIONS)}
    cells = page.locator("[data-part=map] .cell-head")
    labels = [str(cell.get_attribute("aria-label")) for cell in cells.all()]
    found = {label: [role for role in roles if f", {role}" in label] for label in labels}
    assert {role for own in found.values() for role in own} == roles
    assert not [label for label, own in found.items() if "usually" in label and not own]
    own = "a gap in place of the verb usually attends to the object"  # the role of head 3.2
    title = part(page, "head").last.locator("h3").inner_text()
    assert title == (f"Head 3.2 \N{MIDDLE DOT} {own}" if own in of_gaps else "Head 3.2")


def test_an_untrained_model_has_no_head_that_stands_out(quick: Visit, html: str) -> None:
    assert '"untrained":false' in html
    page = ready(quick(html.replace('"untrained":false', '"untrained":true')))
    for text in (GAPS[0], SECOND[7]):
        typed(page, text)
        assert said(page)[1].startswith("No head stands out in this sentence, because the model")


def test_the_query_of_the_chosen_link_is_selected(quick_at: Visit, model: Model) -> None:
    page = quick_at()
    for text in (SECOND[0], "He sat on the bank.", SECOND[13], GAPS[1]):
        typed(page, text)
        view = qkv.show(text, model=model)
        query = model.tokenize(text).tokens[held(page)["query"]]
        assert query == view.shown.queries.tokens[view.head.link.query]
    asked = quick_at(text=SECOND[0], query=1)
    assert held(asked)["query"] == 1
