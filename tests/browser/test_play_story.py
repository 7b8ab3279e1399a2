"""Tests of the story behind the guess: eight steps in one frame, with the library's numbers."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

import qkv
from qkv.models import Model

from .engine import shares
from .outcome import is_percent
from .play import STILL, address, after, button, changed, opened_at, ready
from .support import Visit, drawn, hold_clock
from .test_page import problems

TEXT = "She drank a glass of [MASK]."
LONG = "The old [MASK] of the north looked at the house and said that he had never been there."
STEPS = 8
TOKENS, QUERY, SCORES, WEIGHTS, VALUES, HEADS, LAYERS, GUESS = range(STEPS)
FRAME = """() => {
  const view = document.querySelector(".qkv-view").shadowRoot;
  const parts = ["h2", ".telling", ".stage", ".words", ".picture", ".control", ".steps"];
  return parts.map((name) => {
    const { x, y, width, height } = view.querySelector(`.story ${name}`).getBoundingClientRect();
    return [name, Math.round(x), Math.round(y), Math.round(width), Math.round(height)];
  });
}"""


@pytest.fixture(scope="module")
def html() -> str:
    return qkv.play()._document()


@pytest.fixture
def page(quick_at: Visit) -> Page:
    return still(quick_at('#view="story"'))


def still(page: Page) -> Page:
    page.emulate_media(reduced_motion="reduce")
    return ready(page)


def at(page: Page, step: int) -> Locator:
    """Take the story to a step by a clicker's keys, and return the step's picture."""
    story = page.locator(".story")
    while (now := int(story.get_attribute("data-step") or 0)) != step:
        page.keyboard.press("PageDown" if now < step else "PageUp")
        expect(story).not_to_have_attribute("data-step", str(now))
    return page.locator(".story .picture")


def says(page: Page) -> str:
    return page.locator(".story .telling").inner_text()


def lines(page: Page) -> str:
    """Return the description of the lines above the sentence."""
    return str(page.locator(".story .arcs").get_attribute("aria-label"))


def word(page: Page, name: str) -> Locator:
    return page.locator(".story .words > *", has_text=re.compile(f"^{name}$"))


def lens_of(model: Model, text: str, position: int) -> tuple[list[str], np.ndarray]:
    """Return the likeliest words after each layer, and their probabilities."""
    logits = qkv.circuits.logit_lens(model, model.trace(text, logits=True))
    found = shares(np.asarray(logits)[:, position])
    return [model.tokenizer.token(int(id)) for id in found.argmax(-1)], found.max(-1)


def test_each_step_shows_the_librarys_numbers(page: Page, exact: Model) -> None:
    trace = exact.trace(TEXT, logits=True)
    tokens = exact.tokenize(TEXT)
    layer, head = 3, 2
    row = trace["pattern", layer][0, head, 6]
    picture = at(page, TOKENS)
    assert picture.locator("small").all_inner_texts() == [str(id) for id in tokens.ids]
    assert picture.locator("bdi").all_inner_texts() == drawn(tokens.tokens)
    assert f"into {len(tokens.ids)} tokens" in says(page)
    assert f"into {exact.dim} numbers" in says(page)
    best = trace.tokens[int(trace["attn_scores", layer][0, head, 6].argmax())]
    scores = at(page, SCORES).locator(".motion-figure").all_inner_texts()
    assert len(scores) == len(trace.tokens) + 2  # with the query and the sum
    assert f"Watch {best}, the best match." in says(page)
    shown = at(page, WEIGHTS).locator(".motion-figure").all_inner_texts()[1:-1]
    for text, weight in zip(shown, row, strict=True):
        assert is_percent(text.replace("<", "under "), weight)
    expect(at(page, VALUES).locator(".motion-rows .sum")).to_contain_text("100%")
    squares = at(page, HEADS).locator(".squares i")
    expect(squares).to_have_count(exact.num_layers * exact.num_heads)
    assert f"This is head {layer}.{head}, one of {len(squares.all())}." in says(page)
    top = int(row.argmax())
    for square in squares.all():
        own_layer, own_head = divmod(int(square.get_attribute("data-head")), exact.num_heads)
        own = float(square.evaluate("(square) => square.style.getPropertyValue('--share')"))
        assert own == pytest.approx(trace["pattern", own_layer][0, own_head, 6, top], abs=1e-4)
    expect(at(page, HEADS).locator("p")).to_contain_text(f"weight on {trace.tokens[top]}.")
    ((guess, share),) = exact.predict(TEXT, 1)[0]
    first = at(page, GUESS).locator("tbody tr").first
    expect(first.locator("th")).to_have_text(guess)
    assert is_percent(first.locator(".outcome-now").inner_text(), share)
    said = f"with the vocabulary's {len(exact.embedding.table):,} tokens. Best match: {guess}, "
    assert said in says(page)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_the_slider_shows_the_guess_after_each_layer(visit_at: Visit, side: str) -> None:
    page = still(visit_at(f'#model={side}&view="story"'))
    model = qkv.load("books" if side == "encoder" else "books-decoder", dtype=np.float64)
    text = TEXT if side == "encoder" else "She opened the door and"
    words, probabilities = lens_of(model, text, 6 if side == "encoder" else -1)
    rows = at(page, LAYERS).locator(".lens li")
    expect(rows).to_have_count(model.num_layers + 1)
    assert len(set(words)) > 1
    slider = page.locator(".story .control input")
    for k, (name, share) in enumerate(zip(words, probabilities, strict=True)):
        name = name.lstrip("Ġ▁")
        expect(rows.nth(k).locator("b")).to_have_text(name)
        assert is_percent(rows.nth(k).locator("small").inner_text(), share)
        slider.fill(str(k))
        expect(page.locator(".story .gap b.now, .story .gap b.arriving").last).to_have_text(name)
        expect(rows.nth(k)).to_have_class("on")
        when = f"after layer {k - 1}" if k else "at first"
        expect(slider).to_have_attribute("aria-valuetext", when)
        expect(page.locator(".story .gap")).to_have_attribute("aria-label", f"the guess {when}")
    at(page, GUESS)
    expect(page.locator(".story .gap b").last).to_have_text(words[-1].lstrip("Ġ▁"))


def test_the_guess_is_out_of_sight_until_the_layers_tell_it(page: Page) -> None:
    for step in range(STEPS):
        at(page, step)
        expect(page.locator(".story .gap .guess")).to_be_visible(visible=step >= LAYERS)


@pytest.mark.parametrize("size", [(390, 844), (1280, 800), (1920, 1080)])
@pytest.mark.parametrize(
    "hash_", ["#model=encoder", f"#text={LONG}", "#model=decoder"], ids=["usual", "long", "decoder"]
)
def test_nothing_jumps_between_the_steps(
    visit_at: Visit, hash_: str, size: tuple[int, int]
) -> None:
    page = still(visit_at(f'{hash_}&view="story"', width=size[0], height=size[1]))
    page.locator(".story").wait_for()
    frames = []
    for step in range(STEPS):
        at(page, step)
        frames.append(page.evaluate(FRAME))
        assert page.evaluate("scrollY") == 0
    assert all(frame == frames[0] for frame in frames)
    _, _, y, _, height = frames[0][-1]
    assert y + height <= size[1]  # the buttons are in view
    telling = page.locator(".story .telling")
    assert telling.evaluate("(it) => it.scrollHeight <= it.clientHeight + 1")


def test_keys_and_buttons_lead_from_step_to_step(page: Page) -> None:
    story = page.locator(".story")
    expect(story).to_have_attribute("data-step", "0")
    presses = [("PageDown", 1), ("ArrowRight", 2), ("ArrowDown", 3), ("PageUp", 2), ("ArrowUp", 1)]
    for key, step in [*presses, ("ArrowLeft", 0), ("PageUp", 0)]:
        page.keyboard.press(key)
        expect(story).to_have_attribute("data-step", str(step))
    for step in range(1, STEPS):
        button(page, "Next").click()
        expect(story).to_have_attribute("data-step", str(step))
    expect(page.locator(".story .steps .primary")).to_be_hidden()  # the story has an end
    page.keyboard.press("PageDown")
    expect(story).to_have_attribute("data-step", "7")
    button(page, "Back").click()
    expect(story).to_have_attribute("data-step", "6")
    slider = page.locator(".story .control input")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(story).to_have_attribute("data-step", "6")  # the arrows move the slider
    expect(slider).to_have_value("3")
    page.keyboard.press("PageUp")  # a clicker's keys always turn
    expect(story).to_have_attribute("data-step", "5")


def test_the_reader_drags_the_query_from_word_to_word(page: Page, exact: Model) -> None:
    at(page, QUERY)
    trace = exact.trace(TEXT)
    row = trace["pattern", 3][0, 2]
    assert says(page).startswith("The gap has a query:")

    def follows(token: int) -> None:
        name = "the gap" if token == 6 else trace.tokens[token]
        expect(page.locator(".story .telling em")).to_have_text("The gap" if token == 6 else name)
        words = [t for t in range(1, 7) if t not in (token, 6)]
        most = max(words, key=lambda t: row[token, t])
        found = re.fullmatch(r"(.+) attends most to (\w+) ([^,;]+).*, in head 3\.2", lines(page))
        assert (found[1], found[2].lower()) == (name, trace.tokens[most])
        assert is_percent(found[3], row[token, most])
        expect(page.locator(".story .asks")).to_have_count(1)
        expect(page.locator(".motion-rows .query")).to_contain_text(name)

    def middle(node: Locator) -> tuple[float, float]:
        box = node.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    follows(6)
    page.mouse.move(*middle(page.locator(".story .gap")))
    page.mouse.down()
    page.mouse.move(*middle(word(page, "glass")), steps=8)
    follows(4)
    page.mouse.move(*middle(word(page, "She")), steps=8)
    follows(1)
    page.mouse.up()
    page.mouse.move(*middle(word(page, "drank")), steps=4)
    follows(1)  # the button is up
    word(page, "drank").press("Enter")
    follows(2)
    page.locator(".story .control input").press("ArrowRight")
    follows(3)
    page.locator(".story .control input").press("End")
    page.locator(".story .control input").press("ArrowLeft")
    follows(6)


def test_a_word_that_is_taken_away_leaves_its_weight_to_the_others(
    page: Page, exact: Model
) -> None:
    at(page, WEIGHTS)
    plain = exact.trace(TEXT)["pattern", 3][0, 2, 6]
    other = exact.trace(TEXT, hide=[(6, 2, 3, 2)])["pattern", 3][0, 2, 6]
    assert other[2] == 0
    assert other[4] == pytest.approx(plain[4] / (1 - plain[2]))
    for row in (other, plain):
        after(page, word(page, "drank").click)
        shown = page.locator(".story .motion-figure").all_inner_texts()[1:-1]
        for k, (text, weight) in enumerate(zip(shown, row, strict=True)):
            masked = k == 2 and row is other
            assert text == "hidden" if masked else is_percent(text.replace("<", "under "), weight)
        assert ("off" in str(word(page, "drank").get_attribute("class"))) == (row is other)
    after(page, word(page, "glass").click)
    assert changed(page) == [{"op": "masks", "layer": 3, "head": 2, "rows": [[6, 4, 4]]}]
    after(page, lambda: page.keyboard.press("PageDown"))
    assert changed(page) == []  # the next step shows the model as it is
    assert "off" not in str(word(page, "glass").get_attribute("class"))


def test_the_slider_and_the_squares_choose_a_head(page: Page, exact: Model) -> None:
    at(page, HEADS)
    roles = qkv.play()._payload()["roles"]
    after(page, lambda: page.locator(".story .control input").fill("8"))
    assert lines(page).endswith("in head 1.2")
    expect(page.locator(".story .heads p")).to_contain_text("Head 1.2")
    assert ("usually" in page.locator(".story .heads p").inner_text()) == ("1.2" in roles)
    after(page, page.locator(".story .squares i[data-head='0']").click)
    assert "This is head 0.0, one of " in says(page)
    row = exact.trace(TEXT)["pattern", 0][0, 0, 6]
    share = re.search(r"attends most to \w+ ([^,;]+)", lines(page))[1]
    assert is_percent(share, max(row[1:6]))


def test_a_press_hides_a_word_at_the_end(page: Page, exact: Model) -> None:
    at(page, GUESS)
    after(page, word(page, "glass").click)
    assert changed(page) == [{"op": "hide", "token": 4}]
    ((guess, _),) = exact.predict(TEXT, 1, hide=["glass"])[0]
    assert f"Best match: {guess}, " in says(page)
    for name in ("12 questions", "Play a game", "Open the lab"):
        expect(button(page, name)).to_be_visible()
    after(page, button(page, "12 questions").click)
    expect(page.locator(".cards h2")).to_have_text("Card 1 of 12")


def test_it_plays_as_long_as_reading_takes(visit_at: Visit) -> None:
    page = visit_at('#view="story"', alone=True)
    told = {}
    for step in range(STEPS):
        at(page, step)
        told[step] = len(says(page).split())
    at(page, 0)
    hold_clock(page)
    story = page.locator(".story")
    page.get_by_role("button", name="▶ Play", exact=True).click()
    seconds: Counter[int] = Counter()
    while page.locator(".play-story").inner_text() != "▶ Play":
        seconds[int(story.get_attribute("data-step"))] += 0.5
        page.clock.run_for(500)
    assert list(seconds) == list(told)
    for words, time in zip(told.values(), seconds.values(), strict=True):
        assert words / 4 <= time <= words / 2 + 5  # two to four words a second


def test_only_a_model_with_measured_heads_names_roles(
    visit_at: Visit, visit: Visit, tmp_path: Path
) -> None:
    page = still(visit_at('#model=decoder&view="story"'))
    expect(at(page, HEADS).locator("p")).to_contain_text("usually attends to")
    model = qkv.load("books-decoder")
    assert f"one of {model.num_layers * model.num_heads}." in says(page)
    norm = {"final_norm.weight": model.parameters["final_norm.weight"] * 1.01}
    model.with_parameters({**model.parameters, **norm}).save(tmp_path)
    other = visit(opened_at(qkv.play(model=str(tmp_path))._document(), '#view="story"'))
    expect(at(still(other), HEADS).locator("p")).not_to_contain_text("usually")


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(visit_at: Visit, width: int) -> None:
    page = still(visit_at('#view="story"', width=width, height=800))
    for step in range(STEPS):
        at(page, step)
        page.locator(".story").evaluate(STILL)
        assert problems(page) == []


@pytest.mark.parametrize("height", [667, 844])
def test_the_sum_of_the_values_is_in_view_on_a_phone(visit_at: Visit, height: int) -> None:
    page = still(visit_at('#view="story"', width=390, height=height))
    picture = at(page, VALUES)
    total = picture.locator(".motion-rows .sum")
    expect(total).to_contain_text("100%")
    box, frame = total.bounding_box(), picture.bounding_box()
    assert box["y"] >= frame["y"]
    assert box["y"] + box["height"] <= frame["y"] + frame["height"] + 1


def test_a_late_answer_changes_no_other_screen(visit_at: Visit) -> None:
    page = still(visit_at('#view="story"'))
    at(page, LAYERS)
    hide = address(view="lab", text=TEXT, edits=[{"op": "hide", "token": 4}])
    after(page, lambda: page.evaluate("hash => { location.hash = hash; }", hide))
    expect(page.locator(".outcome-headline")).to_contain_text("glass")
    page.locator(".outcome-headline").evaluate(STILL)
    expect(page.locator(".outcome-headline")).to_contain_text("glass")
    page.keyboard.press("PageDown")  # the story is not open
    assert page.locator(".story").count() == 0
