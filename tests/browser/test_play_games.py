"""Tests of the three games: the page's statements about the model match the library's."""

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import qkv
from qkv.models import Model

from .play import address, after, changed, opened_at, ready
from .support import Visit
from .test_play_page import check_layout

TEXT = "She drank a glass of [MASK]."
SENTENCES = ["The bank of the river was muddy.", "The bank gave us a loan for the house."]


@pytest.fixture(scope="module")
def html() -> str:
    return qkv.play()._document()


def opened(visit: Visit, html: str, view: str, **options: object) -> Page:
    return ready(visit(opened_at(html, f'#view="{view}"'), **options))


def guess_of(model: Model, text: str, **edits: object) -> str:
    return model.predict(text, 1, **edits)[0][0][0]


def test_beat_the_model(visit: Visit, html: str, exact: Model) -> None:
    page = opened(visit, html, "beat")
    say, go = page.locator(".beat .say"), page.locator(".beat .go")
    right = 0
    for k in range(10):
        field = page.get_by_label("the missing word")
        before, after_ = page.locator(".beat .big").evaluate(
            "(form) => [form.firstChild.data, form.lastChild.data]"
        )
        its = guess_of(exact, f"{before}[MASK]{after_}")
        field.fill("zebra")
        page.keyboard.press("Enter")
        expect(say).to_contain_text("You: zebra")
        expect(say).to_contain_text(f"The model: {its},")
        right += say.locator(".right").count()
        expect(page.locator(".beat .scores")).to_have_text(f"You: 0Model: {right}{k + 2} of 11")
        go.click()
    expect(say).to_contain_text("the model says wine")
    page.get_by_role("button", name=guess_of(exact, TEXT, hide=["glass"]), exact=True).click()
    expect(page.locator(".beat .scores")).to_contain_text("You: 1")
    go.click()
    score = page.get_by_label("Your score").input_value()
    assert f"I had 1 of 11 right, the model {right} of 10" in score
    assert score.splitlines()[1].endswith("□" * 10 + "■")
    page.get_by_role("button", name="Play again").click()
    expect(page.get_by_label("the missing word")).to_be_focused()


def test_break_it(visit: Visit, html: str, exact: Model) -> None:
    page = opened(visit, html, "break")
    was = guess_of(exact, TEXT)
    say, note = page.locator(".break .say"), page.locator(".break > .note")
    expect(say).to_contain_text(f"The model says {was}")
    expect(note).not_to_contain_text("looking", timeout=60_000)
    out: list[tuple[int, int]] = []
    heads = [(layer, head) for layer in range(exact.num_layers) for head in range(exact.num_heads)]
    while guess_of(exact, TEXT, ablate=out) == was and len(out) < 6:
        left = [one for one in heads if one not in out]
        said = [exact.predict(TEXT, 20, ablate=[*out, one])[0] for one in left]
        lost = [(rows[0][0] == was, dict(rows).get(was, 0)) for rows in said]
        out.append(left[min(range(len(left)), key=lambda k: lost[k])])
    after(page, page.get_by_role("button", name="Show me").click)
    shown = [(edit["layer"], edit["head"]) for edit in changed(page)]
    assert shown == out
    now = guess_of(exact, TEXT, ablate=out)
    assert now != was
    expect(say).to_contain_text(f"{was} has become {now}")
    after(page, page.get_by_role("button", name="All heads on").click)
    assert changed(page) == []
    head = page.get_by_role("button", name="head 0.0 off")
    after(page, head.click)
    expect(head).to_have_attribute("aria-pressed", "true")
    expect(say).to_contain_text("1 head off")


def test_break_it_compares_with_the_run_that_keeps_the_other_changes(
    visit: Visit, html: str, exact: Model
) -> None:
    hide = {"op": "hide", "token": exact.tokenize(TEXT).tokens.index("glass")}
    page = ready(visit(opened_at(html, address(view="break", text=TEXT, edits=[hide]))))
    say = page.locator(".break .say")
    was = guess_of(exact, TEXT, hide=["glass"])
    assert was != guess_of(exact, TEXT)
    expect(say).to_contain_text(f"The model says {was}")
    for layer, head in ((0, 0), (1, 4)):
        now = guess_of(exact, TEXT, hide=["glass"], ablate=[(layer, head)])
        after(page, page.get_by_role("button", name=f"head {layer}.{head} off").click)
        told = f"1 head off. It still says {was}." if now == was else f"{was} has become {now}."
        expect(say).to_contain_text(told)
        after(page, page.get_by_role("button", name="All heads on").click)
    assert now != was


def test_break_it_needs_a_gap(visit: Visit, html: str) -> None:
    page = ready(visit(opened_at(html, address(view="break", text="The cat sat on the mat."))))
    expect(page.locator(".break .say")).to_have_text("Write a sentence with a gap first.")
    expect(page.get_by_role("button", name="Show me")).to_be_disabled()
    after(page, page.get_by_role("button", name="head 0.0 off").click)
    expect(page.locator(".break .say")).to_have_text("Write a sentence with a gap first.")


def test_watch_a_word_change_its_mind(visit: Visit, html: str, exact: Model) -> None:
    page = opened(visit, html, "watch")
    traces = [exact.trace(text) for text in SENTENCES]
    vectors = []
    for trace in traces:
        position = trace.tokens.index("bank")
        layers = range(exact.num_layers)
        after_each = [trace["normalized_resid_post", k][0, position] for k in layers]
        vectors.append([trace["hook_full_embed"][0, position], *after_each])
    slider, say = page.get_by_label("Layer"), page.locator(".watch .say")
    place_of = "(dot) => [parseFloat(dot.style.cx), parseFloat(dot.style.cy)]"
    points = []
    for k, (a, b) in enumerate(zip(*vectors, strict=True)):
        slider.fill(str(k))
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        expect(say).to_contain_text("one and the same" if k == 0 else f"{cosine:.2f}")
        dots = page.locator(".watch .dot")
        points.append([dots.nth(side).evaluate(place_of) for side in (0, 1)])
    apart = [np.subtract(b, a) for a, b in points]
    assert np.abs(apart[0]).max() < 1e-3  # one point
    assert apart[-1][0] > 100  # two points
    # the first axis shows each layer's difference, projected onto the last layer's
    ends = [np.subtract(b, a) for a, b in zip(*vectors, strict=True)]
    shares = [one @ ends[-1] / (ends[-1] @ ends[-1]) for one in ends]
    np.testing.assert_allclose([one[0] / apart[-1][0] for one in apart], shares, atol=1e-3)
    page.get_by_label("sentence B").fill("A dog.")
    expect(say).to_contain_text("one word in common")
    page.get_by_label("sentence B").fill("The muddy dog.")
    expect(page.locator(".watch h2")).to_have_text("Watch muddy change its mind")


@pytest.mark.parametrize("view", ["games", "beat", "break", "watch"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overlaps_and_axe_finds_nothing(
    visit: Visit, html: str, view: str, width: int
) -> None:
    page = opened(visit, html, view, width=width, height=800)
    page.locator("h2").last.wait_for()
    check_layout(page)
