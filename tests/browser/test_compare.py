"""Tests of two texts or two runs beside each other."""

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page

import qkv
from qkv.see.analysis.head_weights import Heads
from qkv.see.page.payload import payload_of, start_at, text_payload

from .playing import picture
from .support import STATIC, STEP, WORDS, Visit, keys, made, press, read, readout, said, whole_page

LEFT, RIGHT = "I love you", "You love me"


@pytest.fixture(scope="module")
def view() -> qkv.see.CompareView:
    return qkv.compare(LEFT, RIGHT, word="love", model="random")


@pytest.fixture
def page(visit: Visit, view: qkv.see.CompareView) -> Page:
    return visit(view._document())


def maps(page: Page) -> Locator:
    """Return the three heat maps: of both texts and of their difference."""
    return page.locator(".both-maps > div")


def test_both_sides_start_on_the_word_on_one_scale(page: Page, view: qkv.see.CompareView) -> None:
    assert page.locator(".lead").inner_text() == view.sentence
    first, second, _ = page.locator(".scale-ends").all_inner_texts()
    assert first == second
    for number, side in enumerate(view.sides):
        shown = page.locator(".side").nth(number)
        assert shown.locator(".token.on").inner_text() == "love"
        best = int(side.weights.argmax())
        weight = readout(maps(page).nth(number))["weight"]
        assert read(weight) == pytest.approx(side.weights[best], abs=STEP)


def test_all_cells_of_both_stand_on_one_axis_with_their_difference(
    page: Page, view: qkv.see.CompareView
) -> None:
    layer, head = view.head.layer, view.head.head
    first, second = (side.trace.pattern(layer, head) for side in view.sides)
    rows = [("i / you", 0, 0), ("love", 1, 1), ("you / me", 2, 2)]
    box = maps(page).nth(2)
    box.locator(".map").focus()
    press(page, "ArrowDown", "Control+Home", "Home")
    for name, i, j in rows:
        for other, k, m in rows:
            found = readout(box)
            assert found.pop("") == f"{name} → {other}"
            expected = [first[i, k], second[j, m], float(second[j, m]) - float(first[i, k])]
            assert list(found) == ["A", "B", "difference"]
            assert [read(x) for x in found.values()] == pytest.approx(expected, abs=2 * STEP)
            for number, value in enumerate(expected[:2]):
                weight = readout(maps(page).nth(number))["weight"]
                assert read(weight) == pytest.approx(value, abs=STEP)
            press(page, "ArrowRight")
        press(page, "Home", "ArrowDown")


def test_similarity_by_layer_and_strongest_links_are_shown(
    page: Page, view: qkv.see.CompareView
) -> None:
    numbers = page.locator(".chart text:not(.dim)").all_text_contents()
    np.testing.assert_allclose([read(text) for text in numbers], view.similarity, atol=0.00501)
    most = page.locator(".pair button").all_inner_texts()
    links = [link for side in view.sides for link in side.strongest]
    assert len(most) == len(links)
    page.locator(".pair button").last.click()
    last = links[-1]
    assert f"layer {last.layer}, head {last.head}" in page.locator(".sentence").first.inner_text()
    assert "love attends to " in said(page)


def test_a_click_on_one_side_leaves_the_other_unchanged(page: Page) -> None:
    before = page.locator(".sentence").nth(1).inner_text()
    page.locator(".side").first.locator(".token").first.click()
    assert page.locator(".sentence").first.inner_text().startswith("i attends to ")
    assert page.locator(".sentence").nth(1).inner_text() == before


def compared(
    texts: list[Heads], what: str, found: dict[str, Any], *, head: int = 1, **start: Any
) -> str:
    """Return the page of two texts or two runs, which shows `found` as their differences."""
    start = start_at(0, head, None, chosen="it was requested", sentence="", **start)
    rows = [text_payload(text, 0) for text in texts]
    compare = {"what": what} | found
    return whole_page(payload_of("compare", "a title", rows, start=start, compare=compare), STATIC)


def test_two_runs_show_what_changed_largest_first(visit: Visit) -> None:
    texts = [made(WORDS, name="as it is"), made(WORDS, seed=1, name="without layer 0, head 1")]
    distances = [0.0, 3.25, 1.5, 0.25]
    changes = [[i, distances[i], 0.5, 4.0] for i in np.argsort(distances)[::-1].tolist()]
    found = {"sentence": "the changes most.", "of": "the vectors after the last layer"}
    found |= {"changes": changes, "by_layer": [0.0, 0.5, 1.25]}
    page = visit(compared(texts, "runs", found))
    rows = page.locator("tbody tr")
    assert rows.locator("th").all_inner_texts() == [WORDS[1], WORDS[2], WORDS[3], WORDS[0]]
    shown = [read(text) for text in rows.locator("td:nth-child(2)").all_inner_texts()]
    assert shown == sorted(distances, reverse=True)
    widths = page.locator(".meter span").evaluate_all("spans => spans.map((s) => s.offsetWidth)")
    assert widths == sorted(widths, reverse=True)
    assert page.locator(".chart text:not(.dim)").all_text_contents() == ["0.00", "0.50", "1.25"]
    assert page.locator(".side h4").all_inner_texts() == [text.name for text in texts]
    assert page.locator(".token.on").all_inner_texts() == ["the", "the"]  # these changed most
    weights = texts[0].weights[0][1, 1]
    shown = [read(value) for _, value in keys(page)[:2]]
    np.testing.assert_allclose(shown, weights[:2], atol=0.00501)


def test_a_word_of_several_subwords_is_one_row(visit: Visit) -> None:
    texts = [made(WORDS, name="A"), made(WORDS, seed=1, name="B")]
    found = {"word": "unbelievable", "sentence": "unbelievable in A and in B."}
    found |= {"positions": [[2, 3, 4]] * 2, "similarity": [1, 0.5, 0.25], "strongest": [[], []]}
    page = visit(compared(texts, "word", found, head=0))
    assert page.get_by_label("merge subwords into words").is_checked()
    assert page.locator(".token.on").all_inner_texts() == ["unbelievable", "unbelievable"]
    for number, text in enumerate(texts):
        own = text.weights[0][0, 2:5, 2:5].sum(axis=1).mean()
        row = keys(page, number)[2]
        assert row[0] == "unbelievable"
        assert read(row[1]) == pytest.approx(own, abs=0.00501)


def test_chosen_rows_stay_and_every_map_shows_the_left_out_weight(visit: Visit) -> None:
    texts = [made(WORDS, name="A"), made(WORDS, seed=1, name="B")]
    found = {"sentence": "a sentence", "of": "vectors", "by_layer": []}
    found |= {"changes": [[6, 1.0, 0.5, 4.0]]}
    page = visit(compared(texts, "runs", found, merge=False))
    one = page.locator(".side").first
    assert [said.split(" attends")[0] for said in sentences(page)] == ["sat", "sat"]
    one.get_by_role("option", name="cat").click()
    one.get_by_role("option", name="mat").click(modifiers=["Shift"])
    assert sentences(page)[0].count(" attends to ") == 2
    assert sentences(page)[1].startswith("sat attends to ")
    press(page, "Escape")
    assert sentences(page)[0].count(" attends to ") == 1
    page.get_by_label("leave out special tokens").check()
    maps(page).nth(2).locator(".map").focus()
    press(page, "ArrowDown", "Control+Home", "ArrowDown", "End")
    gone = [float(text.weights[0][1, 2, [0, -1]].sum()) for text in texts]
    shown = readout(maps(page).nth(2))
    assert shown.pop("") == "un → not shown"
    expected = [*gone, gone[1] - gone[0]]
    assert [read(x) for x in shown.values()] == pytest.approx(expected, abs=3 * STEP)
    for number, value in enumerate(gone):
        weight = readout(maps(page).nth(number))["weight"]
        assert read(weight) == pytest.approx(value, abs=3 * STEP)


def sentences(page: Page) -> list[str]:
    return page.locator(".sentence").all_inner_texts()


@pytest.mark.parametrize(
    ("scheme", "grey"), [("light", (0xB9, 0xC2, 0xCE)), ("dark", (0x4B, 0x56, 0x65))]
)
def test_both_sentences_are_printed_and_cells_of_one_text_are_marked(
    visit: Visit, scheme: str, grey: tuple[int, ...]
) -> None:
    texts = ["the cat sat", "the cat sat down"]
    view = qkv.compare(*texts, word="cat", model="random")
    page = visit(view._document(), scheme=scheme)
    assert page.locator(".compared").all_inner_texts() == [f"A {texts[0]}", f"B {texts[1]}"]
    notes = ["no such token in A", "a token in only one text"]
    assert maps(page).locator(".absent").all_inner_texts() == notes
    canvases = maps(page).locator("canvas").all()
    cells = [int((picture(one) == grey).all(-1).sum()) for one in canvases]
    assert cells[1] == 0  # the longer text has all cells
    assert cells[0] == cells[2] > 7 * 12 * 12 * 0.8  # 7 of 16 cells


def test_texts_of_the_same_tokens_have_nothing_to_mark(page: Page) -> None:
    assert page.locator(".absent").count() == 0
