"""Tests of the story behind the guess: eight steps on a sentence, with the library's numbers."""

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

import qkv
from qkv.models import Model

from .outcome import is_percent
from .play import address, after, opened_at, ready
from .support import Visit, drawn
from .test_page import problems

TEXT = "She drank a glass of [MASK]."
STEPS = 8


@pytest.fixture(scope="module")
def html() -> str:
    return qkv.play()._document()


@pytest.fixture
def page(visit: Visit, html: str) -> Page:
    return ready(visit(opened_at(html, '#view="story"')))


def dots(page: Page) -> Locator:
    return page.locator(".story .dot")


def at(page: Page, step: int) -> Locator:
    """Take the story to a step, and return the step's picture."""
    dots(page).nth(step).click()
    expect(page.locator(".story")).to_have_attribute("data-step", str(step))
    return page.locator(".story .picture")


def test_each_step_shows_the_numbers_of_the_library(page: Page, exact: Model) -> None:
    trace = exact.trace(TEXT, logits=True)
    tokens = exact.tokenize(TEXT)
    picture = at(page, 0)
    assert picture.locator("small").all_inner_texts() == [str(id) for id in tokens.ids]
    expect(at(page, 1).locator(".strip canvas")).to_have_count(len(trace.tokens))
    for step in (2, 3, 4):
        expect(at(page, step).locator("[data-part=motion]")).to_be_visible()
    heads = exact.num_layers * exact.num_heads
    expect(at(page, 5).locator(".cell")).to_have_count(heads)
    expect(at(page, 6).locator(".strip")).to_have_count(exact.num_layers + 1)
    ((word, share),) = exact.predict(TEXT, 1)[0]
    first = at(page, 7).locator("tbody tr").first
    expect(first.locator("th")).to_have_text(word)
    assert is_percent(first.locator(".outcome-now").inner_text(), share)
    said = page.locator(".story .step").nth(7).inner_text()
    assert word in said
    assert f"{len(exact.embedding.table):,} words" in said


@pytest.mark.parametrize("text", [f"{'Very ' * 20}{TEXT}", f"{TEXT} {'So it is. ' * 12}"])
def test_the_gap_of_a_long_sentence_is_among_the_vectors(
    visit: Visit, html: str, text: str, exact: Model
) -> None:
    page = ready(visit(opened_at(html, f'#text={text}&view="story"')))
    tokens = exact.tokenize(text).tokens
    picture = at(page, 1)
    names = picture.locator(".strip bdi").all_inner_texts()
    assert "___" in names
    assert "".join(names) in "".join(drawn(tokens))
    expect(picture).to_contain_text(f"14 of {len(tokens)} are shown.")
    page.set_viewport_size({"width": 390, "height": 800})
    at(page, 0)
    own, box = (
        at(page, 1).locator(".strip", has_text="___").bounding_box(),
        picture.bounding_box(),
    )
    assert own is not None
    assert box is not None
    assert box["y"] <= own["y"] <= own["y"] + own["height"] <= box["y"] + box["height"] + 1


def test_the_moments_of_a_query_are_three_steps(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    slider = page.locator(".story .motion-at")
    for step, moment in ((2, 30), (3, 40), (4, 60)):
        at(page, step)
        expect(slider).to_have_value(str(moment))


def test_it_plays_as_long_as_reading_takes(visit: Visit, html: str) -> None:
    page = ready(visit(opened_at(html, '#view="story"'), alone=True))
    page.clock.install()
    story, slider = page.locator(".story"), page.locator(".story .motion-at")
    words = [len(text.split()) for text in told(page)]
    page.get_by_role("button", name="▶ Play", exact=True).click()
    seconds: dict[str, float] = {}
    ends: dict[str, str] = {}  # the last moment of each step
    while page.locator(".play-story").inner_text() != "▶ Play":
        step = str(story.get_attribute("data-step"))
        seconds[step] = seconds.get(step, 0) + 0.5
        ends[step] = slider.input_value() if slider.count() else ""
        page.clock.run_for(500)
    assert list(seconds) == list("01234567")
    for time, count in zip(seconds.values(), words, strict=True):
        assert time >= count / 4  # at most four words a second
    assert [ends[step] for step in "234"] == ["30", "40", "60"]


def test_scrolling_turns_to_the_steps(page: Page) -> None:
    page.locator(".story .step").nth(3).evaluate("(step) => step.scrollIntoView({block: 'center'})")
    expect(page.locator(".story")).to_have_attribute("data-step", "3")
    box = page.locator(".story figure").bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 450  # the picture stays in view


def test_twelve_cards_stand_at_their_steps(page: Page) -> None:
    cards = page.locator(".story .asks button")
    names = cards.all_inner_texts()
    assert sorted(names) == sorted(f"Card {k + 1}" for k in range(12))
    for k in (2, 3):
        after(page, cards.nth(k).click)
        expect(page.locator(".cards h2")).to_have_text(f"{names[k]} of 12")
        step = page.locator(".story")
        after(page, page.get_by_role("button", name="End", exact=True).click)
        expect(page.locator(".story .big")).to_contain_text("drank")
        page.wait_for_timeout(300)
        expect(step).to_have_attribute("data-step", "3")


def test_keys_lead_from_step_to_step(page: Page) -> None:
    story = page.locator(".story")
    expect(story).to_have_attribute("data-step", "0")
    presses = [("PageDown", 1), ("ArrowRight", 2), ("ArrowDown", 3), ("PageUp", 2), ("ArrowUp", 1)]
    for key, step in presses:
        page.keyboard.press(key)
        expect(story).to_have_attribute("data-step", str(step))
    page.locator(".story h2").focus()
    page.keyboard.press("ArrowLeft")
    expect(story).to_have_attribute("data-step", "0")
    at(page, 5).locator(".cell-head").first.focus()
    page.keyboard.press("ArrowRight")
    expect(story).to_have_attribute("data-step", "5")


def told(page: Page) -> list[str]:
    """Return the texts of all steps."""
    return page.locator(".story .step > p:not(.asks)").all_inner_texts()


@pytest.mark.parametrize(
    ("hash_", "here", "fits"),
    [
        (f"#text={TEXT}&", "the gap", "is missing"),
        ("#text=The cat sat on the mat.&", "mat", "fits there"),
        ("#model=decoder&", "and", "may come next"),
    ],
)
def test_only_a_sentence_with_a_gap_has_a_gap_in_its_story(
    visit: Visit, html: str, hash_: str, here: str, fits: str
) -> None:
    page = ready(visit(opened_at(html, f'{hash_}view="story"')))
    steps = told(page)
    gap = here == "the gap"
    assert ("some word stands here" in steps[1]) == gap
    assert f"The vector of {here} " in steps[1]
    assert steps[6].endswith(f"it says which word {fits}.")
    assert ("gap" in " ".join(steps[:5] + steps[6:])) == gap


def test_the_step_on_heads_tells_the_measured_roles(page: Page, exact: Model) -> None:
    roles = [role for role, _ in qkv.play()._payload()["roles"].values()]
    total = exact.num_layers * exact.num_heads
    said = told(page)[5]
    first = roles.count("first")
    assert first == max(map(roles.count, roles))
    assert f"The model has {total}." in said
    assert f"In {first}, a word usually looks at the start of the text;" in said
    assert f"{total - len(roles)} have no measured role." in said
    assert "switch" not in at(page, 5).inner_text()
    page.get_by_role("button", name="Lab", exact=True).click()
    page.get_by_role("button", name="Look inside").click()
    expect(page.locator(".lab [data-part=map]")).to_contain_text("Its switch turns it off.")


def test_a_model_without_measured_heads_names_no_roles(visit: Visit, html: str) -> None:
    page = ready(visit(opened_at(html, '#model=decoder&view="story"')))
    heads = qkv.load("books-decoder").num_layers * qkv.load("books-decoder").num_heads
    assert told(page)[5] == f"That was one head. The model has {heads}."


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_and_the_picture_hides_no_text(
    visit: Visit, html: str, width: int
) -> None:
    page = ready(visit(opened_at(html, '#view="story"'), width=width, height=800))
    page.emulate_media(reduced_motion="reduce")
    for step in range(STEPS):
        at(page, step)
        page.wait_for_timeout(100)  # a scroll would lead to another step
        expect(page.locator(".story")).to_have_attribute("data-step", str(step))
        assert problems(page) == []
        figure, text = (
            page.locator(selector).first.bounding_box()
            for selector in (".story figure", ".story .step.on p")
        )
        assert figure is not None
        assert text is not None
        beside = text["x"] + text["width"] <= figure["x"] + 1
        assert beside or text["y"] >= figure["y"] + figure["height"] - 1
        assert text["y"] + text["height"] <= 800


@pytest.mark.parametrize("height", [667, 844])
def test_the_sum_of_the_mixed_values_is_in_view_on_a_phone(
    visit: Visit, html: str, height: int
) -> None:
    page = ready(visit(opened_at(html, '#view="story"'), width=390, height=height))
    page.emulate_media(reduced_motion="reduce")
    picture = at(page, 4)
    total = picture.locator(".motion-rows .sum")
    expect(total).to_contain_text("100%")
    box, frame = total.bounding_box(), picture.bounding_box()
    assert box is not None
    assert frame is not None
    assert box["y"] >= frame["y"]
    assert box["y"] + box["height"] <= frame["y"] + frame["height"]


def test_the_decoder_has_a_story_too(visit: Visit, html: str) -> None:
    page = ready(visit(opened_at(html, '#model=decoder&view="story"')))
    for step in range(STEPS):
        at(page, step)
    model = qkv.load("books-decoder", dtype=np.float64)
    logits = model.trace("She opened the door and", logits=True)["logits"][0, -1]
    word = model.tokenizer.token(int(logits.argmax())).lstrip("Ġ▁")
    expect(page.locator(".story .step.on p").first).to_contain_text(word)


def test_a_step_that_is_seen_late_changes_no_other_screen(visit: Visit, html: str) -> None:
    observed = """<script>
      const Own = IntersectionObserver;
      window.late = [];
      window.IntersectionObserver = class extends Own {
        constructor(hear, options) { super(hear, options); late.push(hear); }
      };
    </script>"""
    page = ready(visit(opened_at(html, '#view="story"').replace("<head>", f"<head>{observed}", 1)))
    hide = address(view="lab", text=TEXT, edits=[{"op": "hide", "token": 4}])
    after(page, lambda: page.evaluate("hash => { location.hash = hash; }", hide))
    headline = page.locator(".outcome-headline")
    said = headline.inner_text()
    assert "glass" in said
    entry = "{ isIntersecting: true, target: { dataset: { step: '7' } } }"  # the step of the guess
    page.evaluate(f"late.forEach((hear) => hear([{entry}]))")
    expect(headline).to_have_text(said)
