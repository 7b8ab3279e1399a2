"""Tests of edits by hand on a head of the live page: dragged weights, painted masks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page

from models.decoders import gpt2
from qkv.models import Model
from qkv.trace import Trace

from .edited import Edit
from .engine import by_the_library
from .play import button, ready
from .playing import (
    HEAD,
    POSITION,
    TEXT,
    cells,
    go,
    heat_map,
    held,
    later,
    masks,
    open_head,
    open_tab,
    opened,
    shows,
    table,
    until,
)
from .support import Visit, after_each, idle, press, read, readout, shown_weights, token, with_first
from .test_play_server import Open, open_served

__all__ = ["open_served"]  # a fixture
LAYER, NUMBER = HEAD
CROWN, ON = 4, 5  # positions in TEXT


@pytest.fixture
def page(lab_at: Visit) -> Page:
    return lab_at(tab="links")


def own(page: Page) -> Locator:
    return page.locator("[data-part=head]")


def slider(page: Page, name: str) -> Locator:
    return own(page).get_by_role("slider", name=f"weight of {name}", exact=True)


def handles(page: Page, part: str = "head") -> Locator:
    return page.locator(f"[data-part={part}] .weight:visible")


def drag(page: Page, name: str, *to: float) -> None:
    """Drag the handle of a key to these weights, one after the other, and release it."""
    handle = slider(page, name)
    handle.scroll_into_view_if_needed()
    before = float(handle.get_attribute("aria-valuenow") or "")
    wide: Any = own(page).locator(".weights").bounding_box()
    grip: Any = handle.locator(".grip").bounding_box()
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for weight in to:
        page.mouse.move(x + (weight - before) * wide["width"], y)
    page.mouse.up()


def weights_of(trace: Trace, layer: int = LAYER, head: int = NUMBER) -> np.ndarray:
    return trace["pattern", layer][0, head]


def shared(row: np.ndarray, key: int, weight: float) -> np.ndarray:
    """Return a copy of the row in which the weight of `key` is `weight`.

    All other weights are multiplied by the same factor, so that the row still sums to 1.
    """
    found = row * (1 - weight) / (1 - row[key])
    found[key] = weight
    return found


def given(page: Page) -> list[Edit]:
    """Return the rows that are set by hand."""
    return [edit for edit in held(page)["edits"] if edit["op"] == "row"]


def test_dragging_a_weight_rescales_its_row_and_updates_later_layers(
    page: Page, model: Model, trace: Trace
) -> None:
    go(page, layer=1, head=4)
    expected = shared(weights_of(trace, 1, 4)[POSITION], ON, 0.6)
    drag(page, "on", 0.3, 0.9, 0.6)
    until(lambda: given(page) and given(page)[0]["weights"][ON] == 0.6)
    (edit,) = given(page)
    assert [edit[name] for name in ("layer", "head", "query")] == [1, 4, POSITION]
    np.testing.assert_allclose(edit["weights"], expected, atol=2e-7)
    assert sum(edit["weights"]) == pytest.approx(1, abs=1e-9)
    changed = by_the_library(model, TEXT, [edit])
    shows(page, changed.pattern[1, 4])
    np.testing.assert_allclose(shown_weights(own(page)), expected, atol=0.00501)
    assert own(page).locator(".by-hand").count() == 1  # in orange
    found = page.evaluate("runs.at(-1).found.resid.at(-1)")
    np.testing.assert_allclose(found, changed.resid[-1].ravel(), atol=1e-4)
    open_tab(page, "Heads")
    page.locator("[data-part=map] [data-head='3.2']").click()
    until(lambda: held(page)["layer"] == 3)
    shows(page, changed.pattern[HEAD])
    assert own(page).locator(".by-hand").count() == 0
    button(page, "Undo").click()  # one drag is one change
    until(lambda: held(page)["edits"] == [])
    shows(page, weights_of(trace, 1, 4))


def test_a_weight_is_set_by_keyboard_or_number_and_reset(page: Page, trace: Trace) -> None:
    before = weights_of(trace)[POSITION]
    slider(page, "crown").focus()
    press(page, "ArrowRight")
    weight = round(before[CROWN] + 0.01, 2)
    until(lambda: given(page))
    np.testing.assert_allclose(given(page)[0]["weights"], shared(before, CROWN, weight), atol=2e-7)
    press(page, "ArrowDown", "PageUp")  # the next key
    row = shared(before, CROWN, weight)
    more = round(row[ON] + 0.1, 2)
    until(lambda: given(page)[0]["weights"][ON] == more)
    np.testing.assert_allclose(given(page)[0]["weights"], shared(row, ON, more), atol=4e-7)
    assert slider(page, "on").get_attribute("aria-valuetext") == f"{100 * more:.0f}%"
    number = page.get_by_role("spinbutton", name="weight of on for the gap")
    assert float(number.input_value()) == round(100 * more)
    number.fill("25")
    number.press("Enter")
    until(lambda: given(page)[0]["weights"][ON] == 0.25)
    button(page, "less weight").click()
    until(lambda: given(page)[0]["weights"][ON] == 0.24)
    button(page, "Reset this row").click()
    until(lambda: held(page)["edits"] == [])
    shows(page, weights_of(trace))
    assert not button(page, "Reset this row").is_visible()


def test_lowering_a_weight_of_1_shares_it_equally_among_visible_keys(
    page: Page, trace: Trace
) -> None:
    go(page, edits=[{"op": "mask", "query": POSITION, "key": 2, "layer": LAYER, "head": NUMBER}])
    assert slider(page, "wore").count() == 0  # masked
    slider(page, "crown").focus()
    press(page, "End")
    until(lambda: given(page))
    assert given(page)[0]["weights"] == [float(key == CROWN) for key in range(10)]
    later(page)  # the next presses are a separate change
    after_each(page, ["ArrowLeft"] * 2, "[data-part=head]")  # at once, so that they are one change
    until(lambda: given(page)[0]["weights"][CROWN] == 0.98)
    expected = np.full(10, 0.02 / 8)
    expected[[2, CROWN]] = 0, 0.98
    np.testing.assert_allclose(given(page)[0]["weights"], expected, atol=2e-7)
    assert np.isnan(table(page)[POSITION, 2])  # still masked
    button(page, "Undo").click()
    until(lambda: given(page)[0]["weights"][CROWN] == 1)


def test_a_key_pressed_between_the_result_and_its_bars_counts(page: Page, trace: Trace) -> None:
    """A key press counts even if the page has not yet drawn the handles of the newest result.

    At the time of the press, the head has already received this result.
    """
    slider(page, "crown").focus()
    own(page).locator("h3").last.evaluate(
        """(title) => {
          const { setProperty } = CSSStyleDeclaration.prototype;
          CSSStyleDeclaration.prototype.setProperty = function (name, ...rest) {
            setProperty.call(this, name, ...rest);
            if (name !== '--tall') return;
            for (const end = performance.now() + 50; performance.now() < end; ); // a slow list
          };
          new MutationObserver((_, observer) => {
            observer.disconnect();
            const key = new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true });
            title.getRootNode().activeElement.dispatchEvent(key);
          }).observe(title, { childList: true });
        }"""
    )
    press(page, "ArrowRight")
    weight = round(weights_of(trace)[POSITION, CROWN] + 0.02, 2)
    until(lambda: given(page) and given(page)[0]["weights"][CROWN] == weight)


def test_the_last_weight_of_a_fast_drag_counts(quick: Visit, html: str, trace: Trace) -> None:
    """After a fast drag, the page shows the result for the last weight.

    The model is slow here, so the page skips most of the weights before the last.
    """
    slow = (
        "<script>addEventListener('qkv', () => { const { run } = qkv; window.asked = 0;"
        " qkv.run = async (...all) => { asked += 1;"
        " await new Promise((go) => setTimeout(go, 400)); return run(...all); }; });</script>"
    )
    page = opened(quick, with_first(html, slow), tab="links")
    asked = page.evaluate("asked")
    drag(page, "on", *np.linspace(0.1, 0.9, 40), 0.33)
    now = shown_weights(own(page))
    np.testing.assert_allclose(now, shared(weights_of(trace)[POSITION], ON, 0.33), atol=0.00501)
    until(lambda: given(page) and given(page)[0]["weights"][ON] == 0.33)
    assert page.evaluate("asked") - asked <= 20  # of 41 moves
    button(page, "Undo").click()
    until(lambda: held(page)["edits"] == [])


def test_handles_are_on_the_chosen_row_alone(page: Page) -> None:
    assert handles(page).count() == 10
    token(own(page), 3).hover()
    idle(page)
    assert own(page).locator(".weights.away").count() == 1
    page.mouse.move(1, 1)
    idle(page)
    assert own(page).locator(".weights.away").count() == 0
    go(page, edits=[{"op": "hide", "token": 2}], beside=True)
    assert page.locator("[data-part=before]").is_visible()
    assert handles(page, "before").count() == 0
    go(page, inside=False)
    assert handles(page).count() == 0


def painted(page: Page) -> list[tuple[int, ...]]:
    """Return the masked links."""
    return sorted(masks([edit for edit in held(page)["edits"] if edit["op"] == "masks"]))


def point(page: Page, i: int, j: int) -> tuple[float, float]:
    """Return the middle of a cell of the heat map, in window coordinates."""
    box: Any = own(page).get_by_role("application").bounding_box()
    left, top, wide, tall = cells(page)
    return box["x"] + left + (j + 0.5) * wide, box["y"] + top + (i + 0.5) * tall


def stroke(page: Page, *through: tuple[int, int]) -> None:
    own(page).get_by_role("application").scroll_into_view_if_needed()
    page.mouse.move(*point(page, *through[0]))
    page.mouse.down()
    for cell in through[1:]:
        page.mouse.move(*point(page, *cell))
    page.mouse.up()


def test_a_stroke_masks_every_cell_on_its_path(page: Page, model: Model, trace: Trace) -> None:
    page.get_by_label("paint: drag over cells to hide them").check()
    stroke(page, (2, 1), (2, 5), (5, 5))  # faster than pointer events are sent
    way = [*((2, key) for key in range(1, 6)), (3, 5), (4, 5), (5, 5)]
    edges = [(*cell, *HEAD) for cell in way]
    until(lambda: painted(page) == edges)
    shows(page, model.trace(TEXT, hide=edges)["pattern", LAYER][0, NUMBER])
    left, top, wide, tall = map(int, cells(page))
    hatched = heat_map(page)[top + 2 * tall :, left + wide :][3 : tall - 3, 3 : wide - 3]
    assert (np.diff(hatched.reshape(-1, 3).astype(int)) < -20).all(-1).any()  # orange
    stroke(page, (2, 3), (2, 9))  # a stroke from a masked cell unmasks
    left = [(2, 1), (2, 2), *way[5:]]
    until(lambda: painted(page) == [(*cell, *HEAD) for cell in left])
    token(own(page), 2).click()
    until(lambda: unseen(page) == ["", "unseen changed", "unseen changed", *[""] * 7])
    button(page, "Undo").click()
    until(lambda: painted(page) == edges)
    button(page, "Undo").click()  # a stroke is one change
    until(lambda: held(page)["edits"] == [])


def unseen(page: Page) -> list[str]:
    """Return the CSS class of each key's "masked" mark, or "" for a key without this mark."""
    return own(page).evaluate(
        "node => [...node.querySelectorAll('.key')].map((key) =>"
        " key.querySelector('.unseen')?.className ?? '')"
    )


def test_a_finger_paints_and_drags(page: Page, trace: Trace) -> None:
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *at: float) -> None:
        points = [{"x": at[0], "y": at[1]}] if at else []
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    slider(page, "on").scroll_into_view_if_needed()
    box: Any = slider(page, "on").locator(".grip").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    touch("touchStart", x, y)
    for by in range(1, 5):
        touch("touchMove", x + 12 * by, y + by)  # slightly slanted, as a finger moves
    touch("touchEnd")
    wide: Any = own(page).locator(".weights").bounding_box()
    weight = weights_of(trace)[POSITION, ON] + 48 / wide["width"]
    until(lambda: given(page) and abs(given(page)[0]["weights"][ON] - weight) < 0.02)
    page.get_by_label("paint: drag over cells to hide them").check()
    own(page).get_by_role("application").scroll_into_view_if_needed()
    touch("touchStart", *point(page, 1, 1))
    for cell in range(2, 6):
        touch("touchMove", *point(page, cell, cell))
    touch("touchEnd")
    until(lambda: painted(page) == [(cell, cell, *HEAD) for cell in range(1, 6)])


def test_the_page_says_why_painting_cannot_change_a_cell(page: Page) -> None:
    row: Edit = {"op": "row", "layer": LAYER, "head": NUMBER, "query": POSITION}
    go(page, edits=[{"op": "hide", "token": 2}, row | {"weights": [0.1] * 10}])
    assert table(page)[POSITION] == pytest.approx([0.1] * 10)  # a weight set by hand is shown
    assert np.isnan(table(page)[[0, 3], 2]).all()
    page.get_by_label("paint: drag over cells to hide them").check()
    said = page.locator(".paint [role=status]")
    stroke(page, (POSITION, 4), (POSITION, 6))
    assert "set by hand here" in said.inner_text()
    stroke(page, (3, 2))
    assert "hidden by another change" in said.inner_text()
    stroke(page, (3, 1), (3, 3))
    until(lambda: painted(page) == [(3, 1, *HEAD), (3, 3, *HEAD)])
    assert held(page)["edits"][0] == {"op": "hide", "token": 2}


def test_a_difference_is_read_with_both_its_weights(page: Page, model: Model, trace: Trace) -> None:
    edits = [{"op": "hide", "token": 2}]
    go(page, edits=edits, colouring="change")
    before = weights_of(trace)
    after = by_the_library(model, TEXT, edits).pattern[HEAD]
    own(page).get_by_role("application").focus()
    press(page, "ArrowDown", "Control+Home", "Home")
    for key in range(4):
        now = readout(own(page))
        assert read(now["weight now"]) == pytest.approx(after[0, key], abs=6e-6)
        assert read(now["in the original"]) == pytest.approx(before[0, key], abs=6e-6)
        assert read(now["difference"]) == pytest.approx((after - before)[0, key], abs=6e-6)
        assert now["mask"] == ("hidden" if key == 2 else "open")
        press(page, "ArrowRight")


def test_masked_cells_are_orange_in_a_map_of_a_long_text(lab_at: Visit) -> None:
    text = f"{'the crown and ' * 30}[MASK]."
    block = [(i, j) for i in range(40, 46) for j in range(10, 16)]
    edits = [{"op": "mask", "query": i, "key": j, "layer": 3, "head": 2} for i, j in block]
    page = lab_at(text=text, position=None, query=None, edits=edits)
    assert own(page).get_by_role("button", name="Show cells").is_visible()
    left, top, wide, tall = cells(page)
    found = heat_map(page).astype(int)

    def orange(i: int, j: int) -> bool:
        rows = slice(int(top + i * tall), int(top + (i + 6) * tall))
        part = found[rows, int(left + j * wide) : int(left + (j + 6) * wide)]
        return bool((part[..., 0] - part[..., 2] > 60).any())

    assert [orange(40, 10), orange(40, 18), orange(48, 10)] == [True, False, False]


def test_the_mask_of_a_decoder_is_grey_and_cannot_be_painted(
    open_served: Open, tmp_path: Path
) -> None:
    model = gpt2(tmp_path, seed=2)
    page = ready(open_served("--model", tmp_path))
    button(page, "Look inside").click()
    open_tab(page, "Links")
    size = own(page).locator(".queries [role=option]").count()
    until(lambda: table(page).shape == (size, size))
    np.testing.assert_array_equal(np.isnan(table(page)), ~np.tri(size, dtype=bool))
    # the causal mask belongs to the model, so the page does not mark it as a reader's edit
    assert own(page).locator("td.changed").count() == 0
    left, top, wide, tall = map(int, cells(page))
    cell = heat_map(page)[top : top + tall, left + 2 * wide :][3 : tall - 3, 3 : wide - 3]
    assert len(np.unique(cell.reshape(-1, 3), axis=0)) > 2  # hatched
    colours = cell.reshape(-1, 3).astype(int)
    assert (np.abs(colours - colours.mean(1, keepdims=True)) < 24).all()  # in grey
    token(own(page), 2).click()
    until(lambda: handles(page).count() == 3)
    assert unseen(page) == [*[""] * 3, *["unseen"] * (size - 3)]
    marks = page.locator(".row-table tbody tr > :nth-child(4)")
    expected = [*["open"] * 3, *["hidden"] * (size - 3)]
    until(lambda: marks.all_text_contents() == expected)  # the page draws the table later
    assert page.locator(".row-table td.changed").count() == 0
    layer, head = open_head(page)
    text = page.get_by_label("Your sentence", exact=True).input_value()
    scores = model.trace(text)["attn_scores", layer][0, head]
    raw = page.locator(".row-table tbody tr > :nth-child(3)").all_text_contents()[:3]
    np.testing.assert_allclose([read(text) for text in raw], scores[2, :3], atol=0.0052)
    page.get_by_label("paint: drag over cells to hide them").check()
    stroke(page, (0, 2))
    assert "hidden by the model itself" in page.locator(".paint [role=status]").inner_text()
    assert "mask hidden" in own(page).locator(".score-line").inner_text()
    assert own(page).locator(".score-line .changed").count() == 0
    before = table(page)[2]
    handles(page).first.focus()
    press(page, "Home")
    until(lambda: table(page)[2, 0] == 0)
    after = table(page)[2]
    np.testing.assert_allclose(after[1:3], before[1:3] / before[1:3].sum(), atol=0.02)
    assert np.isnan(after[3:]).all()
