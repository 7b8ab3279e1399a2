"""Tests of the live page's first screen.

The screen shows one idea, and one press of a button demonstrates it.
"""

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

import qkv
from qkv.models import Model
from qkv.see.page.play import OPENING, SPEAKERS

from .engine import by_the_library, shares
from .opening import Scheme
from .outcome import is_percent
from .play import CROSSED, LINES, after, button, changed, opened_at, ready
from .support import Visit, with_first
from .test_play_page import check_layout

TEXT = "She drank a glass of [MASK]."
# Returns the controls in sight, except for the words of the sentence.
CONTROLS = """() => {
  const all = [];
  const look = (node) => {
    for (const one of node.querySelectorAll("*")) {
      if (one.shadowRoot) look(one.shadowRoot);
      if (one.matches(`a[href], button, input, select, textarea, summary, [tabindex="0"]`))
        all.push(one);
    }
  };
  look(document);
  const seen = (node) => {
    const box = node.getBoundingClientRect();
    return node.checkVisibility() && box.width && box.top < innerHeight;
  };
  const controls = all.filter((node) => seen(node) && !node.closest(".words"));
  return controls.map((node) => node.textContent);
}"""
WRITTEN = "new URLSearchParams(location.hash.slice(1)).get('text')"
WRAPPED = [
    TEXT,
    "The old [MASK] of the north looked at the small house and said that he had never been there.",
    "In the dark night the captain of the ship [MASK] the men who had lost their way in the ice.",
    "[MASK] people in the village knew the way to the house by the river.",
]


@pytest.fixture(scope="module")
def html() -> str:
    return qkv.play()._document()


@pytest.fixture
def page(visit: Visit, html: str) -> Page:
    return ready(visit(html))


def stage(page: Page) -> Locator:
    return page.locator(".front > [data-part=stage]")


def guess(page: Page) -> str:
    return stage(page).locator(".guess .now, .guess .arriving").last.inner_text()


def in_sight(page: Page, node: Locator) -> None:
    box, size = node.bounding_box(), page.viewport_size
    assert size is not None
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= size["height"]


@pytest.mark.parametrize("width", [390, 736, 1280, 1440, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_shows_one_idea(
    visit: Visit, html: str, width: int, scheme: Scheme
) -> None:
    page = ready(visit(html, width=width, height=800, scheme=scheme))
    title = page.locator(".front h2").first
    expect(title).to_have_text("Hide a word. Watch the model change its mind.")
    for node in (title, stage(page).locator(".big"), page.locator(".says")):
        in_sight(page, node)
    assert len(stage(page).evaluate(LINES)) >= 3
    assert len(page.evaluate(CONTROLS)) <= 9
    first = page.locator("[data-qkv-first]")
    assert first.count() == 1
    expect(first.locator("bdi")).to_have_text("glass")
    in_sight(page, first)
    check_layout(page)


@pytest.mark.parametrize("fragment", ["", "#model=decoder"])
def test_the_first_screen_says_what_the_model_has_read(visit_at: Visit, fragment: str) -> None:
    page = visit_at(fragment)
    said = "A small model has read 273 books from before 1930 and a dictionary."
    expect(page.locator(".front .read").locator("visible=true")).to_have_text(said)


@pytest.mark.parametrize("fragment", ["", "#model=decoder"])
def test_each_sentence_of_the_shelf_is_one_press(visit_at: Visit, fragment: str) -> None:
    page = visit_at(fragment)
    shelf = SPEAKERS["books-decoder" if fragment else "books"]["shelf"]
    buttons = page.get_by_role("region", name="Sentences to try").get_by_role("button")
    assert buttons.count() == len(shelf)
    check_layout(page)
    for one in shelf[::3]:
        after(page, buttons.filter(has_text=one["kind"]).click)
        assert page.evaluate(WRITTEN) == one["text"]
        assert guess(page) in one["says"]
        assert page.locator(".shelf [aria-pressed=true] b").inner_text() == one["kind"]
        in_sight(page, stage(page))


def test_one_press_changes_the_guess_and_the_lines(page: Page, exact: Model) -> None:
    def expected(**edits: object) -> tuple[str, float, dict[str, float]]:
        trace = exact.trace(TEXT, logits=True, **edits)
        position = trace.tokens.index("[MASK]")
        row = np.mean([trace["pattern", k][0] for k in range(exact.num_layers)], (0, 1))[position]
        ((word, share),) = exact.predict(TEXT, 1, **edits)[0]
        words = {str(t): row[t] for t, token in enumerate(trace.tokens) if token.isalpha()}
        return word, share, words

    for edits in ({}, {"hide": ["glass"]}, {}):
        word, share, row = expected(**edits)
        assert guess(page) == word
        assert is_percent(stage(page).locator("small").inner_text().split()[-1], share)
        assert word in page.locator("[data-part=headline]").inner_text()
        widths = dict(stage(page).evaluate(LINES))
        assert widths.keys() <= row.keys()
        for token, width in widths.items():
            assert width == pytest.approx(1.5 + 26 * row[token], abs=1e-4)
        assert all(row[token] < 0.02 for token in row.keys() - widths.keys())
        picture = stage(page).get_by_role("img").and_(stage(page).locator(".arcs"))
        most, *hidden = str(picture.get_attribute("aria-label")).split("; hidden: ")
        best = [word.split()[0] for word in most.split("most to ")[1].split(", ")[:3]]
        words = exact.tokenize(TEXT).tokens
        assert [words[int(t)] for t in sorted(row, key=row.get, reverse=True)[:3]] == best
        assert hidden == edits.get("hide", [])
        first = page.locator("[data-qkv-first]")
        assert first.get_attribute("aria-pressed") == str(bool(edits)).lower()
        after(page, first.click)
    assert changed(page) == [{"op": "hide", "token": 4}]


@pytest.mark.parametrize("text", WRAPPED)
def test_no_line_crosses_a_word_of_a_sentence_with_several_rows(visit_at: Visit, text: str) -> None:
    page = visit_at(text=text, width=390, height=844)
    count, crossed = stage(page).evaluate(CROSSED, [".arcs", ".words > *, small", 0])
    assert count >= 3
    assert crossed == []


def test_the_note_on_the_first_word_covers_no_other_word(visit: Visit, html: str) -> None:
    page = ready(visit(html, width=390, height=844))
    page.emulate_media(reduced_motion="reduce")
    note, gap = (stage(page).locator(name).bounding_box() for name in (".tap", ".gap"))
    assert note["y"] + note["height"] <= gap["y"]


@pytest.mark.parametrize(("width", "wide"), [(390, 340), (1280, 900), (1920, 900)])
def test_the_field_for_a_readers_sentence_is_as_wide_as_the_page_allows(
    visit: Visit, html: str, width: int, wide: int
) -> None:
    page = ready(visit(html, width=width))
    button(page, "Your own sentence").click()
    box = page.get_by_label("Your sentence").bounding_box()
    assert box["width"] >= wide


def test_nothing_moves_where_motion_is_reduced(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    before = guess(page)
    moving = "() => document.querySelector('.qkv-view').shadowRoot.getAnimations().length"
    page.locator("[data-qkv-first]").click()
    page.wait_for_function("() => document.documentElement.dataset.qkv === 'ready'")
    ready(page)
    assert page.evaluate(moving) == 0
    assert guess(page) != before


def test_a_readers_own_sentence(page: Page, exact: Model) -> None:
    button(page, "Your own sentence").click()
    field = page.get_by_label("Your sentence")
    after(page, lambda: field.fill("The sun rises in the _."))
    assert guess(page) == exact.predict("The sun rises in the [MASK].", 1)[0][0][0]
    expect(field).to_have_value("The sun rises in the _.")
    after(page, lambda: field.fill("No gap here."))
    expect(page.locator(".front .unread")).to_contain_text("There is no gap")
    after(page, lambda: field.fill(""))
    assert page.locator(".front .trouble").is_hidden()


def test_an_address_of_the_lab_opens_the_lab(visit_at: Visit) -> None:
    for hash_ in ("#inside=true", '#view="lab"', "#second=%22A+bank.%22", "#card=0"):
        page = visit_at(hash_)
        assert page.locator(".lab").is_visible()
        assert page.locator(".front").count() == 0


def test_a_region_in_a_frame_leads_to_the_lab(visit_at: Visit) -> None:
    page = visit_at("#only=%5B%22head%22%5D&head=1")
    link = page.get_by_role("link", name="The whole page").get_attribute("href")
    whole = visit_at(link[link.index("#") :])
    assert whole.locator(".lab [data-part=map]").count() == 1


def test_the_headline_names_other_edits_and_they_can_be_cleared(visit: Visit, exact: Model) -> None:
    text, edits = "The sun rises in the [MASK].", {"ablate": [(3, 2)], "hide": ["sun"]}
    page = ready(visit(qkv.play(text, **edits)._document()))
    assert guess(page) == exact.predict(text, 1, **edits)[0][0][0]
    assert "head 3.2" in page.locator("[data-part=headline]").inner_text()
    expect(page.get_by_role("button", name="sun", pressed=True)).to_have_count(1)
    assert page.evaluate("location.hash") == ""
    after(page, button(page, "Clear all changes").click)
    assert guess(page) == exact.predict(text, 1)[0][0][0]
    expect(button(page, "Clear all changes")).to_be_hidden()


def test_the_screens_are_in_the_address(page: Page) -> None:
    button(page, "Open the lab").click()
    page.wait_for_function("() => location.hash.includes('lab')")
    page.locator(".ways").get_by_role("button", name="Games").click()
    page.wait_for_function("() => location.hash.includes('games')")
    page.locator(".ways").get_by_role("button", name="Start").click()
    page.wait_for_function("() => location.hash === ''")
    assert guess(page) == "wine"


def test_the_decoder_continues_the_same_sentence(page: Page) -> None:
    button(page, "Write a text").click()
    ready(page)
    expect(stage(page).locator(".words")).to_contain_text("She drank a glass of")
    expect(page.locator("[data-qkv-first]")).to_have_text("Continue")
    field = page.get_by_label("Your sentence")
    expect(field).to_have_value("She drank a glass of")
    assert len(page.evaluate(CONTROLS)) <= 9
    button(page, "Guess a word").click()
    ready(page)
    button(page, "Your own sentence").click()
    after(page, lambda: field.fill("The old man looked at the _ again."))
    button(page, "Write a text").click()
    ready(page)
    expect(stage(page).locator(".words")).to_contain_text("The old man looked at the")
    page.locator("[data-qkv-first]").click()
    page.locator("[data-writing=done]").wait_for()
    assert page.locator(".piece").count() > 3
    button(page, "Guess a word").click()
    ready(page)
    button(page, "Write a text").click()  # unchanged, since the reader has typed nothing else
    ready(page)
    expect(stage(page).locator(".words")).to_contain_text("The old man looked at the")


def test_back_leads_to_the_screen_before(visit: Visit, html: str) -> None:
    page = ready(visit(html, alone=True))
    after(page, page.locator("[data-qkv-first]").click)
    now = guess(page)
    after(page, button(page, "Open the lab").click)
    after(page, button(page, "Games").click)
    button(page, "Write a text").click()
    ready(page)
    for screen in (".games", ".lab", ".front"):
        page.go_back()
        page.locator(screen).wait_for()
    ready(page)
    assert guess(page) == now


def test_undo_after_back_undoes_the_last_change(visit: Visit, html: str) -> None:
    page = ready(visit(html, alone=True))
    after(page, page.locator("[data-qkv-first]").click)
    after(page, button(page, "Open the lab").click)
    after(page, button(page, "Games").click)
    after(page, page.go_back)
    after(page, button(page, "Undo").click)
    assert changed(page) == []


FOCUS = """() => {
  let node = document.activeElement;
  while (node.shadowRoot) node = node.shadowRoot.activeElement ?? {};
  return node.localName;
}"""


def test_the_focus_stays_on_the_screen(visit: Visit, html: str) -> None:
    page = ready(visit(html, alone=True))
    for name in ("Open the lab", "← Start", "Games", "← Start"):
        page.get_by_role("button", name=name, exact=True).focus()
        after(page, lambda: page.keyboard.press("Enter"))
        assert page.evaluate(FOCUS) == "h2"
    send = button(page, "Share")
    send.click()
    button(page, "Close").press("Enter")
    expect(send).to_be_focused()
    expect(send).to_have_attribute("aria-expanded", "false")
    after(page, lambda: page.evaluate('() => { location.hash = \'edits=[{"op":"causal"}]\'; }'))
    after(page, lambda: button(page, "Clear all changes").press("Enter"))
    expect(button(page, "Your own sentence")).to_be_focused()


# Lets the model answer only after `answer()` is called.
HELD = """<script>
  const held = new Promise((answered) => { window.answer = answered; });
  addEventListener("qkv", () => {
    const { run } = qkv;
    qkv.run = async (...asked) => (await held, run(...asked));
  });
</script>"""


@pytest.mark.parametrize("hash_", ["", "#model=decoder", '#view="lab"', '#view="story"'])
def test_until_the_first_answer_the_page_says_that_it_is_loading(
    visit: Visit, html: str, hash_: str
) -> None:
    page = visit(with_first(opened_at(html, hash_), HELD))
    loading = page.get_by_text("The model is loading")
    expect(loading).to_be_visible()
    page.evaluate(
        """() => {
          const content = document.querySelector(".qkv-view").shadowRoot.querySelector(".content");
          if (!content.lastElementChild.previousElementSibling.inert) throw Error("controls work");
          for (const one of content.querySelectorAll("button:not(.ways *), input")) one.click();
        }"""
    )  # even a press by a script throws no error
    expect(loading).to_be_visible()
    page.evaluate("() => answer()")
    ready(page)
    expect(loading).to_be_hidden()
    assert page.locator("[inert]").count() == 0


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_an_empty_sentence_has_no_story(visit_at: Visit, side: str) -> None:
    page = visit_at(f'#model={side}&text=&view="story"')
    expect(page.locator(".story")).to_contain_text("There is no guess to explain")
    expect(page.locator(".story .frame")).to_be_hidden()


def test_a_next_word_has_the_models_probability_and_the_share_of_its_draws(visit_at: Visit) -> None:
    page = visit_at("#model=decoder")
    model = qkv.load("books-decoder", dtype=np.float64)
    logits = np.sort(by_the_library(model, OPENING).logits[-1])[::-1]
    own = shares(logits)
    for temperature in (0.3, 0.8, 2.0, 0):
        page.get_by_label("Temperature").fill(str(temperature))
        draws = shares(logits[:40] / (temperature or 1e-9))
        shown = page.locator(".drawn b").all_inner_texts()
        assert len(shown) == 5
        assert all(is_percent(one, share) for one, share in zip(shown, own, strict=False))
        notes = page.locator(".drawn small").all_inner_texts()
        for note, share in zip(notes, draws, strict=False):
            assert is_percent(note.removeprefix(f"drawn at {temperature:.1f}: "), share)
    headline = page.locator("[data-part=headline]").inner_text()
    assert shown[0] in headline  # the same word has the same probability
