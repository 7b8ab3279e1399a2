"""Tests of a reader's edits: activations patched from another sentence, and steering vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page

import qkv
from qkv.models import Model

from .edited import Edit
from .engine import agree, by_the_library, result_of, shares
from .outcome import expected, is_percent
from .play import address, after, at, button, changed, in_lab, part, ready, shown
from .playing import laid_out, later
from .support import CELLS, Visit, read
from .test_families import small
from .test_page import problems
from .test_play_outcome import check_headline, check_words
from .test_play_page import check_layout
from .test_play_server import Open, open_served

TEXT, OTHER = "She wore a crown on her [MASK].", "He wore a hat on his [MASK]."  # 10 tokens
LONGER = "He wore a hat on his big [MASK]."
DECODED = "the cat sat on the bank"
SEA, KING = "The sea is wide.", "The king was rich and old."
__all__ = ["open_served"]  # a fixture
POSITION, LAYER, HEAD = 7, 2, 3
STATE: dict[str, Any] = {"text": TEXT, "position": POSITION, "query": POSITION, "inside": True}
STATE["tab"] = "steps"
STATE |= {"layer": LAYER, "head": HEAD}
FIRST = 1  # the first token that differs
# Returns the last run with edits: the edits, the length, patterns, vectors, logits at the position.
LAST = """() => {
  const pack = (x) => Array.isArray(x) ? x.map(pack)
    : new Uint8Array(x.buffer, x.byteOffset, x.byteLength).toBase64();
  const { edits, found } = runs.findLast(({ edits }) => edits.length);
  return [edits, found.tokens.length, ...["pattern", "resid", "logits"].map((x) => pack(found[x]))];
}"""


@pytest.fixture(scope="module")
def html() -> str:
    return in_lab(qkv.play(TEXT)._document())


@pytest.fixture
def page(quick_at: Visit) -> Page:
    return quick_at(**STATE)


def own(page: Page) -> Locator:
    return part(page, "steer")


def control(page: Page, name: str) -> Locator:
    """Return the control of this name in the open panel."""
    return own(page).get_by_label(name, exact=True).filter(visible=True)


def pick(page: Page, name: str, value: object) -> None:
    control(page, name).select_option(str(value))


def write(page: Page, other: str) -> None:
    """Write the sentence to patch from, and wait until the page has read it."""
    if not page.get_by_label("The other sentence").is_visible():
        button(page, "Patch from another sentence").click()
    page.get_by_label("The other sentence").fill(other)
    own(page).locator(".cut table").wait_for()


def towards(page: Page, word: str, away: str = "") -> None:
    """Fill in the fields "Towards" and "Away from", and wait until the page has read both."""
    if not page.get_by_label("Towards").is_visible():
        button(page, "Steer towards a word").click()
    page.get_by_label("Towards").fill(word)
    page.get_by_label("Away from").fill(away)
    own(page).get_by_text("The vector has length").wait_for()


def strength(page: Page, *values: float) -> None:
    slide = """(slider, values) => values.forEach((x) => {
        slider.value = x;
        slider.dispatchEvent(new Event('input'));
    })"""
    after(page, lambda: page.get_by_label("Strength").evaluate(slide, values))


def is_the_librarys(page: Page, model: Model, edits: list[Edit]) -> None:
    """Check that the page's last run has these edits and the library's numbers."""
    made, *arrays = page.evaluate(LAST)
    assert made == edits == changed(page)
    own_, plain = by_the_library(model, TEXT, edits), by_the_library(model, TEXT)
    agree(result_of(*arrays), own_._replace(logits=own_.logits[[POSITION]]), 2e-6, 1e-4)
    assert np.abs(own_.resid - plain.resid).max() > 1e-3


def direction(model: Model, layer: int, word: str, away: str) -> np.ndarray:
    """Return the mean residual stream of one text's tokens minus another's, before a layer."""
    means = []
    for text in filter(None, (word, away)):
        tokens = model.tokenize(text)
        resid = model.trace(tokens.ids)["resid_pre", layer][0]
        means.append(resid[~np.array(tokens.special)].mean(0))
    return np.asarray(means[0] - means[1] if away else means[0])


def is_along(edit: Edit, model: Model, word: str, away: str) -> None:
    """Check that an edit of layer 1 adds 6 times the direction."""
    way = 6 * direction(model, 1, word, away)
    np.testing.assert_allclose(edit["vector"], way, rtol=6e-4, atol=1e-5)


PATCHES: list[Edit] = [
    {"at": "resid_pre", "layer": 0, "token": 4},
    {"at": "resid_pre", "layer": 1},
    {"at": "attn_out", "layer": 1, "token": 6},
    {"at": "mlp_out", "layer": 3, "token": 7},
    {"at": "z", "layer": 2, "head": 5, "token": 7},
    {"at": "z", "layer": 1},
    {"at": "q", "layer": 3, "head": 0},
    {"at": "k", "layer": 0, "head": 1, "token": 4},
    {"at": "v", "layer": 2, "head": 4, "token": 1},
    {"at": "pattern", "layer": 3, "head": 2, "token": 7},
]


def test_each_activation_is_patched_as_the_library_does_it(page: Page, exact: Model) -> None:
    write(page, OTHER)
    texts = set()
    for where in PATCHES:
        pick(page, "Take", where["at"])
        pick(page, "Layer", where["layer"])
        of_head = where["at"] in ("z", "q", "k", "v", "pattern")
        assert control(page, "Head").count() == of_head
        if of_head:
            pick(page, "Head", where.get("head", "all"))
        pick(page, "At", where.get("token", "all"))
        after(page, button(page, "Patch").click)
        edit = {"op": "patch", **where, "from": OTHER}
        is_the_librarys(page, exact, [edit])
        check_words(page, expected(exact, TEXT, [edit], POSITION), [edit])
        said = part(page, "changes").locator(".changed button")
        assert f"as in \N{LEFT DOUBLE QUOTATION MARK}{OTHER}" in said.inner_text()
        texts.add(said.inner_text())
        after(page, said.click)
        assert changed(page) == []
    assert len(texts) == len(PATCHES)


def test_one_press_patches_where_the_sentences_differ(page: Page, exact: Model) -> None:
    write(page, OTHER)
    said = "Both have 10 tokens. They differ at position 1 (she / he), 4"
    assert own(page).get_by_text(said).is_visible()
    differ = own(page).locator(".cut .differs")
    assert differ.all_inner_texts() == ["she", "crown", "her", "he", "hat", "his"]
    edge = "getComputedStyle(one).boxShadow.match(/rgb\\(.*?\\)/)[0]"
    edges = differ.evaluate_all(f"all => all.map((one) => {edge})")
    assert len(set(edges[:3])) == len(set(edges[3:])) == 1  # each sentence has its own hue
    assert edges[0] != edges[3]
    after(page, button(page, "Patch").click)
    edit = {"op": "patch", "at": "resid_pre", "layer": LAYER, "token": FIRST, "from": OTHER}
    is_the_librarys(page, exact, [edit])
    quoted = f"\N{LEFT DOUBLE QUOTATION MARK}{OTHER}\N{RIGHT DOUBLE QUOTATION MARK}"
    words = f"the residual stream before layer {LAYER} at She as in {quoted}"
    listed = part(page, "changes").locator(".changed").inner_text()
    assert listed == f"{words}\N{MULTIPLICATION SIGN}"
    headline = part(page, "headline").inner_text()
    check_headline(headline, f"With {words}", expected(exact, TEXT, [edit], POSITION))
    pick(page, "At", 4)
    after(page, button(page, "Patch").click)
    is_the_librarys(page, exact, [edit, edit | {"token": 4}])
    after(page, button(page, "Undo").click)
    assert changed(page) == [edit]
    after(page, button(page, "Undo").click)
    assert changed(page) == []


def test_sentences_of_different_lengths_cannot_be_patched(page: Page) -> None:
    write(page, LONGER)
    said = "Your sentence has 10 tokens, and the other sentence has 11:"
    assert own(page).get_by_text(said).is_visible()
    assert button(page, "Patch").is_disabled()
    rows = own(page).locator(".cut tbody tr").evaluate_all(CELLS)
    gap, end = "\N{EN DASH}", ["___", ".", "[SEP]"]
    assert rows == [
        ["yours", "[CLS]", "she", "wore", "a", "crown", "on", "her", gap, gap, *end],
        ["the other", "[CLS]", "he", "wore", "a", "hat", "on", gap, "his", "big", *end],
    ]
    page.get_by_label("The other sentence").press("Enter")
    assert changed(page) == []
    write(page, TEXT)
    assert own(page).get_by_text("Both have the same").is_visible()


def test_a_text_of_another_length_removes_the_patch(page: Page, exact: Model) -> None:
    write(page, OTHER)
    after(page, button(page, "Patch").click)
    field, longer = page.get_by_label("Your sentence"), "She wore a gown on her old [MASK]."
    after(page, lambda: field.fill("She wore a gown on her [MASK]."))
    assert [edit["op"] for edit in changed(page)] == ["patch"]
    after(page, lambda: field.fill(longer))
    assert changed(page) == []
    assert field.input_value() == longer
    assert not page.locator(".trouble").is_visible()


def test_the_second_sentence_of_the_page_can_be_taken(quick_at: Visit) -> None:
    page = quick_at(**STATE, second=OTHER)
    button(page, "Patch from another sentence").click()
    button(page, "Use the second sentence").click()
    own(page).get_by_text("Both have 10 tokens").wait_for()
    after(page, button(page, "Patch").click)
    assert changed(page)[0]["from"] == OTHER


def test_a_vector_steers_and_its_strength_can_be_moved(page: Page, exact: Model) -> None:
    towards(page, SEA, KING)
    way = direction(exact, LAYER, SEA, KING)
    length = float(np.linalg.norm(2 * way))
    stream = by_the_library(exact, TEXT).resid[LAYER]
    usual = float(np.linalg.norm(stream, axis=-1).mean())
    said = f"The vector has length {length:.2f}. The residual stream before this layer has length "
    said += f"{usual:.2f}"
    assert own(page).get_by_text(said).is_visible()
    after(page, button(page, "Steer").click)
    for value in (2, -3.25, 0, 6):
        if value != 2:
            strength(page, value)
        (edit,) = changed(page)
        vector = edit.pop("vector")
        assert edit == {"op": "add", "at": "resid_pre", "layer": LAYER}
        np.testing.assert_allclose(vector, value * way, rtol=6e-4, atol=1e-5)
        assert all(len(f"{abs(x):e}".split("e")[0].rstrip("0")) <= 5 for x in vector)
        listed = part(page, "changes").locator(".changed").inner_text()
        number = f"{value:.2f}".replace("-", "\N{MINUS SIGN}")
        assert f"steered from \N{LEFT DOUBLE QUOTATION MARK}{KING}" in listed
        assert f"(strength {number})" in listed
        if value:
            is_the_librarys(page, exact, changed(page))
            check_words(page, expected(exact, TEXT, changed(page), POSITION), changed(page))
    after(page, lambda: pick(page, "Before layer", 1))
    (edit,) = changed(page)
    assert edit["layer"] == 1
    is_along(edit, exact, SEA, KING)
    after(page, lambda: pick(page, "At", 4))
    (edit,) = changed(page)
    assert edit["token"] == 4
    is_the_librarys(page, exact, [edit])
    towards(page, "joy")
    after(page, button(page, "Steer").click)
    (edit,) = changed(page)
    is_along(edit, exact, "joy", "")
    after(page, part(page, "changes").locator(".changed button").click)
    assert changed(page) == []


def test_steering_is_undone_step_by_step(page: Page) -> None:
    towards(page, SEA)
    after(page, button(page, "Steer").click)
    first = changed(page)
    strength(page, 4, 5)  # 5 directly after 4: both are one change
    later(page)
    strength(page, 7)
    listed = part(page, "changes").locator(".changed")
    assert "(strength 7.00)" in listed.inner_text()
    after(page, button(page, "Undo").click)
    assert "(strength 5.00)" in listed.inner_text()
    assert page.get_by_label("Strength").input_value() == "5"
    after(page, button(page, "Undo").click)
    assert changed(page) == first
    assert "(strength 2.00)" in listed.inner_text()
    after(page, button(page, "Undo").click)
    assert changed(page) == []
    assert page.get_by_label("Towards").input_value() == SEA  # kept for another use


def test_an_address_with_a_vector_opens_the_same_page(visit_at: Visit, exact: Model) -> None:
    page = visit_at(**STATE)
    write(page, OTHER)
    after(page, button(page, "Patch").click)
    towards(page, SEA, KING)
    pick(page, "At", 3)
    after(page, button(page, "Steer").click)
    strength(page, -4)
    assert len(changed(page)[1]["vector"]) == 192
    assert len(page.url) < 4000
    button(page, "Steer towards a word").click()  # fold the panel, as when a page opens
    laid_out(page)
    again = visit_at("#" + page.url.partition("#")[2])
    laid_out(again)
    assert changed(again) == changed(page)
    assert shown(again).replace("Undo", "") == shown(page).replace("Undo", "")
    is_the_librarys(again, exact, changed(page))
    button(again, "Steer towards a word").click()
    own(again).get_by_text("The vector has length").wait_for()
    assert again.get_by_label("Towards").input_value() == SEA
    assert again.get_by_label("Away from").input_value() == KING
    assert again.get_by_label("Strength").input_value() == "-4"
    before = changed(again)
    strength(again, -2)
    patch, edit = changed(again)
    assert patch == before[0]
    assert edit["token"] == 3
    np.testing.assert_allclose(edit["vector"], np.array(before[1]["vector"]) / 2, rtol=2e-3)


def test_the_page_warns_of_a_long_address(quick_at: Visit) -> None:
    edit = {"op": "add", "at": "mlp_out", "layer": 1, "vector": [0.1234] * 192}
    page = quick_at(**STATE, edits=[edit] * 5)
    assert not own(page).get_by_text("characters long").is_visible()
    many = [edit | {"layer": i % 4} for i in range(20)]
    page = quick_at(**STATE, edits=many)
    said = own(page).get_by_text("characters long").inner_text()
    assert read(said.split(" now ")[1].split(" ")[0]) == pytest.approx(len(page.url), abs=200)
    assert len(changed(page)) == 20


def test_a_damaged_steer_gives_the_plain_page(quick_at: Visit) -> None:
    for steer in (1, {"towards": "sea"}, {"towards": "sea", "away": "", "strength": "2"}):
        page = quick_at(**STATE | {"layer": 0}, steer=steer)
        button(page, "Look inside").wait_for()  # as if the URL contained no state


def test_a_decoder_is_patched_and_steered(visit: Visit, tmp_path: Path) -> None:
    half, model = small(tmp_path, "gpt2")
    html = qkv.play(DECODED, model=half)._document()
    decoder_or_served(at(visit, html, text=DECODED, inside=True, tab="steps"), model)


def test_a_served_model_is_patched_and_steered(open_served: Open, tmp_path: Path) -> None:
    _, model = small(tmp_path, "llama")
    page = ready(open_served("--model", tmp_path / "half"))
    hash_ = address(text=DECODED, inside=True, tab="steps")
    after(page, lambda: page.evaluate("hash => { location.hash = hash; }", hash_))
    decoder_or_served(page, model)


def decoder_or_served(page: Page, model: Model) -> None:
    write(page, "a dog ran on the mat")
    pick(page, "Take", "k")
    heads, shared = model.num_heads, model.layers[0].attn.num_kv_heads
    each = heads // shared
    options = control(page, "Head").locator("option").all_inner_texts()
    names = [f" (for heads {i * each} to {(i + 1) * each - 1})" for i in range(shared)]
    assert options == ["all heads", *(f"{i}{names[i] * (each > 1)}" for i in range(shared))]
    pick(page, "Layer", 1)
    pick(page, "Head", shared - 1)
    pick(page, "At", 3)
    after(page, button(page, "Patch").click)
    kind = "key-value head" if each > 1 else "head"
    said = f"the keys of {kind} 1.{shared - 1} at "
    assert said in part(page, "changes").locator(".changed").inner_text()
    towards(page, "dog", "cat")
    after(page, button(page, "Steer").click)
    patch, add = edits = changed(page)
    assert patch == {
        **{"op": "patch", "at": "k", "layer": 1, "head": shared - 1, "token": 3},
        "from": "a dog ran on the mat",
    }
    way = direction(model, add["layer"], "dog", "cat")
    np.testing.assert_allclose(add["vector"], 2 * way, rtol=1e-3, atol=1e-4)
    best = shares(by_the_library(model, DECODED, edits).logits)[-1].max()
    row = part(page, "outcome").locator(".outcome-words tbody tr").first
    assert is_percent(row.locator(".outcome-now").inner_text(), best)


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_both_panels_fit_the_window_and_pass_axe(quick_at: Visit, width: int) -> None:
    page = quick_at(width=width, **STATE)
    laid_out(page)
    write(page, LONGER)
    check_panel(page)
    write(page, OTHER)
    pick(page, "Take", "pattern")
    after(page, button(page, "Patch").click)
    check_panel(page)
    towards(page, SEA, KING)
    after(page, button(page, "Steer").click)
    check_panel(page)


def check_panel(page: Page) -> None:
    check_layout(page, "steer")
    assert problems(page, "changes") == []
    panel = own(page).locator(".steer-panel").filter(visible=True).bounding_box()
    for control in own(page).locator("button, select, input").filter(visible=True).all():
        box = control.bounding_box()
        assert box["height"] >= 44
        assert box["x"] + box["width"] <= panel["x"] + panel["width"]
