"""Tests of a second sentence beside the reader's: a common token axis, both heads, differences."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import qkv
from qkv.models import Model
from qkv.see.draw.colours import THEMES

from .edited import Edit, Result
from .engine import by_the_library, shares
from .outcome import is_percent, is_written, rows, similarities
from .play import after, button, chip, in_lab, part, shown
from .playing import laid_out, open_tab, unfold, until
from .support import CELLS, Visit, drawn, press, read, readout
from .test_play_page import check_layout

FIRST, SECOND = "She wore a crown on her [MASK].", "The old king wore a crown on his big [MASK]."
PAIR = "He wore a hat on her [MASK]."
LAYER, HEAD, QUERY = 3, 2, 7  # the query is [MASK]
STATE: dict[str, Any] = {"text": FIRST, "second": SECOND, "inside": True, "query": QUERY}
STATE |= {"position": QUERY, "layer": LAYER, "head": HEAD}
NONE = "\N{EN DASH}"  # shown instead of a number
NAMES = [  # the common axis, by hand
    *("[CLS]", "she", "the", "old", "king", "wore", "a", "crown", "on", "her", "his", "big"),
    *("___", ".", "[SEP]"),
]


@pytest.fixture(scope="module")
def html() -> str:
    return in_lab(qkv.play(FIRST)._document())


def opened(quick_at: Visit, **state: Any) -> Page:
    page = quick_at(**STATE | state)
    unfold(part(page, "second").locator("details"))
    return page


@pytest.fixture
def page(quick_at: Visit) -> Page:
    return opened(quick_at)


def table(page: Page) -> list[list[str]]:
    """Return a row per position of the common axis: its name, both weights, their difference."""
    return part(page, "second").locator("details tbody tr").evaluate_all(CELLS)


def lines_of(page: Page) -> list[str]:
    return part(page, "second").locator(".sentence").all_inner_texts()


def computed(model: Model, text: str, edits: list[Edit] | None = None) -> tuple[list[str], Result]:
    return list(model.tokenize(text).tokens), by_the_library(model, text, edits or [])


def common(one: list[str], other: list[str]) -> int:
    """Return the length of the longest common subsequence."""

    @cache
    def from_(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        both = 1 + from_(i + 1, j + 1) if one[i] == other[j] else 0
        return max(both, from_(i + 1, j), from_(i, j + 1))

    return from_(0, 0)


def check_row(page: Page, first: np.ndarray, second: np.ndarray) -> None:
    """Check both texts' weights in the table, in order, and the differences of paired weights."""
    rows = table(page)
    for k, weights in ((1, first), (2, second)):
        found = [read(row[k]) for row in rows if row[k] != NONE]
        np.testing.assert_allclose(found, weights, atol=0.00501)
    own, far = iter(first), iter(second)
    for _, one, other, difference in rows:
        values = [next(each) for each, x in ((own, one), (far, other)) if x != NONE]
        if len(values) == 2:
            assert read(difference) == pytest.approx(values[1] - values[0], abs=0.00501)
        else:
            assert difference == NONE


def test_both_stand_on_one_axis_with_the_librarys_numbers(page: Page, exact: Model) -> None:
    (one, first), (other, second) = computed(exact, FIRST), computed(exact, SECOND)
    there = other.index("[MASK]")
    assert [row[0] for row in table(page)] == NAMES
    rows = [found.pattern[LAYER, HEAD, at] for found, at in ((first, QUERY), (second, there))]
    check_row(page, *rows)
    for said, tokens, row in zip(lines_of(page), (one, other), rows, strict=True):
        best = tokens[row.argmax()]
        assert said == f"The gap attends to {best}: {100 * row.max():.0f}% (head {LAYER}.{HEAD})."
    both = part(page, "second").locator(".both-maps > div")
    cell = [first.pattern[LAYER, HEAD, 4, 7], second.pattern[LAYER, HEAD, 6, there]]
    both.nth(2).locator(".map").focus()
    press(page, "ArrowDown", "Control+Home", "Home", *["ArrowDown"] * 7, *["ArrowRight"] * 12)
    fields = readout(both.nth(2))
    assert fields.pop("") == "crown → the gap"
    expected = [*cell, cell[1] - cell[0]]
    assert [read(x) for x in fields.values()] == pytest.approx(expected, abs=0.0000052)
    for k in (0, 1):  # the two other heat maps show the weights of the same cell
        assert read(readout(both.nth(k))["weight"]) == pytest.approx(cell[k], abs=0.0000052)
    press(page, "ArrowRight", "Home", "ArrowRight", "ArrowRight")
    assert readout(both.nth(0))[""] == "crown → the: not in the first"
    assert readout(both.nth(2))["difference"] == NONE


def test_similarities_and_differences_match_the_library(page: Page, exact: Model) -> None:
    (one, first), (other, second) = computed(exact, FIRST), computed(exact, SECOND)
    there = other.index("[MASK]")
    vectors = first.resid[:, QUERY], second.resid[:, there]
    lengths = [np.linalg.norm(x, axis=-1) for x in vectors]
    cosines = (vectors[0] * vectors[1]).sum(-1) / (lengths[0] * lengths[1])
    own = part(page, "second")
    found = similarities(own)
    assert all(is_written(*pair) for pair in zip(found, cosines, strict=True))
    names = [row[0] for row in table(page)]
    at = [[names.index(name) for name in drawn(tokens)] for tokens in (one, other)]
    spread = np.zeros((2, *first.pattern.shape[:2], len(names)))
    spread[0][..., at[0]] = first.pattern[:, :, QUERY]
    spread[1][..., at[1]] = second.pattern[:, :, there]
    moved = np.maximum(0, spread[0] - spread[1]).sum(-1)
    order = np.argsort(-moved, axis=None)[:5]
    best = [f"{k // moved.shape[1]}.{k % moved.shape[1]}" for k in order]
    heads = own.locator(".outcome-heads button")
    assert heads.evaluate_all("all => all.map((x) => x.dataset.head)") == best
    for text, k in zip(own.locator(".outcome-moved").all_inner_texts(), order, strict=True):
        assert is_percent(text, moved.flat[k])
    probabilities = [shares(found.logits[[k]])[0] for found, k in ((first, QUERY), (second, there))]
    for row in rows(own):
        id = exact.tokenizer.vocabulary[row.word]
        assert is_percent(row.before, probabilities[0][id]), row
        assert is_percent(row.now, probabilities[1][id]), row
    after(page, heads.first.click)
    assert best[0] in part(page, "head").locator("h3").first.inner_text()
    assert f"(head {best[0]})" in lines_of(page)[1]


def test_edits_apply_to_both_sentences_where_possible(quick_at: Visit, exact: Model) -> None:
    edits = [
        {"op": "hide", "token": 4},
        {"op": "hide", "token": 1},
        {"op": "mask", "query": 7, "key": 2},
        {"op": "scale", "value": 0.1},
        {"op": "row", "layer": 1, "head": 0, "query": 7, "weights": [0.1] * 10},
    ]
    page = opened(quick_at, edits=edits)
    other = exact.tokenize(SECOND).tokens
    fits = [
        {"op": "hide", "token": other.index("crown")},
        {"op": "mask", "query": other.index("[MASK]"), "key": other.index("wore")},
        {"op": "scale", "value": 0.1},
    ]
    (_, first), (_, second) = computed(exact, FIRST, edits), computed(exact, SECOND, fits)
    there = other.index("[MASK]")
    check_row(page, first.pattern[LAYER, HEAD, QUERY], second.pattern[LAYER, HEAD, there])
    assert "2 of your 5 changes do not fit" in part(page, "second").inner_text()


def test_any_two_texts_are_aligned_by_what_they_share(page: Page, model: Model) -> None:
    field = page.get_by_label("A second sentence to compare")
    for text in ("on a a crown", "wore on her crown she a", "???", f"{FIRST} {FIRST}", FIRST, PAIR):
        after(page, lambda to=text: field.fill(to))
        rows = table(page)
        sides = [
            [row[0].split(" / ")[k if " / " in row[0] else 0] for row in rows if row[k + 1] != NONE]
            for k in (0, 1)
        ]
        tokens = [drawn(model.tokenize(each).tokens) for each in (FIRST, text)]
        assert sides == tokens
        same = [row for row in rows if row[3] != NONE and " / " not in row[0]]
        assert len(same) == common(*tokens)
    # between two shared tokens, differing tokens are paired if both texts have equally many
    assert [row[0] for row in table(page)][1:6] == ["she / he", "wore", "a", "crown / hat", "on"]


def test_a_second_sentence_can_be_added_shared_and_removed(visit_at: Visit) -> None:
    page = visit_at()
    assert not part(page, "second").is_visible()
    button(page, "Look inside").click()
    laid_out(page)
    open_tab(page, "Words")
    plain = shown(page)
    after(page, button(page, "Beside another sentence").click)
    field = page.get_by_label("A second sentence to compare")
    # "Look inside" unfolds parts of the page. The page may draw these parts only after the second
    # click. `after` may return as soon as they are drawn, so wait until the field has the text.
    expect(field).to_have_value(FIRST)
    expect(field).to_be_focused()
    after(page, lambda: field.fill(SECOND))
    held = shown(page)
    again = visit_at(page.evaluate("location.hash"))
    laid_out(again)
    assert shown(again).replace("Undo", "") == held.replace("Undo", "")
    assert again.get_by_label("A second sentence to compare").input_value() == SECOND
    after(page, button(page, "Remove it").click)
    assert shown(page) == plain
    after(page, button(page, "Undo").click)
    assert field.input_value() == SECOND
    assert shown(page) == held


def comes_to_look_from(page: Page, queries: list[str]) -> None:
    """Wait until the lines show these queries.

    The page does not draw a newly chosen query at once, but in a later task of the event loop.
    """
    until(lambda: [text.split(" attends to ")[0] for text in lines_of(page)] == queries)


def test_queries_are_chosen_per_sentence_or_for_both(page: Page) -> None:
    sides = part(page, "second").locator(".side")
    sides.nth(1).get_by_role("option", name="king").click()
    comes_to_look_from(page, ["The gap", "king"])
    assert "wore" in part(page, "sentence").inner_text()
    sides.nth(0).get_by_role("option", name="wore").press("Enter")
    comes_to_look_from(page, ["wore", "king"])
    expect(sides.nth(0).get_by_role("option", name="wore")).to_be_focused()
    chip(page, "crown").click()
    comes_to_look_from(page, ["crown", "crown"])
    part(page, "second").locator(".both-maps .map").nth(2).focus()
    press(page, "ArrowDown", "Control+Home", *["ArrowDown"] * 8, "Enter")
    comes_to_look_from(page, ["on", "on"])


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_it_fits_the_window_and_passes_axe(quick_at: Visit, width: int) -> None:
    edits = [{"op": "hide", "token": 1}]
    page = quick_at(width=width, height=800, **STATE, edits=edits, tab="heads")
    laid_out(page)
    part(page, "second").locator(".both-maps").wait_for()
    check_layout(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_first_sentence_is_green_and_the_second_violet(quick_at: Visit, theme: str) -> None:
    page = opened(quick_at, theme=theme)
    _, _, green, violet, *_ = THEMES[theme].lines
    own = part(page, "second")
    for k, colour in enumerate((green, violet)):
        rgb = f"rgb({', '.join(map(str, bytes.fromhex(colour[1:])))})"
        link = own.locator(".side").nth(k).locator(".link").last
        assert link.evaluate("one => getComputedStyle(one).stroke") == rgb
        bars = own.locator(".outcome-words .outcome-cell div").first.locator(".outcome-bar")
        assert bars.nth(k).evaluate("one => getComputedStyle(one).backgroundColor") == rgb
        for titles in (own.locator(".side h4"), own.locator(".both-maps h4")):
            edge = titles.nth(k).evaluate("one => getComputedStyle(one).borderLeftColor")
            assert edge == rgb
