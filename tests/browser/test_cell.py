"""Tests of bar charts of a number's terms, in the walk and the live page, against the library."""

import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from qkv.see.draw.colours import shade
from qkv.see.steps.walk import Walk
from qkv.trace import Trace

from .playing import (
    HEAD,
    POSITION,
    cells,
    go,
    heat_map,
    open_tab,
    picture,
    unfold,
    until,
)
from .support import Visit, drawn, idle, press, read
from .test_walk_shift import agree, layer_walk, walk_page

TIMES = "\N{MULTIPLICATION SIGN}"


def chart(scope: Page | Locator) -> Locator:
    """Return the bars, which form one control."""
    return scope.get_by_role("slider", name=re.compile("move with the arrow keys$"))


def bars(scope: Page | Locator) -> tuple[np.ndarray, float]:
    """Return the drawn length of each bar, negative below the line, and its tolerance."""
    found = str(chart(scope).get_attribute("data-bars"))
    left, wide, zero, scale = map(float, found.split())
    pixels = picture(chart(scope).locator("canvas")).astype(int)
    colours = [list(bytes.fromhex(shade(sign)[1:])) for sign in (0.7, -0.7)]
    number = int(str(chart(scope).get_attribute("aria-valuemax")))
    columns = (left + (np.arange(number) + 0.5) * wide).astype(int)
    lengths = []
    for column in columns:
        above, below = pixels[: round(zero) - 1, column], pixels[round(zero) + 1 :, column]
        parts = zip((above[31:], below), colours, strict=True)
        up, down = ((np.abs(part - colour).max(-1) < 6).sum() for part, colour in parts)
        assert not (up > 1 and down > 1)
        lengths.append((up if up > down else -down) / scale)
    return np.array(lengths), 2.5 / scale


def rows(scope: Page | Locator) -> tuple[list[str], np.ndarray]:
    """Return the bars as a table: the names of its columns and its numbers."""
    details = scope.locator("details", has_text="The bars as a table")
    unfold(details)
    names = details.locator("thead th").all_inner_texts()
    cells = details.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((td) => td.textContent))"
    )
    return names, np.array([[read(cell) for cell in row] for row in cells])


def step_of(page: Page, walk: Walk, name: str) -> Any:
    page.get_by_role("tab", name=re.compile(rf"^\d+ {name}:")).click()
    idle(page)
    return next(step for step in walk.steps if step.name == name)


def test_a_walk_cell_shows_its_products_as_bars(visit: Visit) -> None:
    walk = layer_walk("lesson")
    page = visit(walk_page(walk))
    q, k = (walk.arrays[name].astype(np.float64) for name in "QK")
    step = step_of(page, walk, "scores")
    i, j = step.cell
    products = q[i] * k[j]
    names, found = rows(page)
    assert names == [f"Q[{step.rows[i]}]", f"K[{step.columns[j]}]", "products"]
    np.testing.assert_allclose(found, np.stack([q[i], k[j], products], 1), atol=0.00051)
    lengths, within = bars(page)
    np.testing.assert_allclose(lengths, products, atol=within)
    said = page.locator(".sum-said").inner_text()
    up, down = products[products > 0].sum(), products[products < 0].sum()
    sums = f"their sum is {up:.3f} above the line and {down:.3f} below it"
    agree(said, f"{len(products)} products; {sums}")
    page.locator(".map").first.focus()
    press(page, "ArrowDown", "Control+Home")  # the bars follow the cell that is pointed at
    np.testing.assert_allclose(rows(page)[1][:, 2], q[0] * k[0], atol=0.00051)


def test_the_bars_are_walked_by_keyboard(visit: Visit) -> None:
    walk = layer_walk("lesson")
    page = visit(walk_page(walk))
    step = step_of(page, walk, "Q")
    i, j = step.cell or (walk.cell[0], 0)
    x, w = walk.arrays["X"].astype(np.float64)[i], walk.arrays["W_Q"].astype(np.float64)[:, j]
    best = int(np.abs(x * w).argmax())

    def tells(number: int) -> None:
        of, by = x[number], w[number]
        told = f"number {number}: {of:.3f} {TIMES} {by:.3f} = {of * by:.3f}"
        agree(page.locator(".sum-said").inner_text(), told)
        agree(str(chart(page).get_attribute("aria-valuetext")), told)
        assert chart(page).get_attribute("aria-valuenow") == str(number + 1)

    chart(page).focus()
    press(page, "ArrowRight")
    tells(best)
    press(page, "Home", "ArrowLeft")
    tells(0)
    press(page, "ArrowRight", "ArrowUp")
    tells(2)
    press(page, "End")
    tells(len(x) - 1)
    press(page, "ArrowDown")
    tells(len(x) - 2)
    press(page, "Escape")
    assert page.locator(".sum-said").inner_text().startswith(f"{len(x)} products; ")


@pytest.mark.parametrize("name", ["lesson", "bert"])
def test_bars_of_a_weight_match_the_softmax_of_its_row(visit: Visit, name: str) -> None:
    walk = layer_walk(name)
    page = visit(walk_page(walk))
    step = step_of(page, walk, "weights")
    i, j = walk.cell
    scores = walk.arrays[step.op["of"]][i].astype(np.float64)
    raised = np.exp(scores - scores.max())
    shares = raised / raised.sum()
    names, found = rows(page)
    assert names == [step.op["of"], "exp", "weights"]
    np.testing.assert_allclose(found[:, 1], raised, atol=0.00051)
    np.testing.assert_allclose(found[:, 2], shares, atol=0.00051)
    lengths, within = bars(page)
    np.testing.assert_allclose(np.delete(lengths, j), np.delete(shares, j), atol=within)
    chart(page).focus()
    press(page, "ArrowRight")  # starts at the selected cell
    assert page.locator(".sum-said").inner_text().startswith(f"{step.columns[j]}: ")


def test_steps_without_a_sum_have_no_bars(visit: Visit) -> None:
    walk = layer_walk("lesson")
    page = visit(walk_page(walk))
    for name, some in [("scores", True), ("scaled", False), ("context", True), ("joined", False)]:
        step_of(page, walk, name)
        assert chart(page).is_visible() is some


# the live page


def score_of(page: Page) -> Locator:
    return page.locator("[data-part=head] .score")


def of_head(trace: Trace, name: str) -> np.ndarray:
    """Return the queries or keys of the shown head, (T, d)."""
    return np.asarray(trace[name, HEAD[0]][0, :, HEAD[1]])


def test_a_score_shows_its_products_as_bars(lab_at: Visit, trace: Trace) -> None:
    scope = score_of(lab_at())
    q, k = of_head(trace, "q"), of_head(trace, "k")
    weights = trace.pattern(layer=HEAD[0], head=HEAD[1])
    key = int(weights[POSITION].argmax())
    products = q[POSITION] * k[key]
    score = products.sum()
    names, found = rows(scope)
    assert names == ["Q ___", f"K {trace.tokens[key]}", "products"]
    np.testing.assert_allclose(found, np.stack([q[POSITION], k[key], products], 1), atol=0.00051)
    lengths, within = bars(scope)
    np.testing.assert_allclose(lengths, products, atol=within)
    best = np.argsort(-np.abs(products))[:6]
    terms = [f"{q[POSITION, c]:.3f}*{k[key, c]:.3f}" for c in best]
    rest = f"… (26 more: {np.delete(products, best).sum():.3f})"
    agree(scope.locator(".sum-written").inner_text(), f"{' + '.join([*terms, rest])} = {score:.3f}")
    agree(
        scope.locator(".score-line").inner_text(),
        f"score {score:.3f} ÷ √32 = {score / 32**0.5:.3f} · mask open"
        f" · softmax: weight {weights[POSITION, key]:.3f}",
    )


def test_the_score_follows_the_selected_cell(lab_at: Visit, trace: Trace) -> None:
    page = lab_at()
    scope = score_of(page)
    products = of_head(trace, "q")[:, None] * of_head(trace, "k")
    rows(scope)
    page.locator("[data-part=head]").get_by_role("application").focus()
    press(page, "ArrowDown", "Control+Home", "Home")

    def follows(query: int, key: int) -> None:
        """Wait until the page shows this cell, and check its products."""
        columns = scope.locator("thead th")
        expect(columns.nth(0)).to_have_text(f"Q {drawn(trace.tokens)[query]}")
        expect(columns.nth(1)).to_have_text(f"K {drawn(trace.tokens)[key]}")
        np.testing.assert_allclose(rows(scope)[1][:, 2], products[query, key], atol=0.00051)

    for i, j in [(0, 0), (0, 1), (1, 1)]:
        follows(i, j)
        press(page, "ArrowRight" if (i, j) == (0, 0) else "ArrowDown")
    press(page, "Escape")
    key = int(trace.pattern(layer=HEAD[0], head=HEAD[1])[POSITION].argmax())
    follows(POSITION, key)
    open_tab(page, "Links")
    page.get_by_role("button", name="next key").click()
    open_tab(page, "Heads")
    follows(POSITION, key + 1)


def test_a_product_and_its_two_numbers_mark_each_other(lab_at: Visit, trace: Trace) -> None:
    page = lab_at()
    scope = score_of(page)
    key = int(trace.pattern(layer=HEAD[0], head=HEAD[1])[POSITION].argmax())
    left, top, wide, tall = map(int, cells(page))
    plain = heat_map(page).astype(int)
    chart(scope).focus()
    press(page, "Home", "ArrowRight", "ArrowRight", "ArrowRight")  # product 3
    marked = np.abs(heat_map(page).astype(int) - plain).max(-1) > 30
    spots = np.argwhere(marked)
    beside = spots[spots[:, 1] < left]  # Q: 32 numbers in 64 pixels, 4 pixels left of the cells
    assert abs(beside[:, 1].mean() - (left - 68 + 7)) < 1.5
    assert abs(beside[:, 0].mean() - (top + (POSITION + 0.5) * tall)) < 1.5
    above = spots[spots[:, 1] >= left]  # K: its first number is next to the cells
    assert abs(above[:, 0].mean() - (top - 4 - 7)) < 1.5
    assert abs(above[:, 1].mean() - (left + (key + 0.5) * wide)) < 1.5
    chart(scope).blur()
    assert (np.abs(heat_map(page).astype(int) - plain).max(-1) <= 30).all()
    page.locator("[data-part=head] .map").scroll_into_view_if_needed()
    box: Any = page.locator("[data-part=head] .map").bounding_box()
    said = scope.locator(".sum-said")
    spots = [(5, left - 68 + 11, top + 2.5 * tall), (9, left + 1.5 * wide, top - 4 - 19)]
    for number, x, y in spots:
        page.mouse.move(box["x"] + x, box["y"] + y)
        until(lambda told=f"number {number}: ": said.inner_text().startswith(told))
    term = scope.locator("[data-bar]").first
    term.hover()
    assert said.inner_text().startswith(f"number {term.get_attribute('data-bar')}: ")
    assert str(term.get_attribute("class")) == "on"


def test_changed_parts_of_a_score_are_orange(lab_at: Visit, trace: Trace) -> None:
    page = lab_at()
    line = score_of(page).locator(".score-line")
    assert line.locator(".changed").count() == 0
    key = int(trace.pattern(layer=HEAD[0], head=HEAD[1])[POSITION].argmax())
    mask = {"op": "mask", "query": POSITION, "key": key, "layer": HEAD[0], "head": HEAD[1]}
    go(page, edits=[mask, {"op": "scale", "value": 0.3}])
    assert line.locator(".changed").all_inner_texts() == [f" {TIMES} 0.300", "hidden"]
    weights = [0.5, *[0.0] * 8, 0.5]
    row = {"op": "row", "layer": HEAD[0], "head": HEAD[1], "query": POSITION, "weights": weights}
    go(page, edits=[row])
    open_tab(page, "Links")
    for _ in range(9 - key):
        page.get_by_role("button", name="next key").click()
    expect(line).to_contain_text("your weight 0.500")
    assert line.locator(".changed").all_inner_texts() == ["0.500"]
