"""Tests of the three games: the page's statements about the model match the library's."""

import json
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

import qkv
from qkv.models import Model
from qkv.models.files.find import shipped_models

from .engine import numbers
from .play import after, at, changed
from .support import Visit
from .test_play_page import check_layout

TEXT = "She drank a glass of [MASK]."
SENTENCES = [
    *("He fished from the muddy bank.", "They sat on the river bank."),
    *("She put money in the bank.", "A loan came from the bank."),
]


@pytest.fixture(scope="module")
def html() -> str:
    return qkv.play()._document()


def guess_of(model: Model, text: str, **edits: object) -> str:
    return model.predict(text, 1, **edits)[0][0][0]


def test_beat_the_model_counts_the_authors_words_for_both_over_equal_rounds(
    visit_at: Visit, exact: Model
) -> None:
    page = visit_at('#view="beat"')
    game = json.loads((shipped_models()["books"] / "game.json").read_text("utf-8"))
    sentences = game["sentences"]
    expect(page.locator(".beat")).to_contain_text(f"{game['title']} by {game['author']}")
    expect(page.locator(".beat")).to_contain_text("Only the author's word counts")
    say, acts, score = (page.locator(f".beat .{name}") for name in ("say", "acts", "scores"))
    hits = [0, 0]
    marks = ["", ""]
    for k in range(10):
        gapped, right = sentences[k]
        words = sorted(sentences[k + 10 * other][1] for other in range(4))
        expect(page.locator(".beat .big")).to_have_text(gapped.replace("_", "___"))
        expect(acts.get_by_role("button")).to_have_text(words)
        ranked = [word for word, _ in exact.predict(gapped.replace("_", "[MASK]"), 16_384)[0]]
        its = next(word for word in ranked if word in words)
        mine = right if k % 3 else words[words[0] == right]
        acts.get_by_role("button", name=mine, exact=True).click()
        said = [f"You: {mine}", f"The model: {its}", f"The author: {right}"]
        for one in (*said, f"If any word were allowed, the model would say {ranked[0]} ("):
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
    assert f"I found {you} and the model found {it}." in result
    assert result.splitlines()[1:] == [f"me    {marks[0]}", f"model {marks[1]}"]
    acts.get_by_role("button", name="Play again").click()
    expect(page.locator(".beat .big")).to_have_text(sentences[10][0].replace("_", "___"))
    expect(score).to_have_text("You: 0Model: 01 of 10")


def test_a_model_without_sentences_has_no_game_of_guessing(visit: Visit, tmp_path: Path) -> None:
    qkv.load("books").save(tmp_path / "mine")  # only the included folder contains sentences
    html = qkv.play(TEXT, model=tmp_path / "mine")._document()
    page = at(visit, html, '#view="games"')
    expect(page.locator(".games button b")).to_have_text(["Break it", "Does bank change its mind?"])


def test_break_it(visit_at: Visit, exact: Model) -> None:
    page = visit_at('#view="break"')
    was = guess_of(exact, TEXT)
    say, note = page.locator(".break .say"), page.locator(".break > .note")
    expect(say).to_contain_text(f"The model says {was}")
    expect(note).not_to_contain_text("searching")
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
    visit_at: Visit, exact: Model
) -> None:
    hide = {"op": "hide", "token": exact.tokenize(TEXT).tokens.index("glass")}
    page = visit_at(view="break", text=TEXT, edits=[hide])
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


def test_break_it_needs_a_gap(visit_at: Visit) -> None:
    page = visit_at(view="break", text="The cat sat on the mat.")
    expect(page.locator(".break .say")).to_have_text("Write a sentence with a gap first.")
    expect(page.get_by_role("button", name="Show me")).to_be_disabled()
    after(page, page.get_by_role("button", name="head 0.0 off").click)
    expect(page.locator(".break .say")).to_have_text("Write a sentence with a gap first.")


def test_break_it_says_that_the_guess_is_at_another_word(visit_at: Visit) -> None:
    page = visit_at(view="break", text="The cat sat on the [MASK].", position=2, edits=[])
    said = "The guess is at another word: choose the gap in the lab first."
    expect(page.locator(".break .say")).to_have_text(said)


def distances(model: Model, texts: list[str], word: str) -> list[str]:
    """Return the page's numbers: for each layer, the mean distance inside and between senses."""
    vectors = []
    for text in texts:
        trace = model.trace(text, logits=True)
        start = text.lower().index(word)
        offsets = enumerate(trace.offsets)
        at = [t for t, (a, b) in offsets if start <= a < b <= start + len(word)]
        found = numbers(model, trace).resid[:, at].mean(1)
        vectors.append(found / np.linalg.norm(found, axis=1, keepdims=True))
    apart = 1 - np.einsum("ald,bld->lab", vectors, vectors)
    inside = (apart[:, 0, 1] + apart[:, 2, 3]) / 2
    between = apart[:, :2, 2:].mean((1, 2))
    return [f"{abs(x):.2f}" for pair in zip(inside, between, strict=True) for x in pair]


def test_the_distance_inside_a_sense_is_shown_beside_the_distance_between_senses(
    visit_at: Visit, exact: Model
) -> None:
    page = visit_at('#view="watch"')
    cells = page.locator(".watch td")
    expect(cells).to_have_text(distances(exact, SENTENCES, "bank"))
    inside, between = distances(exact, SENTENCES, "bank")[-2:]
    say = page.locator(".watch .say")
    expect(say).to_contain_text(f"{inside} within a sense and {between} between the senses")
    expect(say).to_contain_text("they differ more" if between > inside else "they do not")


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("bat", ["A bat flew out.", "The bat sleeps.", "He broke his bat.", "She swung the bat."]),
        ("can", ["I can.", "We can swim!", "A can fell.", "They opened the can."]),
        ("wugs", ["Wugs fly.", "Two wugs sang.", "We ate wugs.", "He cut the wugs."]),
    ],
)
def test_the_word_may_be_short_a_function_word_or_several_tokens(
    visit_at: Visit, exact: Model, word: str, texts: list[str]
) -> None:
    assert len(exact.tokenize("wugs").tokens) > 3  # with [CLS] and [SEP]
    page = visit_at('#view="watch"')
    for k, text in enumerate(texts):
        page.get_by_label(f"sense {'AABB'[k]}, sentence {1 + k % 2}").fill(text)
    expect(page.locator(".watch h2")).to_have_text(f"Does {word} change its mind?")
    expect(page.locator(".watch td")).to_have_text(distances(exact, texts, word))
    page.get_by_label("sense B, sentence 2").fill("Dogs bark")
    expect(page.locator(".watch .say")).to_have_text("Write four sentences that share a word.")
    expect(page.locator(".watch table")).to_be_hidden()


@pytest.mark.parametrize("view", ["games", "beat", "break", "watch"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overlaps_and_axe_finds_nothing(visit_at: Visit, view: str, width: int) -> None:
    page = visit_at(f'#view="{view}"', width=width, height=800)
    page.locator("h2").last.wait_for()
    check_layout(page)
