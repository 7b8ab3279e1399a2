"""Tests of the three games: the page's statements about the model match the library's."""

import json

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import qkv
from qkv.models import Model
from qkv.models.files.find import shipped

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


def test_beat_the_model_counts_the_authors_words_for_both_over_equal_rounds(
    visit: Visit, html: str, exact: Model
) -> None:
    page = opened(visit, html, "beat")
    game = json.loads((shipped()["books"] / "game.json").read_text("utf-8"))
    sentences = game["sentences"]
    expect(page.locator(".beat")).to_contain_text(f"{game['title']} by {game['author']}")
    expect(page.locator(".beat")).to_contain_text("Only the author's word counts")
    say, acts, score = (page.locator(f".beat .{name}") for name in ("say", "acts", "scores"))
    hits = [0, 0]
    marks = ["", ""]
    for k in range(10):
        gapped, right = sentences[k]
        words = sorted(sentences[k + 10 * other][1] for other in range(4))
        expect(page.locator(".beat .big")).to_have_text(gapped)
        expect(acts.get_by_role("button")).to_have_text(words)
        ranked = [word for word, _ in exact.predict(gapped.replace("_", "[MASK]"), 16_384)[0]]
        its = next(word for word in ranked if word in words)
        mine = right if k % 3 else words[words[0] == right]
        acts.get_by_role("button", name=mine, exact=True).click()
        said = [f"You: {mine}", f"The model: {its}", f"The author: {right}"]
        for one in (*said, f"Of all words, the model would say {ranked[0]} ("):
            expect(say).to_contain_text(one)
        for who, word in enumerate((mine, its)):
            hits[who] += word == right
            marks[who] += "■" if word == right else "□"
        assert say.locator(".right").count() == (mine == right) + (its == right)
        expect(score).to_have_text(f"You: {hits[0]}Model: {hits[1]}{k + 1} of 10")
        if k < 9:
            acts.get_by_role("button", name="Next").click()
    you, it = hits
    won = f"You win, {you} to {it}." if you > it else f"The model wins, {it} to {you}."
    expect(say).to_contain_text(f"A draw: {you} each." if you == it else won)
    acts.get_by_role("button", name="Copy the score").click()
    result = page.get_by_label("Your score").input_value()
    assert f"I chose {you} and the model {it}." in result
    assert result.splitlines()[1:] == [f"me    {marks[0]}", f"model {marks[1]}"]
    acts.get_by_role("button", name="Play again").click()
    expect(page.locator(".beat .big")).to_have_text(sentences[10][0])
    expect(score).to_have_text("You: 0Model: 01 of 10")


def test_a_model_without_sentences_has_no_game_of_guessing(visit: Visit) -> None:
    html = qkv.play(TEXT, model="wordnet")._document()
    page = opened(visit, html, "games")
    expect(page.locator(".games button b")).to_have_text(["Break it", "Watch bank change its mind"])


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
